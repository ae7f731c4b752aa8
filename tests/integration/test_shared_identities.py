"""Clients of nsd whose broker is killed or stopped under load go on at another one."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.broker import TIMEOUT, Start, listen
from tests.integration.clients import Nsd, message
from tests.integration.nats_server import NatsServer, nats_server
from tests.integration.places import Load, Place, same, settle
from tests.unit.user_files import user_file
from tests.waiting import until

NAMES = ("here", "there")


class Poller:
    """Polls under an identity at one broker until its connection ends, or until ``end``."""

    def __init__(self, place: Place, identity: str, after: int = 0) -> None:
        self.identity, self.after = identity, after
        self.bodies: list[str] = []
        self._client = Nsd.to(place.broker)
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                found = self._client.get(self.identity, self.after)
                # The last request says what has arrived: another broker would send it again.
                if self._ends and not found:
                    return
                for one in found:
                    assert one["when"] > self.after
                    self.bodies.append(one["body"])
                    self.after = one["when"]

    def end(self) -> list[str]:
        """Return the bodies once the client has ended."""
        self._ends = True
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()
        self._client.close()
        return self.bodies


def both(start: Start, server: NatsServer, tmp_path: Path, *options: str) -> tuple[Place, Place]:
    here, there = (Place(start, server.url, tmp_path / name, *options) for name in NAMES)
    settle(here, there)
    return here, there


def subscribe(place: Place, *identities: str) -> None:
    client = Nsd.to(place.broker)
    for identity in identities:
        for name in NAMES:
            client.do("Subscribe", identity, channel=name)
    client.close()


def move_under_load(
    here: Place, there: Place, end: Callable[[], object]
) -> tuple[list[Load], list[list[str]], list[Poller]]:
    """Publish at both brokers, ``end`` the first, and continue its clients at the second."""
    identities = [f"reader-{number}" for number in range(5)]
    subscribe(here, *identities)
    pollers = [Poller(here, one) for one in identities]
    loads = [Load(here), Load(there)]
    for load in loads:
        load.wait(300)
    end()
    loads[0].end()
    before = [one.end() for one in pollers]
    again = [Poller(there, one.identity, one.after) for one in pollers]
    loads[1].wait(300)
    return loads, before, again


def check(bodies: list[str], loads: list[Load], before: list[str], poller: Poller) -> list[str]:
    """Check that a client gets all ``bodies``; return those that it got twice."""
    missing = set(bodies) - set(before)
    until(lambda: missing <= set(poller.bodies), "the missing messages")
    got = Counter([*before, *poller.end()])
    for load in loads:
        assert [body for body in load.done if body not in got] == []
    return [body for body, count in got.items() if count > 1]


def test_a_broker_is_killed_under_load(start: Start, server: NatsServer, tmp_path: Path) -> None:
    here, there = both(start, server, tmp_path)
    loads, before, again = move_under_load(here, there, here.broker.kill)
    here.begin()
    loads[1].wait(50)
    loads[1].end()
    bodies = same(here, there)
    for old, poller in zip(before, again, strict=True):
        twice = check(bodies, loads, old, poller)
        # Messages of about the last second, and those that the broker had not shared.
        assert len(twice) < len(old)
    # They go back with a Get, and the numbers grow.
    here.publish("back")
    poller = Poller(here, "reader-0", again[0].after)
    until(lambda: "back" in poller.bodies, "back")
    assert poller.end() == ["back"]


def test_a_broker_is_stopped_under_load(start: Start, server: NatsServer, tmp_path: Path) -> None:
    here, there = both(start, server, tmp_path)
    loads, before, again = move_under_load(here, there, here.broker.stop)
    loads[1].end()
    here.begin()
    bodies = same(here, there)
    for old, poller in zip(before, again, strict=True):
        assert check(bodies, loads, old, poller) == []


@pytest.mark.parametrize("kills", [True, False])
def test_identities_of_users_stay_theirs(
    start: Start, server: NatsServer, tmp_path: Path, kills: bool
) -> None:
    here, there = (
        start(
            *listen("nsd"), f"--backplane={server.url}", "--backplane-history=shared",
            f"--store=log:{tmp_path / name}", f"--password-file={user_file(tmp_path)}",
            "--nsd-identity-password=required",
        )
        for name in NAMES
    )  # fmt: skip
    client = Nsd.to(here)
    client.do("Open", "bob", password="sesame")
    client.do("Subscribe", "bobs-second", channel="bob")
    client.do("Publish", "bob", message=message("first"))
    until(lambda: len(client.get("bobs-second")) == 1, "one message")
    after = client.get("bobs-second")[0]["when"]
    (here.kill if kills else here.stop)()
    thief = Nsd.to(there)
    until(
        lambda: thief.ask("Open", "ann", password="other")["_class"] == "SuccessResponse",
        "ann is free",
    )
    assert thief.refused("Get", "bobs-second", after=0) == "WRONG PASSWORD"
    assert thief.refused("Subscribe", "bobs-second", channel="ann") == "WRONG PASSWORD"
    assert thief.refused("Get", "bob", after=0) == "WRONG PASSWORD"
    again = Nsd.to(there)
    assert again.ask("Get", "bob", after=0, password="sesame")["messages"]
    found = [one["body"] for one in again.get("bobs-second", after)]
    # The position of a broker that was killed may be a second old.
    assert found == [] or (kills and found == ["first"])
    again.do("Publish", "bob", message=message("second"))
    until(
        lambda: [one["body"] for one in again.get("bobs-second", after)][-1:] == ["second"],
        "second",
    )


def test_an_engine_that_takes_only_small_values(start: Start, tmp_path: Path) -> None:
    """One log line, and an identity that would not fit gets an error that says so."""
    settings = tmp_path / "nats.conf"
    settings.write_text("max_payload: 16384\n")
    with nats_server(tmp_path, "-c", str(settings)) as server:
        here, there = both(start, server, tmp_path)
        here.broker.wait_line(r"backplane: max_payload of nats-server is 16384 bytes: identities")
        channels = [f"{number:0200}" for number in range(60)]
        with Nsd.to(here.broker) as client:
            for channel in channels:
                client.do("Open", channel)
            answers = [client.ask("Subscribe", "ada", channel=channel) for channel in channels]
        kinds = [one.get("error", "") for one in answers]
        fit = kinds.index("LIMIT REACHED: subscriptions")
        assert 20 < fit < 50
        assert set(kinds) == {"", "LIMIT REACHED: subscriptions"}
        with Nsd.to(there.broker) as client:
            client.do("Subscribe", "ada", channel=channels[0])
        status = json.loads(here.get("/v1/status"))
        assert "max_payload" in status["stats"]["backplane"]["complaint"]
        for place in (here, there):
            place.broker.stop()
            assert place.broker.output.count("max_payload of nats-server") == 1
