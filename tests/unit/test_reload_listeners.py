"""Listeners that a reload adds, moves and removes, in a reactor in memory."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import trustme
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort
from twisted.internet.task import deferLater
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.plugin import installed_protocols
from pubsub.server.configuration import CommandLine, Config, merge
from pubsub.server.reload import LiveConfiguration, Reloader
from pubsub.server.tap import make_broker, tuning_of
from pubsub.wire.connection import Connection
from tests.unit import cafe_wire as wire
from tests.unit.cafe_wire import GAP
from tests.unit.fakes import scratch
from tests.unit.raising import raised
from tests.unit.streams import Client, Stream, logged
from tests.unit.tokens import KEY


class Reactor(MemoryReactorClock):
    """A reactor that cannot listen on the ports in ``taken``.

    With ``closes_later`` a port is closed in the next tick, as those of a real one are.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.taken: set[int] = set()
        self.closes_later = False

    def callFromThread(self, call: Any, *arguments: Any) -> None:
        self.callLater(0, call, *arguments)

    def listenTCP(self, port: int, factory: Any, *rest: Any, **named: Any) -> IListeningPort:
        if port in self.taken:
            raise CannotListenError(None, port, OSError(98, "Address already in use"))
        found: IListeningPort = super().listenTCP(  # type: ignore[no-untyped-call]
            port, factory, *rest, **named
        )
        if self.closes_later:
            cast(Any, found).stopListening = lambda: self._close(port)
            self.taken.add(port)
        return found

    def _close(self, port: int) -> Deferred[None]:
        return deferLater(self, 0, self.taken.discard, port)


def config(*listen: dict[str, Any], **top: Any) -> Config:
    """Return the configuration of a file with these listeners."""
    named = {name.replace("_", "-"): value for name, value in top.items()}
    # The ports of the fake reactor are at 0.0.0.0.
    own = {"store": "memory", "allow-anonymous": True, "listen": list(listen)}
    document = {**own, **named}
    return merge(installed_protocols(), CommandLine(), document)


def cafe(port: int, **settings: Any) -> dict[str, Any]:
    return {"protocol": "cafe", "port": port, **settings}


class ListenerCase(SynchronousTestCase):
    """A broker that listens with cafe on port 1."""

    def setUp(self) -> None:
        self.reactor = Reactor()
        first = config(cafe(1))
        self.broker = make_broker(first, self.reactor)
        self.live = LiveConfiguration(self.broker, first, self.reactor, tuning_of(first))
        self.broker.startService()
        self.addCleanup(self.stop)
        self.lines = logged(self)

    def stop(self) -> None:
        stopped = self.broker.stopService()
        self.reactor.advance(11)
        self.successResultOf(stopped)

    def served(self) -> list[str]:
        return [f"{one.protocol} {one.endpoint.split(':')[1]}" for one in self.broker.listeners]

    def client(self, at: int, handshake: bytes) -> Client:
        """Return a client of the listener that was the ``at``-th to listen."""
        factory = self.reactor.tcpServers[at][1]
        address = IPv4Address("TCP", "192.0.2.1", 4000 + len(self.broker.clients))
        connection = cast(Connection, factory.buildProtocol(address))
        client = Client(connection, Stream(self.reactor, address), self.reactor)
        client.send(handshake)
        self.reactor.advance(GAP)
        return client

    def apply(self, new: Config) -> None:
        self.successResultOf(self.live.apply(new))


