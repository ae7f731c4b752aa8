"""Brokers that share their histories through a nats-server: processes, kills and counts."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import jwt

from pubsub.backplane.positions.shared_position import SharedPosition, decode
from tests.integration.broker import HOST, Start, listen, run
from tests.integration.clients import message
from tests.integration.nats_cluster import nats_cluster
from tests.integration.nats_server import NatsServer
from tests.integration.places import Load, Place, body_of, same, settle, two_places
from tests.waiting import until

SYNC = "--durability=*=sync"


def test_a_broker_that_was_away_has_everything(
    start: Start, server: NatsServer, tmp_path: Path
) -> None:
    here = Place(start, server.url, tmp_path / "here")
    there = Place(start, server.url, tmp_path / "there")
    here.publish("0")
    assert same(here, there) == ["0"]
    there.broker.stop()
    for number in range(1, 200):
        assert here.publish(str(number))
    there.begin()
    there.publish("200")
    assert sorted(map(int, same(here, there))) == list(range(201))


def test_the_engine_is_killed_under_load(start: Start, server: NatsServer, tmp_path: Path) -> None:
    places = [Place(start, server.url, tmp_path / name) for name in ("here", "there")]
    loads = [Load(one) for one in places]
    for _ in range(2):
        for load in loads:
            load.wait(100)
        server.kill()
        for load in loads:
            load.wait(100)
        server.start()
        until(lambda: all(one.figure("connected") == 1 for one in places), "all are connected")
    for load in loads:
        load.end()
    bodies = same(*places)
    for load in loads:
        load.check(bodies)


def test_a_broker_is_killed_under_load(start: Start, server: NatsServer, tmp_path: Path) -> None:
    here, there = (Place(start, server.url, tmp_path / name) for name in ("here", "there"))
    other = Load(there)
    done: list[Load] = []
    for _ in range(3):
        load = Load(here, done[-1].sent if done else 0)
        load.wait(100)
        here.broker.kill()
        load.end()
        done.append(load)
        here.begin()
    other.end()
    bodies = same(here, there)
    other.check(bodies)
    for load in done:
        missing = Counter(load.done) - Counter(bodies)
        assert not missing
    assert len(bodies) == len(set(bodies))


def test_sync_waits_for_the_engine(start: Start, server: NatsServer, tmp_path: Path) -> None:
    here = Place(start, server.url, tmp_path / "here", SYNC)
    there = Place(start, server.url, tmp_path / "there", SYNC)
    settle(here, there)
    assert here.publish("1")
    server.kill()
    assert not here.publish("2")
    server.start()
    until(lambda: here.figure("connected") == 1, "it is connected")
    assert here.publish("3")
    # Refused messages may be there all the same; no message is there twice.
    assert same(here, there) == ["1", "2", "3"]


def test_a_broker_that_stops_waits_for_the_engine(
    start: Start, server: NatsServer, tmp_path: Path
) -> None:
    here = Place(start, server.url, tmp_path / "here", SYNC)
    assert here.publish("1")
    server.signal(signal.SIGSTOP)
    here.publisher.put("Publish", here.name, message=message("2"))
    until(lambda: len(here.messages()) == 2, "two messages")
    here.broker.signal()
    here.broker.wait_line("Received SIGTERM")
    server.signal(signal.SIGCONT)
    assert here.publisher.answer()["_class"] == "SuccessResponse"
    here.broker.wait()


def test_a_stream_with_other_settings(start: Start, server: NatsServer, tmp_path: Path) -> None:
    Place(start, server.url, tmp_path / "here")
    options = (
        *listen("nsd"), f"--backplane={server.url}", "--backplane-history=shared",
        f"--store=log:{tmp_path / 'there'}", "--backplane-history-bytes=1G",
    )  # fmt: skip
    output = run(options, tmp_path)
    assert "its stream 'pubsub_history' has max_bytes" in str(output)


def test_a_broker_with_a_history_of_its_own(
    start: Start, server: NatsServer, tmp_path: Path
) -> None:
    here = Place(start, server.url, tmp_path / "here")
    until(lambda: here.figure("connected") == 1, "connected")
    other = start(*listen("nsd", "http"), f"--backplane={server.url}")
    other.wait_line(r"the engine reports: other brokers share a history, and this one does not")
    with urllib.request.urlopen(f"http://{HOST}:{other.port('http')}/v1/status") as answer:
        (found,) = json.loads(answer.read())["attention"]
    assert "give all of them the same backplane-history" in found["what"]


def test_a_node_of_a_cluster_is_killed(start: Start, tmp_path: Path) -> None:
    with nats_cluster(tmp_path) as cluster:
        here = Place(start, cluster.url(0, 1, 2), tmp_path / "here", "--backplane-replicas=3", SYNC)
        there = Place(
            start, cluster.url(1, 2, 0), tmp_path / "there", "--backplane-replicas=3", SYNC
        )
        settle(here, there)
        loads = [Load(here), Load(there)]
        for number in range(3):
            for load in loads:
                load.wait(20)
            cluster.nodes[number].kill()
            until(
                lambda: here.figure("connected") == there.figure("connected") == 1,
                "both are connected",
            )
            for load in loads:
                load.wait(20)
            cluster.nodes[number].start()
        for load in loads:
            load.end()
        bodies = same(here, there)
        for load in loads:
            load.check(bodies)


def test_keyed_topics_of_brokers_that_come_later(
    start: Start, server: NatsServer, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o600)
    token = jwt.encode(
        {"sub": "ada", "queue_key": "k", "permissions": ["*"]}, secret.read_bytes(), "HS256"
    )

    def ask(place: Place, method: str, path: str, body: bytes | None = None) -> str:
        request = urllib.request.Request(
            f"http://{HOST}:{place.broker.port('http')}{path}", body, method=method,
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request) as answer:
            found: str = answer.read().decode()
            return found

    def numbers(place: Place) -> list[str]:
        found = ask(place, "GET", "/v1/history?start=0&format=jsonl").splitlines()
        rows = [json.loads(line) for line in found]
        return [row["value"] for row in rows if row["topic"].startswith("keyed/")]

    option = f"--secret-file={secret}"
    here = Place(start, server.url, tmp_path / "here", option)
    there = Place(start, server.url, tmp_path / "there", option)
    for one in (here, there):
        until(lambda one=one: one.figure("connected") == 1, "connected")  # type: ignore[misc]
    there.broker.stop()
    expected = [str(number) for number in range(30)]
    for value in expected:
        ask(here, "PUT", f"/v1/topics/keyed%2F{value}", b'{"queue_key": "k"}')
        ask(here, "POST", f"/v1/topics/keyed%2F{value}/messages", value.encode())
    there.begin()
    newcomer = Place(start, server.url, tmp_path / "newcomer", option)
    for place in (there, newcomer):
        until(lambda place=place: numbers(place) == expected, "all")  # type: ignore[misc]


def test_positions_hold_at_every_broker(start: Start, server: NatsServer, tmp_path: Path) -> None:
    places = two_places(start, server, tmp_path)
    first, second = places
    for number in range(20):
        assert first.publish(f"a{number}")
        assert second.publish(f"b{number}")
    settle(*places)

    def position(place: Place, query: str = "") -> str:
        found: str = json.loads(place.get(f"/v1/bounds?{query}"))["position"]
        return found

    def between(place: Place, begin: str, end: str) -> list[str]:
        query = urllib.parse.urlencode({"from": begin, "to": end, "topic": ["a", "b"]}, True)
        rows = place.get(f"/v1/history?format=jsonl&{query}").splitlines()
        return sorted(body_of(json.loads(row)["value"]) for row in rows)

    until(lambda: json.loads(first.get("/v1/bounds"))["next"] >= 40, "40 messages")
    half, whole = position(first, "at=17"), position(first)
    begin = SharedPosition().encode()
    parts = [between(place, begin, half) for place in places]
    assert parts[0] == parts[1]
    rest = [between(place, half, whole) for place in places]
    assert rest[0] == rest[1]
    everything = sorted([f"{name}{number}" for number in range(20) for name in "ab"])
    assert sorted(parts[0] + rest[1]) == everything
    # A reader continues at the other broker after its own was killed.
    body = json.dumps({"offset": 17}).encode()
    url = f"http://{HOST}:{first.broker.port('http')}/v1/readers/me"
    urllib.request.urlopen(urllib.request.Request(url, body, method="PUT")).close()
    until(lambda: "position" in _reader(second), "the position of the reader")
    first.broker.kill()
    found = _reader(second)["position"]
    assert decode(found).origins == decode(half).origins
    assert (
        between(second, found, position(second, urllib.parse.urlencode({"from": found})))
        == (rest[1])
    )


def _reader(place: Place) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(place.get("/v1/readers/me"))
    except urllib.error.HTTPError:
        return {}
    return found
