"""The transports that send at once, on real sockets without a reactor."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import main
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pubsub.wire.direct_transport import DirectTransport
from pubsub.wire.light_transport import serve
from tests.unit.direct_links import Link, Producer


class Failing:
    """A socket whose sends fail on request."""

    def __init__(self, real: socket.socket, problem: OSError) -> None:
        self._real = real
        self.problem = problem

    def send(self, data: bytes) -> int:
        raise self.problem

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Sending(SynchronousTestCase):
    """Tests of both transports; the subclasses create them."""

    make: Callable[..., Any]

    def link(self) -> Link:
        link = Link(type(self).make)
        self.addCleanup(link.close)
        return link

    def test_data_is_sent_at_once_if_the_kernel_takes_it(self) -> None:
        link = self.link()
        link.transport.write(b"hello")
        assert not link.waits
        link.read()
        assert link.got == b"hello"

    def test_received_data_is_passed_to_the_protocol(self) -> None:
        link = self.link()
        got: list[bytes] = []
        link.protocol.dataReceived = got.append  # type: ignore[method-assign, assignment]
        assert link.transport.doRead() is None, "nothing is there"
        link.theirs.send(b"hello")
        assert link.transport.doRead() is None
        assert got == [b"hello"]
        link.theirs.close()
        assert link.transport.doRead() is main.CONNECTION_DONE

    def test_a_reset_loses_the_connection(self) -> None:
        link = self.link()
        link.transport.write(b"never read")
        link.theirs.close()
        assert link.transport.doRead() is main.CONNECTION_LOST

    def test_data_that_the_kernel_does_not_take_is_buffered_in_order(self) -> None:
        link = self.link()
        data = b"".join(b"%07d\n" % number for number in range(100_000))
        link.transport.write(data)
        assert bool(link.waits)
        link.transport.write(b"second ")
        link.transport.write(b"third")
        assert link.finish() == data + b"second third"
        assert not link.waits
        link.transport.write(b" at once again")
        link.read()
        assert link.got.endswith(b"third at once again")

    def test_over_128_kib_the_producer_is_paused_and_later_resumed(self) -> None:
        link = self.link()
        producer = Producer()
        link.transport.registerProducer(producer, True)
        while not link.waits:
            link.transport.write(b"x" * 1000)
        assert producer.calls == []
        link.transport.write(b"x" * 128_000)
        link.transport.write(b"x" * 4_000)
        assert producer.calls[:1] == ["pause"]
        assert set(producer.calls) == {"pause"}
        link.finish()
        assert producer.calls[-1] == "resume"

    def test_one_large_write_pauses_the_producer_too(self) -> None:
        link = self.link()
        producer = Producer()
        link.transport.registerProducer(producer, True)
        link.transport.write(b"x" * 1_000_000)
        assert producer.calls == ["pause"]
        assert len(link.finish()) == 1_000_000
        assert producer.calls == ["pause", "resume"]

    def test_nothing_overtakes_buffered_data(self) -> None:
        link = self.link()
        link.transport.write(b"x" * 1_000_000)
        link.read()
        link.transport.write(b"last")
        link.read()
        assert b"last" not in link.got
        assert link.finish().endswith(b"xlast")

    def test_buffered_data_is_sent_after_a_half_close(self) -> None:
        link = self.link()
        link.transport.write(b"x" * 100_000)
        link.transport.loseWriteConnection()
        assert len(link.finish()) == 100_000
        assert link.theirs.recv(1) == b""
        link.transport.write(b"more")
        assert not link.waits

    def test_buffered_data_is_sent_after_a_close(self) -> None:
        link = self.link()
        link.transport.write(b"x" * 100_000)
        link.transport.loseConnection()
        assert len(link.finish()) == 100_000

    def test_nothing_is_sent_after_an_abort(self) -> None:
        link = self.link()
        link.transport.write(b"x" * 100_000)
        link.transport.abortConnection()
        link.read()
        # In the same tick: bytes before it are missing.
        link.transport.write(b"last")
        link.read()
        assert link.got == b"x" * len(link.got)
        assert 0 < len(link.got) < 100_000

    def test_a_lost_peer_raises_no_error(self) -> None:
        link = self.link()
        link.theirs.close()
        for _ in range(3):
            link.transport.write(b"hello")
        assert link.transport.doWrite() is main.CONNECTION_LOST
        link.transport.connectionLost(Failure(ConnectionDone()))
        link.transport.write(b"hello")

    def test_empty_data_is_not_sent(self) -> None:
        link = self.link()
        link.transport.write(b"")
        assert not link.waits
        link.transport.writeSequence([b"a", b"", b"b"])
        assert link.finish() == b"ab"


class DirectServerTests(Sending):
    """DirectServer"""

    make = DirectTransport

    def test_a_failed_send_is_repeated_by_the_reactor(self) -> None:
        for number in (errno.EPIPE, errno.ECONNRESET, errno.ENOBUFS):
            link = self.link()
            problem = OSError(number, "no")
            link.transport.socket = Failing(link.ours, problem)
            link.transport.write(b"hello")
            assert link.waits
            result = link.transport.doWrite()
            if number == errno.ENOBUFS:
                assert result is None
            else:
                assert result is main.CONNECTION_LOST


class OrderTests(SynchronousTestCase):
    """Either transport"""

    @given(
        st.sampled_from((DirectTransport, serve)),
        st.lists(st.tuples(st.integers(0, 40_000), st.booleans(), st.booleans()), max_size=12),
    )
    def test_the_order_is_kept_for_any_interleaving(
        self, make: Callable[..., Any], steps: list[tuple[int, bool, bool]]
    ) -> None:
        link = Link(make)
        sent = b""
        for number, (size, reads, writes) in enumerate(steps):
            data = bytes([number]) * size
            link.transport.write(data)
            sent += data
            if reads:
                link.read()
            if writes and link.waits:
                link.transport.doWrite()
        assert link.finish() == sent
        link.close()


class LightServerTests(Sending):
    """LightServer"""

    make = serve


# A base class, which must not be collected itself.
del Sending