class AdditionTests(ListenerCase):
    """A new listener"""

    def test_it_listens_and_the_other_is_untouched(self) -> None:
        alice = self.client(0, wire.hs_pub(1))
        self.apply(config(cafe(1), {"protocol": "nsd", "port": 2}))
        assert self.served() == ["cafe 1", "nsd 2"]
        assert [port for port, *_ in self.reactor.tcpServers] == [1, 2]
        assert not alice.closed
        assert "reload: listener nsd tcp:2:interface=127.0.0.1 is added" in self.lines

    def test_a_port_in_use_is_reported_and_tried_again_by_the_next_reload(self) -> None:
        self.reactor.taken = {2}
        self.apply(config(cafe(1), {"protocol": "nsd", "port": 2}, {"protocol": "nsd", "port": 3}))
        assert self.served() == ["cafe 1", "nsd 3"]
        (line,) = [line for line in self.lines if "cannot listen" in line]
        assert line == (
            "reload: nsd: cannot listen on tcp:2:interface=127.0.0.1: Address already in use; "
            "stop the program that listens there, or choose another port; "
            "correct it and reload again"
        )
        obstacles = [
            one.text for one in self.broker.readiness.obstacles() if one.kind == "listening"
        ]
        assert len(obstacles) == 1
        assert obstacles[0] in line
        self.reactor.taken = set()
        self.apply(config(cafe(1), {"protocol": "nsd", "port": 2}, {"protocol": "nsd", "port": 3}))
        assert self.served() == ["cafe 1", "nsd 3", "nsd 2"]
        assert not list(self.broker.readiness.obstacles())

    def test_a_listener_that_cannot_be_made_changes_nothing(self) -> None:
        new = config(cafe(1), {"protocol": "fast", "port": 2}, max_topics=5)
        error = raised(ConfigurationError, self.live.apply, new)
        assert str(error).startswith("fast: no master secret is configured")
        assert self.served() == ["cafe 1"]
        assert self.broker.topics.limit == 100_000

    def test_a_protocol_that_needs_a_secret_is_added_with_it(self) -> None:
        path = scratch(self) / "key"
        path.write_bytes(KEY)
        path.chmod(0o600)
        listen = [cafe(1), {"protocol": "fast", "port": 2}]
        self.apply(config(*listen, secret_file=str(path)))
        assert self.served() == ["cafe 1", "fast 2"]

    def test_the_history_must_fit_into_max_memory(self) -> None:
        error = raised(ConfigurationError, self.live.apply, config(cafe(1), max_memory="1M"))
        assert str(error).startswith("max-memory: the history alone needs ")

    def test_the_share_of_the_history_is_that_of_the_start(self) -> None:
        reserved = self.broker.memory.aside
        smaller = config(cafe(1), max_memory=reserved, history="1000,1M")
        error = raised(ConfigurationError, self.live.apply, smaller)
        assert str(error).startswith(f"max-memory: the history alone needs {reserved} ")
        assert not self.broker.memory.full


class RemovalTests(ListenerCase):
    """A listener that the file no longer has"""

    def test_its_clients_are_drained_and_others_stay(self) -> None:
        self.apply(config(cafe(1), cafe(2)))
        leaving, staying = (
            self.client(0, wire.hs_sub(b"\x01")),
            self.client(1, wire.hs_sub(b"\x01")),
        )
        leaving.take(), staying.take()
        alice = self.client(1, wire.hs_pub(1))
        alice.send(wire.publish(1, b"queued"))
        self.apply(config(cafe(2)))
        assert self.served() == ["cafe 2"]
        received = [opcode for opcode, _ in wire.frames(leaving.take())]
        # The message that was accepted, then DISCONNECT.
        assert received == [0x13, 0x04]
        assert not staying.closed

    def test_a_client_that_does_not_close_is_aborted(self) -> None:
        client = self.client(0, wire.hs_sub(b"\x01"))
        client.stream.stop_reading()
        self.apply(config(cafe(2)))
        self.reactor.pump([1] * 9)
        assert len(self.broker.clients) == 1
        self.reactor.pump([1] * 2)
        assert len(self.broker.clients) == 0
        assert "connections did not close in time: 1" in self.lines


