"""A broker that does not exist: the answers that the dashboard asks for, of 10,000 rows.

``python -m tests.browser.fake_broker PORT`` serves it with the dashboard, for work on the page.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from pubsub.http_api.dashboard_files import POLICY
from tests.browser.fake_rows import PROTOCOLS, Row, lists, micros, status

DASHBOARD = Path(__file__).parents[2] / "pubsub" / "http_api" / "dashboard"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


class Handler(BaseHTTPRequestHandler):
    """Answers requests; everything may be seen unless ``secret`` is set."""

    protocol_version = "HTTP/1.1"
    secret = ""
    rows: ClassVar[dict[str, list[Row]]] = {}

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if url.path == "/" or url.path.startswith("/dashboard/"):
            self._file(url.path.removeprefix("/dashboard") if url.path != "/" else "/index.html")
        elif self.secret and self.headers["Authorization"] != f"Bearer {self.secret}":
            self._json({"error": "bad-token", "detail": "the token is not valid"}, 401)
        else:
            self._api([unquote(part) for part in url.path.split("/")[2:]], asked)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Pubsub-Start", "400")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._json({"offset": 91_222_101, "messages": 1, "level": "stored", "epoch": "1"})

    def do_DELETE(self) -> None:
        self._json({"left": True})

    def _api(self, parts: list[str], asked: dict[str, str]) -> None:
        name = parts[0]
        if name == "status":
            self._stream(self._statuses()) if "follow" in asked else self._json(status())
        elif parts[-1] == "messages":
            self._stream(self._messages(parts[1], "follow" in asked))
        elif name == "bounds":
            self._json({"first": 0, "next": 1000, "epoch": "1"})
        elif name == "store":
            self._json(
                status()["stats"]["store"]
                | {"retention": {"max_bytes": 2**38, "max_age": "30 d"}, "damage": []}
            )
        elif len(parts) == 2:
            found = [
                row for row in self.rows[name] if parts[1] in (row.get("name"), row.get("mark"))
            ]
            self._json(
                found[0] if found else {"error": "unknown", "detail": "there is no such row"},
                200 if found else 404,
            )
        else:
            self._list(self.rows[name], asked)

    def _list(self, rows: list[Row], asked: dict[str, str]) -> None:
        pattern = asked.get("match", "*")
        if pattern != "*":
            rows = [
                row for row in rows if fnmatchcase(str(row.get("name", row.get("client"))), pattern)
            ]
        start, limit = int(asked.get("after", 0)), int(asked.get("limit", 100))
        more = str(start + limit) if start + limit < len(rows) else None
        self._json({"items": rows[start : start + limit], "next": more})

    def _statuses(self) -> Iterator[Row]:
        while True:
            yield status()
            time.sleep(1)

    def _messages(self, topic: str, follow: bool) -> Iterator[Row]:
        for number in range(2**40):
            if not follow and number == 1500:
                return
            value = json.dumps(
                {
                    "device": number % 100,
                    "celsius": round(20 + 5 * random.random(), 2),
                    "tags": ["hall", "north"],
                    "at": {"x": 1.5, "y": number},
                }
            )
            yield {
                "offset": 400 + number,
                "timestamp": micros(time.time()),
                "topic": topic,
                "protocol": PROTOCOLS[number % 6],
                "key": "ZGV2aWNlLTAwMDAx",
                "value": value,
                "message_id": "-",
                "headers": [],
            }
            if follow and number > 30:
                time.sleep(0.4)

    def _stream(self, rows: Iterator[Row]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for row in rows:
                data = json.dumps(row).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _file(self, path: str) -> None:
        file = DASHBOARD / path.lstrip("/")
        self._send(200, file.read_bytes(), TYPES[file.suffix])

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": POLICY,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class FakeBroker:
    """The server, in threads of its own."""

    def __init__(self, port: int = 0, secret: str = "") -> None:
        self.rows = lists()
        handler = type("Handler", (Handler,), {"secret": secret, "rows": self.rows})
        self.server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


if __name__ == "__main__":
    FakeBroker(int(sys.argv[1])).server.serve_forever()
