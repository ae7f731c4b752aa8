"""Clients in memory over TLS: the broker's end is a ``TlsStream`` on a simulated TCP transport."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import trustme
from twisted.internet.interfaces import IProtocolFactory
from twisted.internet.task import Clock

from pubsub.broker.listeners.tls_settings import TLS_SETTINGS
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.settings import read_all
from pubsub.wire.connection import Connection
from pubsub.wire.server_tls import ServerTls, load_tls
from pubsub.wire.tls_factory import TlsFactory
from pubsub.wire.tls_stream import TlsStream
from tests.unit.streams import Client, Stream

V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@cache
def server_tls() -> ServerTls:
    """Return the TLS of a listener with a certificate of its own."""
    issued = trustme.CA().issue_cert("broker.example")
    with TemporaryDirectory() as directory:
        path = Path(directory, "all.pem")
        path.touch(mode=0o600)
        path.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
        found = load_tls(read_all(TLS_SETTINGS, {"tls-cert": str(path)}))
    assert found is not None
    return found


@cache
def client_context(version: ssl.TLSVersion) -> ssl.SSLContext:
    """Return the context of a client of this version, which trusts every broker."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    return context


def tls_end(
    factory: IProtocolFactory,
    stream: Stream,
    clock: Clock,
    refuse: Callable[[str, str], object] = lambda reason, client: None,
    memory: MemoryBudget | None = None,
    tls: Callable[[], ServerTls] = server_tls,
    admit: Callable[[str], bool] | None = None,
    frame_seconds: Callable[[], float] = lambda: 0.0,
) -> TlsStream:
    """Return the broker's end of a new connection over ``stream``; no handshake was done."""
    made = TlsFactory(tls, factory, refuse, clock, memory, admit, frame_seconds)
    end: TlsStream = made.buildProtocol(cast("Any", stream.getPeer()))
    stream.protocol = cast("Any", end)
    end.makeConnection(cast("Any", stream))
    return end


class TlsClient(Client):
    """A client over TLS whose handshake is done; ``stream`` is the transport below TLS.

    What has arrived is decrypted by ``take``.
    """

    def __init__(
        self,
        factory: IProtocolFactory,
        stream: Stream,
        clock: Clock,
        version: ssl.TLSVersion = V13,
        tls: Callable[[], ServerTls] = server_tls,
    ) -> None:
        self.stream = stream
        self._clock = clock
        listener: Any = factory.listener  # type: ignore[attr-defined]
        refuse, memory = listener.refuse, listener.memory
        self.end = tls_end(
            factory, stream, clock, refuse, memory, tls, None, lambda: listener.frame_seconds
        )
        self.protocol = cast("Connection", self.end.wrappedProtocol)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = client_context(version).wrap_bio(self._incoming, self._outgoing)
        self._ended = False
        self._shake()

    def _shake(self) -> None:
        for _ in range(5):
            try:
                self._tls.do_handshake()
                return
            except ssl.SSLWantReadError:
                self._transfer()
            finally:
                self._flush()
            if self.stream.closed:
                return
        raise AssertionError("the handshake is not done")

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self.stream.feed(data)

    def _transfer(self) -> None:
        self._flush()
        self._incoming.write(bytes(self.stream.received))
        self.stream.received.clear()

    def records(self, data: bytes) -> bytes:
        """Return ``data`` as TLS records, which are not sent."""
        if data:
            self._tls.write(data)
        return self._outgoing.read()

    def send(self, data: bytes) -> None:
        """Send ``data`` as one read of the transport below, and end the tick."""
        if data:
            self.stream.feed(self.records(data))
        self._clock.advance(0)

    def end_output(self) -> None:
        """Send close_notify."""
        with suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self._flush()

    def take(self) -> bytes:
        """Return the bytes received since the last call; answer a close_notify."""
        self._transfer()
        pieces: list[bytes] = []
        with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while piece := self._tls.read(2**20):
                pieces.append(piece)
            if not self._ended:
                self._ended = True
                self.end_output()
        return b"".join(pieces)

    @property
    def closed(self) -> bool:
        """True if the client can see that the broker has closed the connection."""
        return self._ended or self.stream.closed


def over_tls(
    version: ssl.TLSVersion, tls: Callable[[], ServerTls] = server_tls
) -> Callable[..., Any]:
    """Return a function that connects clients of a ``House`` over TLS; see ``House.attach``."""

    def attach(factory: IProtocolFactory, stream: Stream, clock: Clock) -> Client:
        return TlsClient(factory, stream, clock, version, tls)

    return attach