class MoveTests(ListenerCase):
    """A listener with another address"""

    def test_sessions_are_resumed_at_the_new_one(self) -> None:
        bob = self.client(0, wire.hs_sub(b"\x01", b"bob"))
        (session,) = (s for s in self.broker.sessions._sessions.values() if s.client == b"bob")
        bob.stream.lose()
        self.apply(config(cafe(2)))
        alice = self.client(1, wire.hs_pub(1))
        alice.send(wire.publish(1, b"missed"))
        again = self.client(1, wire.hs_sub(b"", wire.resume(b"bob", session.id)))
        assert b"missed" in again.take()

    def test_a_change_that_needs_a_restart_makes_another_listener(self) -> None:
        before = self.broker.listeners[0]
        self.apply(config(cafe(2, channels="7")))
        assert self.broker.listeners[0] is not before
        assert "cafe/7" in self.broker.topics
        self.apply(config(cafe(3)))
        # The first one, which was kept.
        assert self.broker.listeners == [before]
        assert before.endpoint == "tcp:3:interface=127.0.0.1"


class HastyTests(ListenerCase):
    """Reloads, of which the second begins before the first has closed its ports"""

    def setUp(self) -> None:
        super().setUp()
        self.reactor.closes_later = True
        self.apply(config({"protocol": "nsd", "port": 2}))

    def test_signals_at_once(self) -> None:
        done: list[str] = []
        reloader = Reloader(
            self.live, lambda: config(cafe(3)), self.reactor, done=lambda _: done.append("done")
        )
        for _ in range(3):
            reloader.reload()
        self.reactor.pump([0] * 4)
        assert self.served() == ["cafe 3"]
        assert [one for one in self.reactor.tcpServers if one[0] == 3] == self.reactor.tcpServers[
            2:
        ]
        assert not any("cannot listen" in line for line in self.lines)
        assert "listening" not in {one.kind for one in self.broker.readiness.obstacles()}
        # The second and the third are one.
        assert done == ["done"] * 2

    def test_a_program_waits(self) -> None:
        applied = self.live.apply(config(cafe(3)))
        problem = raised(ConfigurationError, self.live.apply, config(cafe(4)))
        assert "has not closed its ports yet" in str(problem)
        self.assertNoResult(applied)  # type: ignore[no-untyped-call]
        self.reactor.pump([0] * 2)
        assert self.successResultOf(applied) == (0, 0)
        assert self.served() == ["cafe 3"]
        self.live.apply(config(cafe(4)))
        self.reactor.pump([0] * 2)
        assert self.served() == ["cafe 4"]


class ReportTests(ListenerCase):
    """The log"""

    def test_an_expired_certificate_is_reported_at_once(self) -> None:
        directory, end = scratch(self), datetime(2001, 2, 3, tzinfo=UTC)
        issued = trustme.CA().issue_cert(
            "a.example", not_before=datetime(2000, 1, 1, tzinfo=UTC), not_after=end
        )
        path = directory / "a.pem"
        path.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
        path.chmod(0o600)
        pem = str(path)
        for _ in range(2):
            self.apply(config(cafe(1, **{"tls-cert": pem}), cafe(2, **{"tls-cert": pem})))
        expected = "cafe: the certificate of a.example has expired on 2001-02-03; "
        assert len([line for line in self.lines if line.startswith(expected)]) == 2

    def test_changes_that_need_a_restart_are_named_each_time(self) -> None:
        line = "reload: tuning stays on until a restart makes it off"
        for count in (1, 2):
            self.apply(config(cafe(1), tuning=False))
            assert self.lines.count(line) == count
        assert self.broker.configuration.content["broker"]["tuning"] == "on"

    def test_changes_have_old_and_new_values(self) -> None:
        self.apply(config(cafe(1, **{"max-connections": 5}), max_topics=3))
        assert "reload: max-topics is 3, and was 100000" in self.lines
        where = "cafe tcp:1:interface=127.0.0.1"
        assert f"reload: {where}: max-connections is 5, and was 0" in self.lines
