"""Records the bytes of real connections: a proxy before a listener, which needs no privileges."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.dissector.played import Segment
from tests.integration.broker import HOST, TIMEOUT

_READ = 65_536


class Recorder:
    """A proxy before the listener at ``port``. ``streams`` has the segments of each connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self.streams: list[list[Segment]] = []
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = [self._server]
        self._start(self._accept)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(TIMEOUT)
        for each in self._sockets:
            each.close()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        # The socket is shut at the end.
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                broker = socket.create_connection((HOST, self._target))
                segments: list[Segment] = []
                self.streams.append(segments)
                for end in (client, broker):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._sockets.append(end)
                self._start(self._pump, client, broker, segments, True)
                self._start(self._pump, broker, client, segments, False)

    @staticmethod
    def _pump(
        source: socket.socket, target: socket.socket, segments: list[Segment], from_client: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_READ):
                # Recorded first: the other side may answer before this returns.
                segments.append((from_client, data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
