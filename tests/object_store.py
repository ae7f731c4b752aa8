"""An object store for tests: the S3 of moto, in a process of its own.

In this process it could not reply while deltalake, which keeps Python's lock, waits for it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pubsub.pipeline.tables.location import Location, StorageOptions

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

BUCKET = "archives"
SECRET = "nobody-may-read-this"
_ROOT = Path(__file__).parents[1]


class ObjectStore:
    """A running store with an empty bucket, or with ``refuse`` one that refuses credentials."""

    def __init__(self, kind: str = "serve") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.object_store", kind],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        if kind == "serve":
            request = urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")
            urllib.request.urlopen(request).close()

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def location(self, path: str) -> Location:
        """Return the location ``path`` in the bucket."""
        return Location.parse(f"s3://{BUCKET}/{path}", store_options(self.url))


def store_options(url: str) -> StorageOptions:
    """Return the options for the store at ``url``."""
    return (
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", "tests"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_REGION", "us-east-1"),
        ("max_retries", "1"),
        ("retry_timeout", "5s"),
    )


class _Refusing(BaseHTTPRequestHandler):
    """Replies to each request as a store does to wrong credentials."""

    def refuse(self) -> None:
        body = b"<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>"
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = refuse

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _start(kind: str) -> int:
    """Start a server in a thread and return its port."""
    if kind == "refuse":
        refusing = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        return int(refusing.server_address[1])
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ: WSGIEnvironment, start: StartResponse) -> Any:
        # Otherwise several writers can create one object under the condition that there is none.
        with lock:
            return application(environ, start)

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_port)


if __name__ == "__main__":
    print(_start(sys.argv[1]), flush=True)
    # The end of the parent ends this process too.
    sys.stdin.read()
    os._exit(0)
