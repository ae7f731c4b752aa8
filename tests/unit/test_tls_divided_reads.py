"""A protocol over TLS that reads few bytes at a time, as HTTP does between bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twisted.internet.interfaces import IPushProducer, ITCPTransport
from twisted.trial.unittest import SynchronousTestCase

from tests.unit.cafe_wire import PING, PONG
from tests.unit.tls_house import publisher, serve
from tests.unit.tls_streams import TlsClient
from tests.unit.web import HOME, WebHouse, WebStream

SIZE = 1000
DATA = bytes(range(250)) * 10


class DividedReadTests(SynchronousTestCase):
    """``bufferSize`` of a ``TlsStream``"""

    def setUp(self) -> None:
        self.house = serve()
        client = publisher(self.house)
        assert isinstance(client, TlsClient)
        self.client, self.end = client, client.end
        self.got: list[bytes] = []
        self.patch(client.protocol, "dataReceived", self.got.append)  # type: ignore[no-untyped-call]
        self.end.bufferSize = SIZE

    def feed(self, data: bytes) -> None:
        self.client.stream.feed(self.client.records(data))

    def test_a_piece_in_a_tick(self) -> None:
        self.feed(DATA)
        assert self.got == [DATA[:SIZE]]
        assert self.client.stream.paused
        # The clock of the tests runs all calls that are due, one after another.
        self.house.turn()
        assert self.got == [DATA[:SIZE], DATA[SIZE : 2 * SIZE], DATA[2 * SIZE :]]
        assert not self.client.stream.paused
        self.feed(b"next")
        assert self.got[-1] == b"next"

    def test_pieces_of_exactly_the_size(self) -> None:
        self.feed(DATA[: 2 * SIZE])
        self.house.pump(4)
        assert self.got == [DATA[:SIZE], DATA[SIZE : 2 * SIZE]]
        assert not self.client.stream.paused

    def test_a_protocol_that_reads_more_now_gets_all(self) -> None:
        got: list[bytes] = []

        def receive(data: bytes) -> None:
            got.append(data)
            self.end.bufferSize = 128 * 1024

        self.client.protocol.dataReceived = receive  # type: ignore[method-assign]
        self.feed(DATA)
        assert got == [DATA[:SIZE], DATA[SIZE:]]
        assert not self.client.stream.paused

    def test_a_client_that_is_held_meanwhile(self) -> None:
        self.feed(DATA)
        self.end.pauseProducing()
        self.house.pump(4)
        assert self.got == [DATA[:SIZE]]
        assert self.client.stream.paused
        self.end.resumeProducing()
        self.house.pump(4)
        assert b"".join(self.got) == DATA
        assert not self.client.stream.paused

    def test_a_client_that_is_held_with_the_last_piece(self) -> None:
        def receive(data: bytes) -> None:
            self.got.append(data)
            if len(self.got) == 3:
                self.end.pauseProducing()

        self.client.protocol.dataReceived = receive  # type: ignore[method-assign]
        self.feed(DATA)
        self.house.pump(4)
        assert b"".join(self.got) == DATA
        assert self.client.stream.paused
        self.end.resumeProducing()
        assert not self.client.stream.paused

    def test_a_client_that_is_held_and_released_within_the_tick(self) -> None:
        self.feed(DATA)
        self.end.pauseProducing()
        self.end.resumeProducing()
        assert self.client.stream.paused
        self.house.pump(4)
        assert b"".join(self.got) == DATA
        assert not self.client.stream.paused

    def test_the_end_of_the_output_behind_it(self) -> None:
        ended: list[int] = []
        application = self.client.protocol
        self.patch(application, "readConnectionLost", lambda: ended.append(len(self.got)))  # type: ignore[no-untyped-call]
        self.feed(DATA)
        self.client.end_output()
        assert not ended
        self.house.pump(4)
        assert ended == [3]

    def test_a_connection_that_is_lost_meanwhile(self) -> None:
        self.feed(DATA)
        self.client.stream.lose()
        self.house.pump(4)
        assert self.got == [DATA[:SIZE]]

    def test_a_connection_that_is_aborted_meanwhile(self) -> None:
        self.feed(DATA)
        self.end.abortConnection()  # type: ignore[no-untyped-call]
        self.house.pump(4)
        assert self.got == [DATA[:SIZE]]


class LargeReadTests(SynchronousTestCase):
    """Protocols that read as much as there is"""

    def test_all_at_once(self) -> None:
        house = serve()
        client = publisher(house)
        assert isinstance(client, TlsClient)
        client.stream.feed(client.records(PING * 10_000))
        house.pump(2000)
        assert client.take() == PONG * 10_000


class HttpTests(SynchronousTestCase):
    """Pipelined requests"""

    def test_few_are_read_at_a_time(self) -> None:
        house = WebHouse()
        request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        stream = WebStream(house.clock, HOME, (ITCPTransport, IPushProducer))
        client = TlsClient(house.factory, cast("Any", stream), house.clock)
        channel = cast("Any", client.protocol)
        sizes: list[int] = []
        again: list[bool] = []
        receive = channel.dataReceived

        def note(data: bytes) -> None:
            if not again:
                sizes.append(len(data))
            receive(data)

        def not_noted(method: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: Any) -> None:
                again.append(True)
                method(*arguments)
                again.pop()

            return call

        self.patch(channel, "dataReceived", note)  # type: ignore[no-untyped-call]
        # What has waited for its turn is not another read.
        for name in ("begin_next", "_handle_postponed"):
            self.patch(channel, name, not_noted(getattr(channel, name)))  # type: ignore[no-untyped-call]
        client.send(request * 300)
        assert client.take().count(b"HTTP/1.1 200") == 300
        assert max(sizes) == 1024
        assert sum(sizes) == 300 * len(request)
        assert not stream.paused
