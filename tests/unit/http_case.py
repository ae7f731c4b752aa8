"""The base class of tests of the pipeline with an HTTP server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from twisted.trial.unittest import SynchronousTestCase

from pubsub.pipeline.histories.http_history import HttpHistory
from pubsub.pipeline.histories.retry import Retry
from pubsub.pipeline.options.connector_options import Credentials

TOKEN = "header.very-secret.signature"


class Time:
    """A clock that advances while something sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def retry(self, seconds: float = 60) -> Retry:
        return Retry(seconds, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Scripted(BaseHTTPRequestHandler):
    """Sends the replies that the test has queued."""

    protocol_version = "HTTP/1.1"
    server: Server

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.server.requests.append((self.command, self.path, self.rfile.read(length)))
        self.server.tokens.append(self.headers.get("Authorization"))
        status, body, missing = self.server.replies.pop(0)
        self.send_response(status)
        # A length beyond the sent bytes makes a truncated stream.
        self.send_header("Content-Length", str(len(body) + missing))
        self.send_header("Pubsub-Stop", "10")
        self.send_header("Pubsub-Epoch", "1-a")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = bool(missing)

    do_GET = do_POST = do_PUT = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A server on a free port."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Scripted)
        self.requests: list[tuple[str, str, bytes]] = []
        self.tokens: list[str | None] = []
        self.replies: list[tuple[int, bytes, int]] = []

    def add_reply(self, status: int, content: object = None, missing: int = 0) -> None:
        """Queue a reply; ``missing`` bytes that its Content-Length announces are not sent."""
        if isinstance(content, bytes):
            body = content
        else:
            body = b"" if content is None else json.dumps(content).encode()
        self.replies.append((status, body, missing))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class HttpCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.server = Server()
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.history = HttpHistory(self.server.url, Credentials(TOKEN))
