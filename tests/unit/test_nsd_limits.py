"""nsd's limits: long lines, memory, silence."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import CONNECTION_BYTES
from tests.unit import nsd_lines as wire
from tests.unit.nsd_lines import NOTHING, SUCCESS, Nsd

MIB = 1024 * 1024


class LineTests(SynchronousTestCase):
    """nsd §2.1: lines of up to 4 MiB"""

    def line(self, size: int) -> bytes:
        """Return an OpenRequest of this number of bytes."""
        start = b'{"_class":"OpenRequest","identity":"ada","x":"'
        return start + b"x" * (size - len(start) - 2) + b'"}'

    def dribble(self, data: bytes) -> tuple[Nsd, bytes, bool]:
        """Send ``data`` in chunks of 64 KiB; return the reply and whether the connection closes."""
        nsd = Nsd()
        client = nsd.connect("nsd")
        for at in range(0, len(data), 65_536):
            client.send(data[at : at + 65_536])
        return nsd, client.take(), client.closed

    def test_a_line_of_4_mib_is_accepted(self) -> None:
        for end in (b"\n", b"\r\n"):
            line = self.line(4 * MIB) + end
            nsd = Nsd()
            client = nsd.connect("nsd")
            client.send(line)
            assert client.take() == SUCCESS
            assert self.dribble(line)[1:] == (SUCCESS, False)
            assert nsd.broker.memory.used < CONNECTION_BYTES + 10_000

    def test_one_byte_more_is_refused(self) -> None:
        shown = self.line(4 * MIB).decode()[:200]
        for line in (self.line(4 * MIB + 1) + b"\n", self.line(4 * MIB + 1) + wire.open_("x")):
            answer = wire.error(f"INVALID REQUEST: [{shown}]")
            nsd = Nsd()
            client = nsd.connect("nsd")
            client.send(line + wire.open_("ada"))
            assert (client.take(), client.closed) == (answer, True)
            assert self.dribble(line)[1:] == (answer, True)
            assert nsd.broker.counters.refusals == {("nsd", "line-too-long"): 1}

    def test_one_byte_more_is_refused_without_its_end(self) -> None:
        """Also if the rest of the line was read before the last byte."""
        nsd = Nsd()
        client = nsd.connect("nsd")
        client.send(self.line(4 * MIB))
        assert (client.take(), client.closed) == (b"", False)
        client.send(b"x")
        assert client.take().startswith(b'{"_class":"ErrorResponse"')
        assert client.closed

    def test_a_line_of_4_mib_is_accepted_with_any_split_of_its_end(self) -> None:
        nsd = Nsd()
        client = nsd.connect("nsd")
        client.send(self.line(4 * MIB) + b"\r")
        assert client.take() == b""
        client.send(b"\n")
        assert client.take() == SUCCESS

    def test_a_partial_line_is_charged_until_its_end(self) -> None:
        nsd = Nsd()
        client = nsd.connect("nsd")
        start = nsd.broker.memory.used
        client.send(b"{")
        for _ in range(10):
            client.send(b"x" * 50_000)
        assert nsd.broker.memory.used == start + 500_001
        assert nsd.broker.memory.holders == {client.protocol}
        client.send(b"\n{")
        assert nsd.broker.memory.used == start
        client.send(b"x" * 50_000)
        client.stream.lose()
        assert nsd.broker.memory.used == start - CONNECTION_BYTES
        assert nsd.broker.memory.holders == set()

    def test_the_quotation_of_a_long_line_is_cut_between_characters(self) -> None:
        _, answer, closed = self.dribble("ü".encode() * (2 * MIB + 1))
        assert (json.loads(answer)["error"], closed) == (f"INVALID REQUEST: [{'ü' * 200}]", True)


class SenderTests(SynchronousTestCase):
    """nsd §4.2: senders of up to 255 bytes"""

    def sent(self, sender: str) -> tuple[Nsd, bytes]:
        """The response to a publish by ``sender``."""
        nsd = Nsd()
        client = nsd.connect("nsd")
        client.send(wire.open_("ada"))
        client.take()
        client.send(
            wire.publish("ada", "").replace(b'"from": "ada"', b'"from": "%b"' % sender.encode())
        )
        answer = client.take()
        client.send(wire.get("ada"))
        assert (client.take() == NOTHING) is (answer != SUCCESS)
        return nsd, answer

    def test_255_bytes_are_a_sender(self) -> None:
        for sender in ("", "x" * 255, "ü" * 127):
            assert self.sent(sender)[1] == SUCCESS

    def test_longer_ones_are_refused_and_counted(self) -> None:
        for sender, size in (("x" * 256, 256), ("ü" * 128, 256), ("x" * 4_000_000, 4_000_000)):
            nsd, answer = self.sent(sender)
            assert answer == wire.error(f"SENDER TOO LONG: {size} bytes")
            assert nsd.broker.counters.refusals == {("nsd", "sender-too-long"): 1}
            assert nsd.broker.memory.used < CONNECTION_BYTES + 10_000


class StopTests(SynchronousTestCase):
    """nsd §8, and limits that close the connection"""

    def test_a_client_that_waits_for_a_slow_disk_is_not_idle(self) -> None:
        nsd = Nsd(idle_timeout=2)
        nsd.start()
        nsd.write_history(1, 10)
        page: Deferred[object] = Deferred()
        read = nsd.store.read
        self.patch(nsd.store, "read", lambda *given, joined: page)  # type: ignore[no-untyped-call]
        client = nsd.connect("nsd")
        client.send(wire.get("ada"))
        nsd.advance(4)
        page.callback(self.successResultOf(read(0, None, 1000)))
        nsd.pump()
        assert len(wire.bodies(client.take())) == 1
        assert not client.closed
        assert nsd.broker.counters.refusals == {}
        nsd.advance(4)
        assert client.closed

    def test_there_is_no_goodbye(self) -> None:
        nsd = Nsd(idle_timeout=5)
        nsd.start()
        client = nsd.connect("nsd")
        nsd.advance(8)
        assert (client.take(), client.closed) == (b"", True)

    def test_at_the_memory_bound_a_connection_is_refused_as_busy(self) -> None:
        nsd = Nsd(top={"history": "0", "max-memory": CONNECTION_BYTES})
        nsd.connect("nsd")
        client = nsd.connect("nsd")
        assert (client.take(), client.closed) == (wire.error("BROKER BUSY"), True)

    def test_at_the_memory_bound_an_open_is_refused_as_busy(self) -> None:
        nsd = Nsd(top={"history": "0", "max-memory": CONNECTION_BYTES + 1})
        client = nsd.connect("nsd")
        client.send(wire.open_("ada") + wire.open_("ben"))
        assert client.take() in (SUCCESS + wire.error("BROKER BUSY"), wire.error("BROKER BUSY") * 2)
        assert not client.closed

    def test_at_the_memory_bound_what_is_known_goes_on(self) -> None:
        nsd = Nsd()
        client = nsd.connect("nsd")
        client.send(wire.open_("ada"))
        assert client.take() == SUCCESS
        nsd.broker.memory.limit = nsd.broker.memory.used
        client.send(wire.open_("ada") + wire.subscribe("ada", "ada") + wire.open_("ben"))
        assert client.take() == SUCCESS * 2 + wire.error("BROKER BUSY")
