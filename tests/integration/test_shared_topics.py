"""Topics and queue keys of brokers at one nats-server: every way to create and to rotate."""

from __future__ import annotations

import json
import signal
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.integration import fast_client
from tests.integration import rheos_client as rheos
from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.clients import Nsd
from tests.integration.fast_client import KEY_UPDATE, NEWS, Fast, Packet, make_secret, make_token
from tests.integration.nats_server import NatsServer
from tests.integration.rheos_client import Rheos
from tests.waiting import until

EXCLUSIVE, CREATE, SUBSCRIBE, ROTATE = 0x02, 0x01, 0x02, 0x07
WRONG_KEY, NO_TOPIC, EXISTS, RATE_LIMITED = 2, 4, 5, 8
CLIENT = bytes(range(16))


class House:
    """Two brokers at ``server``, each with a history of its own that outlives it."""

    def __init__(self, start: Start, server: NatsServer, directory: Path) -> None:
        self._start = start
        self._server = server
        self._directory = directory
        self.secret = make_secret(directory / "secret")
        self.k1, self.k2 = make_token(self.secret), make_token(self.secret, key="k2")
        self._admin = make_token(self.secret, permission="admin").decode()

    def broker(self, name: str, *options: str) -> Broker:
        broker = self._start(
            *listen("fast", "rheos", "nsd", "http"),
            f"--secret-file={self.secret}",
            f"--backplane={self._server.url}",
            f"--store=log:{self._directory / name}",
            *options,
        )
        broker.wait_line("topics are shared")
        return broker

    def ask(self, broker: Broker, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the document of an HTTP request."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{HOST}:{broker.port('http')}{path}", data, method=method
        )
        request.add_header("Content-Type", "application/json")
        request.add_header("Authorization", f"Bearer {self._admin}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def has(self, broker: Broker, name: str) -> bool:
        return self.ask(broker, "GET", f"/v1/topics/{name}")[0] == 200


@pytest.fixture
def house(start: Start, server: NatsServer, tmp_path: Path) -> House:
    return House(start, server, tmp_path)


def test_topics_of_all_protocols(house: House) -> None:
    here, there = house.broker("here"), house.broker("there")
    Fast.to(here, fast_client.create(house.k1, "by-fast")).sync(house.k1)
    Nsd.to(here).do("Open", "by-nsd")
    Rheos(here.port("rheos")).use(CLIENT).do(rheos.CREATE, b"by-rheos")
    assert house.ask(here, "PUT", "/v1/topics/by-http", {"queue_key": "k1", "sync": True})[0] == 201
    names = ("by-fast", "by-nsd", "by-rheos", "by-http")
    until(lambda: all(house.has(there, name) for name in names), "all topics")
    row = house.ask(there, "GET", "/v1/topics/by-http")[1]
    assert (row["durability"], row["keyed"]) == ("sync", True), row
    # They can be used without being created there.
    Rheos(there.port("rheos")).use(CLIENT).do(rheos.SUBSCRIBE, b"by-rheos")
    reader = Fast.to(there, fast_client.subscribe(house.k1, fast_client.topic_id("by-fast")))
    assert reader.sync(house.k1) == []
    assert house.ask(there, "PUT", "/v1/topics/by-http", {"queue_key": "k2"})[0] == 409
    status = house.ask(there, "GET", "/v1/status")[1]["stats"]["backplane"]
    assert (status["topics"], status["topics_waiting"]) == (4, 0)
    # They end everywhere, and stay away.
    assert house.ask(there, "DELETE", "/v1/topics/by-rheos")[0] == 204
    until(lambda: not house.has(here, "by-rheos"), "the end of by-rheos")
    here.kill()
    assert house.ask(there, "DELETE", "/v1/topics/by-nsd")[0] == 204
    here = house.broker("here")
    until(lambda: not house.has(here, "by-nsd"), "the end of by-nsd")
    assert house.has(here, "by-fast")


@pytest.mark.parametrize("over_http", [False, True])
def test_rotations(house: House, over_http: bool) -> None:
    here, there = house.broker("here"), house.broker("there")
    near = Fast.to(here, fast_client.create(house.k1), fast_client.subscribe(house.k1))
    assert near.sync(house.k1) == []
    until(lambda: house.has(there, "news"), "news")
    far = Fast.to(there, fast_client.subscribe(house.k1))
    assert far.sync(house.k1) == []
    if over_http:
        assert house.ask(there, "POST", "/v1/topics/news/key", {"queue_key": "k2"})[0] == 200
    else:
        rotor = Fast.to(there, fast_client.rotate(house.k1, b"k2"))
        assert rotor.sync(house.k1) == []
    for reader in (far, near):
        assert reader.receive() == Packet(KEY_UPDATE, NEWS, b"k2")
    for broker in (here, there):
        late = Fast.to(broker, fast_client.subscribe(house.k1))
        assert late.error() == (SUBSCRIBE, WRONG_KEY)
    # The messages of one broker reach the other with the new key.
    writer = Fast.to(here)

    def arrives() -> bool:
        writer.send(fast_client.publish(house.k2, b"x"))
        far.sock.settimeout(0.2)
        with suppress(TimeoutError):
            return far.texts(1) == [b"x"]
        return False

    until(arrives, "a message")
    # With quotes, as the two letters alone are in random bytes now and then.
    assert b'"k2"' not in b"".join(
        path.read_bytes() for path in Path(house._directory).rglob("jetstream/**/*.blk")
    )


def test_one_owner_of_an_exclusive_topic(house: House) -> None:
    here, there = house.broker("here"), house.broker("there")
    owner = Fast.to(here, fast_client.create(house.k1, flags=EXCLUSIVE))
    assert owner.sync(house.k1) == []
    other = Fast.to(there, fast_client.create(house.k1, flags=EXCLUSIVE))
    assert other.error() == (CREATE, EXISTS)
    owner.close()

    def taken() -> bool:
        other.send(fast_client.create(house.k2, flags=EXCLUSIVE))
        return bool(other.sync(house.k2))

    until(lambda: not taken(), "the name is free")
    # A broker that is killed leaves it taken, until it is back.
    there.kill()
    late = Fast.to(here, fast_client.create(house.k1))
    assert late.error() == (CREATE, EXISTS)
    house.broker("there")
    until(
        lambda: not Fast.to(here, fast_client.create(house.k1)).sync(house.k1), "a topic is created"
    )


def test_an_exclusive_topic_of_a_stopped_broker_is_free_at_once(house: House) -> None:
    here, there = house.broker("here"), house.broker("there")
    owner = Fast.to(here, fast_client.create(house.k1, flags=EXCLUSIVE))
    assert owner.sync(house.k1) == []
    here.stop()
    other = Fast.to(there)

    def taken() -> bool:
        other.send(fast_client.create(house.k2, flags=EXCLUSIVE))
        return bool(other.sync(house.k2))

    # The lease has a minute.
    until(lambda: not taken(), "the name is free", 20)


def test_an_exclusive_topic_of_a_killed_broker_is_free_after_its_lease(house: House) -> None:
    here, there = (house.broker(name, "--backplane-lease=10s") for name in ("here", "there"))
    owner = Fast.to(here, fast_client.create(house.k1, flags=EXCLUSIVE))
    assert owner.sync(house.k1) == []
    paused = Fast.to(here, fast_client.create(house.k1, "b", EXCLUSIVE))
    assert paused.sync(house.k1) == []
    here.kill()
    other = Fast.to(there)

    def taken() -> bool:
        other.send(fast_client.create(house.k2, flags=EXCLUSIVE))
        return bool(other.sync(house.k2))

    assert taken()
    there.wait_line("free now: 2")
    assert not taken()
    # The killed broker comes back, and does not have the topic.
    here = house.broker("here", "--backplane-lease=10s")
    late = Fast.to(here, fast_client.create(house.k1, flags=EXCLUSIVE))
    assert late.error() == (CREATE, EXISTS)
    status = house.ask(there, "GET", "/v1/status")[1]["stats"]["backplane"]
    assert (status["topics_released"], status["leases_lost"]) == (2, 0)


def test_a_broker_that_was_stopped_for_longer_than_its_lease(house: House) -> None:
    here, there = (house.broker(name, "--backplane-lease=10s") for name in ("here", "there"))
    owner = Fast.to(
        here, fast_client.create(house.k1, flags=EXCLUSIVE), fast_client.subscribe(house.k1)
    )
    assert owner.sync(house.k1) == []
    here.signal(signal.SIGSTOP)
    there.wait_line("free now: 1")
    other = Fast.to(there, fast_client.create(house.k2, flags=EXCLUSIVE))
    assert other.sync(house.k2) == []
    here.signal(signal.SIGCONT)
    here.wait_line("no sign of life of this broker")
    assert owner.error() == (SUBSCRIBE, 9)
    owner.send(fast_client.create(house.k1, flags=EXCLUSIVE))
    assert owner.error() == (CREATE, EXISTS)
    assert other.sync(house.k2) == []


def test_the_server_is_away_and_comes_back(house: House, server: NatsServer) -> None:
    here, there = house.broker("here"), house.broker("there")
    owner = Fast.to(here, fast_client.create(house.k1), fast_client.subscribe(house.k1))
    assert owner.sync(house.k1) == []
    until(lambda: house.has(there, "news"), "news")
    server.kill()
    for broker in (here, there):
        broker.wait_line("the engine is away")
    rotor = Fast.to(there, fast_client.rotate(house.k1, b"k2"))
    assert rotor.error() == (ROTATE, RATE_LIMITED)
    status, problem = house.ask(there, "PUT", "/v1/topics/new", {"queue_key": "k1"})
    assert (status, problem["error"]) == (503, "backplane-away")
    assert house.ask(there, "DELETE", "/v1/topics/news")[0] == 503
    assert not house.has(there, "new")
    # Changes that need no agreement are made, and are shared later.
    Nsd.to(there).do("Open", "made-alone")
    owner.send(fast_client.publish(house.k1, b"x"))
    assert owner.texts(1) == [b"x"]
    server.start()
    for broker in (here, there):
        broker.wait_line("topics are shared", 2)
    until(lambda: house.has(here, "made-alone"), "made-alone")
    rotor.send(fast_client.rotate(house.k1, b"k2"))
    assert rotor.sync(house.k2) == []
    assert owner.receive() == Packet(KEY_UPDATE, NEWS, b"k2")
