"""Clients of a broker that is killed or stopped under load continue at another one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.integration.broker import HOST, TIMEOUT, Start
from tests.integration.cafe_sessions import resuming
from tests.integration.clients import MESSAGE, Cafe
from tests.integration.nats_server import NatsServer
from tests.integration.places import Load, Place, same, settle
from tests.integration.rheos_client import SUBSCRIBE, Rheos
from tests.unit.brokers import QUERY, ready, subscribe
from tests.waiting import until

NAMES = (b"here", b"there")
BOB = bytes.fromhex("00b0b00000b0b00000b0b00000b0b000")
PROTOCOLS = ("--cafe-channels=1:here,2:there",)


class Reader:
    """Reads from ``client`` until its connection ends; ``one`` returns the next body."""

    def __init__(self, client: Any, one: Callable[[], bytes]) -> None:
        self.client = client
        self._one = one
        self.bodies: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                self.bodies.append(self._one().decode())

    def end(self) -> list[str]:
        """Return everything once the broker has closed the connection."""
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()
        self.client.close()
        return self.bodies


def cafe_reader(place: Place, name: bytes, channels: bytes = b"\x01\x02") -> Reader:
    """Return a subscriber of cafe."""
    client = Cafe.subscriber(place.broker, channels, name)

    def one() -> bytes:
        opcode, payload = client.receive()
        if opcode != MESSAGE:
            raise EOFError
        return payload[9:]

    return Reader(client, one)


def rheos_reader(place: Place) -> Reader:
    """Return a subscriber of rheos."""
    client = Rheos(place.broker.port("rheos")).use(BOB)
    acknowledged = 0

    def one() -> bytes:
        nonlocal acknowledged
        while client._peek(1) == b"\xac":
            client.acked()
            acknowledged += 1
        return client.message()[1]

    reader = Reader(client, one)
    for name in NAMES:
        client.send(client.request(SUBSCRIBE, name))
    until(lambda: acknowledged == len(NAMES), "all acknowledgments")
    return reader


def spot_reader(place: Place, subscribes: bool) -> Reader:
    """Return a DEALER of spot with an identity."""
    sock = socket.create_connection((HOST, place.broker.port("spot")), TIMEOUT)
    stream = sock.makefile("rb")
    requests = [subscribe(b"here"), subscribe(b"th*")] if subscribes else []
    sock.sendall(ready(b"DEALER", b"bob") + b"".join(requests) + QUERY)

    def frame() -> tuple[int, bytes]:
        head = stream.read(2)
        if len(head) < 2:
            raise EOFError
        return head[0], stream.read(head[1])

    def one() -> bytes:
        while True:
            frames = [frame()]
            while frames[-1][0] & 1:
                frames.append(frame())
            if frames[0][0] & 4:
                continue
            if frames[1][1] != b"\x01":
                answered.set()
                continue
            return frames[-1][1]

    answered = threading.Event()
    stream.read(64)
    reader = Reader(sock, one)
    # The requests before it are carried out.
    assert answered.wait(TIMEOUT)
    return reader


def both(start: Start, server: NatsServer, tmp_path: Path) -> tuple[Place, Place]:
    here, there = (
        Place(
            start,
            server.url,
            tmp_path / name.decode(),
            *PROTOCOLS,
            protocols=("cafe", "rheos", "spot"),
        )
        for name in NAMES
    )
    settle(here, there)
    return here, there


def check(
    before: Sequence[str],
    after: Sequence[str],
    loads: Sequence[Load],
    stored: Sequence[str],
    tail: bool,
) -> None:
    """Check what a client got before and after: all that was acknowledged, and nothing twice.

    With ``tail`` the last messages before may come again. A message that was delivered and not
    ``stored`` when the broker was killed does not.
    """
    assert max(Counter(before).values()) == max(Counter(after).values()) == 1
    got = {*before, *after}
    for load in loads:
        assert [body for body in load.done if body not in got] == []
        prefix = f"{load._place.name}-"
        own = [body for body in before if body.startswith(prefix) and body in set(stored)]
        again = [body for body in own if body in set(after)]
        # The last ones.
        assert again == own[len(own) - len(again) :]
        assert tail or not again


def wait_for(
    readers: Sequence[Reader], before: Sequence[Sequence[str]], bodies: Sequence[str]
) -> None:
    """Wait until each client has all of ``bodies``."""
    for reader, old in zip(readers, before, strict=True):
        missing = set(bodies) - set(old)
        try:
            until(lambda r=reader, m=missing: m <= set(r.bodies), "all bodies")  # type: ignore[misc]
        except AssertionError:
            raise AssertionError(sorted(missing - set(reader.bodies))) from None


def move_under_load(
    here: Place, there: Place, end: Callable[[], object]
) -> tuple[list[Load], list[list[str]], list[Reader]]:
    """Publish at both brokers, ``end`` the one ``here``, and continue its clients ``there``.

    Returns the loads, the bodies that each client had before, and the clients.
    """
    readers = [cafe_reader(here, b"bob"), rheos_reader(here), spot_reader(here, subscribes=True)]
    session = readers[0].client.session
    loads = [Load(here), Load(there)]
    for load in loads:
        load.wait(300)
    end()
    loads[0].end()
    before = [one.end() for one in readers]
    again = [
        cafe_reader(there, resuming(session), b""),
        rheos_reader(there),
        spot_reader(there, subscribes=False),
    ]
    loads[1].wait(300)
    return loads, before, again


def check_all(
    here: Place,
    there: Place,
    loads: list[Load],
    before: list[list[str]],
    again: list[Reader],
    tail: bool,
) -> None:
    """Check the bodies of each client at both brokers, and stop the second; see ``check``."""
    bodies = same(here, there)
    wait_for(again, before, bodies)
    there.broker.stop()
    after = [one.end() for one in again]
    for old, new in zip(before, after, strict=True):
        check(old, new, loads, bodies, tail)


def test_a_broker_is_killed_under_load(start: Start, server: NatsServer, tmp_path: Path) -> None:
    here, there = both(start, server, tmp_path)
    loads, before, again = move_under_load(here, there, here.broker.kill)
    here.begin()
    loads[1].wait(50)
    loads[1].end()
    check_all(here, there, loads, before, again, tail=True)


def test_a_broker_is_stopped_under_load(start: Start, server: NatsServer, tmp_path: Path) -> None:
    here, there = both(start, server, tmp_path)
    loads, before, again = move_under_load(here, there, here.broker.stop)
    loads[1].end()
    here.begin()
    check_all(here, there, loads, before, again, tail=False)
