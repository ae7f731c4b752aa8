"""The sizes of the reads of an HTTP connection."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.wire.direct_transport import READ_BYTES
from tests.unit.web import WebHouse

_GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
_POST = b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"


class ReadTests(SynchronousTestCase):
    """Heads are read in small pieces, as one read could have thousands of requests"""

    def test_a_read_has_few_requests(self) -> None:
        client = WebHouse().connect()
        assert client.stream.bufferSize // len(_GET) < 30
        client.send(_GET)
        assert client.stream.bufferSize // len(_GET) < 30

    def test_a_body_is_read_in_large_pieces(self) -> None:
        client = WebHouse().connect()
        small = client.stream.bufferSize
        client.send(_POST + b"x" * 100)
        assert client.stream.bufferSize == READ_BYTES
        client.send(b"x" * 4900)
        assert client.stream.bufferSize == small
