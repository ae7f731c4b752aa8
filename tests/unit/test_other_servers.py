"""Commands whose URL is that of another HTTP server than a broker's."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from tests.unit.command_case import CommandCase

PAGE, ARRAY, OTHER = b"<html>hello</html>", b"[]", b'{"version": {"number": "8.1"}}'
COMMANDS = {
    ("topics", "list"): "items",
    ("topics", "rotate", "orders", "--queue-key=k1"): "kept",
    ("sessions",): "items",
    ("status",): "ready",
    ("tail", "orders"): "next",
    ("replay", "orders", "--output=-"): "first",
}


class _Handler(BaseHTTPRequestHandler):
    """Answers every request alike, as the server of a web page does."""

    body = b""
    status = 200

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Write nothing."""


class OtherServerTests(CommandCase):
    def setUp(self) -> None:
        super().setUp()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        thread = Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        for step in (thread.join, self.server.server_close, self.server.shutdown):
            self.addCleanup(step)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def refuse(self, body: bytes, command: tuple[str, ...], why: str) -> None:
        _Handler.body = body
        error = self.one_line(*command, "--url", self.url)
        start = f"pubsub: {self.url}: the reply is not one of a broker: {why}; check the URL"
        assert error.startswith(start), error

    def test_replies_that_are_not_json(self) -> None:
        for command in COMMANDS:
            self.refuse(PAGE, command, "not JSON")
        self.refuse(b"[" * 100_000, ("status",), "not JSON")

    def test_replies_in_json(self) -> None:
        for command, missing in COMMANDS.items():
            self.refuse(ARRAY, command, "not a JSON object")
            self.refuse(OTHER, command, f"it has no '{missing}'")

    def test_errors_that_are_nested_too_deeply(self) -> None:
        self.patch(_Handler, "status", 500)  # type: ignore[no-untyped-call]
        _Handler.body = b"[" * 100_000
        error = self.one_line("status", "--url", self.url)
        assert error.startswith(f"pubsub: {self.url}: HTTP 500 "), error

    def test_nothing_is_deleted(self) -> None:
        self.refuse(PAGE, ("topics", "delete", "orders", "--yes"), "HTTP 200")
        self.refuse(PAGE, ("disconnect", "0" * 16), "HTTP 200")

    def test_items_without_members(self) -> None:
        self.refuse(b'{"items": [{}], "next": null}', ("topics", "list"), "it has no 'name'")
