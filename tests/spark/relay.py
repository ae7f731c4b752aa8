"""A relay between a query and a broker that can end the query at a chosen request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import urllib3

_SKIPPED = frozenset({"transfer-encoding", "connection", "content-length", "date", "server"})


class Relay(ThreadingHTTPServer):
    """Passes requests on to ``target``.

    ``watch(path, answered)`` is called before a request is passed on, and again before its reply is
    passed back. If it returns true, the relay drops the request.
    """

    daemon_threads = True

    def __init__(self, target: str, watch: Callable[[str, bool], bool]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.watch = watch
        self.pool = urllib3.PoolManager(maxsize=8)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the relay."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self) -> None:
        """Stop accepting requests."""
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Relay

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        if self.server.watch(path, False):
            self.close_connection = True
            return
        answer = self.server.pool.request(
            self.command, f"{self.server.target}{self.path}", body=body, retries=False
        )
        if self.server.watch(path, True):
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _SKIPPED:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.data)))
        self.end_headers()
        self.wfile.write(answer.data)

    do_GET = do_POST = do_PUT = _pass

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""
