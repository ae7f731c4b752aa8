"""Requests to the HTTP API beside the connections of a client, and replies that are none."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import ClientClosed, ConnectFailed
from pubsub.client.api_requests import ApiRequests
from pubsub.client.client_tls import TlsOptions
from pubsub.client.client_url import parse_url
from pubsub.client.http_query import read_reply
from pubsub.client.runtime import Cancel, Observer
from pubsub.client.twisted_runtime import TwistedRuntime
from tests.unit.client_runtime import Work
from tests.unit.raising import raised

HEAD = b"HTTP/1.1 200 OK\r\n"
ROW = b'{"topic": "t", "value": "x", "key": "", "timestamp": 1, "offset": 1}\n'
WHOLE = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(ROW), ROW)


class OneReply(TwistedRuntime):
    """Answers each request with ``raw``, and closes the connection; None is no answer."""

    def __init__(self, raw: bytes | None) -> None:
        self.clock = Clock()
        super().__init__(self.clock)
        self._raw = raw

    def connect(self, host: str, port: int, tls: object, observer: Observer) -> Cancel:
        def answer() -> None:
            if self._raw is None:
                return
            observer.received(self._raw)
            observer.lost("the broker closed the connection")

        return self.call_later(0, answer)


def api_of(runtime: OneReply) -> ApiRequests:
    return ApiRequests(runtime, parse_url("http://localhost"), TlsOptions(), lambda: None, 5.0)


def error_of(raw: bytes) -> str:
    """Return the text of the error of a request that is answered with ``raw``."""
    runtime = OneReply(raw)
    work = Work(api_of(runtime).call("GET", "/v1/history"))
    runtime.clock.advance(0)
    runtime.clock.advance(0)
    return str(raised(ConnectFailed, work.result))


class ReplyTests(SynchronousTestCase):
    """read_reply"""

    def test_every_beginning_of_a_reply(self) -> None:
        reply = read_reply(WHOLE)
        assert reply is not None
        assert (reply.status, reply.body) == (200, ROW)
        for size in range(len(WHOLE)):
            found = read_reply(WHOLE[:size])
            # The last chunk is there, and its trailers are not.
            assert found is None or found.body == ROW, size

    def test_a_body_whose_end_is_not_known(self) -> None:
        for more in (b"\r\n", b"Content-Length: x\r\n\r\n", b"Content-Length: -1\r\n\r\n"):
            assert read_reply(HEAD + more + ROW) is None
        assert read_reply(HEAD + b"Content-Length: %d\r\n\r\n{}" % 10**30) is None
        empty = read_reply(b"HTTP/1.1 204 No Content\r\n\r\n")
        assert empty is not None
        assert empty.body == b""


class ForeignReplyTests(SynchronousTestCase):
    """Errors for replies that are none of HTTP"""

    def test_they_name_the_mistake(self) -> None:
        assert "the port speaks cafe, not http" in error_of(b"\xfe\xca\x01")
        assert "TLS" in error_of(b"\x15\x03\x03\x00\x02\x02\x46")
        assert "not one of HTTP; check the URL" in error_of(b"SSH-2.0-x\r\n")

    def test_a_reply_that_is_cut_off(self) -> None:
        for raw in (b"", b"HT", HEAD, WHOLE[:-9]):
            assert error_of(raw).endswith("the broker closed the connection"), raw


class ClosedTests(SynchronousTestCase):
    """ApiRequests.close"""

    def test_requests_end(self) -> None:
        runtime = OneReply(None)
        api = api_of(runtime)
        works = [Work(api.call("GET", path)) for path in ("/v1/bounds", "/v1/history")]
        runtime.clock.advance(0)
        api.close("it is over")
        runtime.clock.advance(0)
        works.append(Work(api.call("GET", "/v1/history")))
        for work in works:
            assert str(raised(ClientClosed, work.result)) == "it is over"
        assert not runtime.clock.getDelayedCalls()
