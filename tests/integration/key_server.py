"""A server of an issuer's public keys, whose replies the test chooses."""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socket import socket

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from jwt.algorithms import ECAlgorithm

from tests.integration.broker import HOST, TIMEOUT
from tests.integration.cluster import free_port

Reply = Callable[["socket"], object]


class KeyServer:
    """Serves keys over TLS with ``context``, or over TCP without; ``reply`` may be replaced."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._keys: dict[str, object] = {}
        self.requests: list[bytes] = []
        self.reply: Reply = self.send_keys()
        # Ends the replies that wait.
        self.stopped = threading.Event()
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            """One request."""

            def handle(self) -> None:
                with suppress(OSError):
                    outer.answer(self.request, context)

        class Server(socketserver.ThreadingTCPServer):
            """Threads that do not keep the tests alive."""

            daemon_threads = True
            allow_reuse_address = True

        self._make: Callable[[int], socketserver.ThreadingTCPServer]
        self._make = lambda port: Server((HOST, port), Handler)
        self._server: socketserver.ThreadingTCPServer | None = None
        # An ephemeral port might be that of another connection when it is opened again.
        self.port = free_port()
        self.open()

    def open(self) -> None:
        """Listen, at the same port as before."""
        self._server = self._make(self.port)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def answer(self, raw: socket, context: ssl.SSLContext | None) -> None:
        """Read a request and send the reply."""
        raw.settimeout(TIMEOUT)
        sock = raw if context is None else context.wrap_socket(raw, server_side=True)
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            if not (data := sock.recv(4096)):
                return
            received += data
        self.requests.append(received)
        self.reply(sock)
        with suppress(OSError):
            sock.close()

    def token(self, kid: str, **claims: object) -> str:
        """Return a token signed with the key ``kid``."""
        return jwt.encode(claims, self._key(kid), "ES256", {"kid": kid})  # type: ignore[arg-type]

    def _key(self, kid: str) -> object:
        return self._keys.setdefault(kid, generate_private_key(SECP256R1()))

    def key_set(self, *kids: str) -> bytes:
        """Return the set with these keys."""
        keys = []
        for kid in kids:
            public = self._key(kid).public_key()  # type: ignore[attr-defined]
            keys.append({**ECAlgorithm.to_jwk(public, as_dict=True), "kid": kid})
        return json.dumps({"keys": keys}).encode()

    def send_keys(self, *kids: str) -> Reply:
        """Return a reply with the keys ``kids``."""
        return sending(self.key_set(*kids))


def sending(body: bytes, status: str = "200 OK", headers: str = "") -> Reply:
    """Return a reply with this body."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return lambda sock: sock.sendall(head.encode() + body)


@contextmanager
def key_server(certificate: str = "") -> Iterator[KeyServer]:
    """Run a server, with the certificate and key in this file."""
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    server = KeyServer(context)
    try:
        yield server
    finally:
        server.stopped.set()
        server.close()
