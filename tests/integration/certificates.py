"""Certificates of authorities that the tests make, and TLS connections with them."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import trustme

from tests.integration.broker import HOST, TIMEOUT

NAME = "localhost"
Result = TypeVar("Result")
_HOUR = datetime.timedelta(hours=1)


class Authority:
    """An authority, and the files that it writes into ``directory``."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._directory = directory
        self.file = self._write(name, self._ca.cert_pem.bytes())

    def _write(self, name: str, content: bytes) -> str:
        path = self._directory / f"{name}.pem"
        # Another process that reads the file finds the old one or the new one.
        fresh = path.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.chmod(0o600)
        fresh.rename(path)
        return str(path)

    def issue(self, file: str, *names: str, common_name: str = "", expired: bool = False) -> str:
        """Write a certificate for ``names`` and its key into one file; return its path."""
        ends = datetime.datetime.now(datetime.UTC) - _HOUR if expired else None
        issued = self._ca.issue_cert(
            *names, common_name=common_name or None, not_before=ends and ends - _HOUR,
            not_after=ends,
        )  # fmt: skip
        return self._write(file, issued.private_key_and_cert_chain_pem.bytes())

    def client(self, own: str = "") -> ssl.SSLContext:
        """Return the context of a client with the certificate ``own`` and this authority."""
        context = ssl.create_default_context(cafile=self.file)
        if own:
            context.load_cert_chain(own)
        return context


def connect(
    port: int, context: ssl.SSLContext, name: str = NAME, receive_buffer: int = 0
) -> ssl.SSLSocket:
    """Return a connection whose handshake is done."""
    sock = socket.socket()
    sock.settimeout(TIMEOUT)
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect((HOST, port))
    try:
        return context.wrap_socket(sock, server_hostname=name)
    except BaseException:
        sock.close()
        raise


class TlsSocket:
    """A socket with TLS whose output can be ended before its input.

    ``SSLSocket.unwrap`` drops the bytes that it receives before the reply.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str = NAME) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._step(self._tls.do_handshake)

    def __enter__(self) -> TlsSocket:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _step(self, call: Callable[[], Result]) -> Result:
        """Return the result of ``call`` once there is enough input for it."""
        while True:
            try:
                return call()
            except ssl.SSLWantReadError:
                self._flush()
                if data := self._sock.recv(65_536):
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            finally:
                self._flush()

    def _flush(self) -> None:
        # A UNIX socket that was closed refuses even nothing.
        if data := self._outgoing.read():
            self._sock.sendall(data)

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        for start in range(0, len(view), 2**20):
            self._tls.write(view[start : start + 2**20])
            self._flush()

    def recv(self, size: int) -> bytes:
        try:
            return self._step(lambda: self._tls.read(size))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def end_output(self) -> None:
        """Send close_notify, and the end of the stream below."""
        self.notify_close()
        self._sock.shutdown(socket.SHUT_WR)

    def notify_close(self) -> None:
        """Send close_notify alone."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self._flush()

    def settimeout(self, seconds: float) -> None:
        self._sock.settimeout(seconds)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()


class Stream(Protocol):
    """The methods that a socket and a ``TlsSocket`` have."""

    def __enter__(self) -> Stream: ...

    def __exit__(self, *exc: object) -> None: ...

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...

    def settimeout(self, seconds: float, /) -> None: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


def half_close(stream: Stream) -> None:
    """End the output of ``stream``, which can still receive."""
    if isinstance(stream, TlsSocket):
        stream.end_output()
    else:
        assert isinstance(stream, socket.socket)
        stream.shutdown(socket.SHUT_WR)
