"""A way to a server at which tests can cause failures of the network."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.integration.broker import HOST


class Wire:
    """A socket in between, which can end what goes over it, or stop without a sign."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._near: set[socket.socket] = set()
        self._is_cut = False
        self._flowing = threading.Event()
        self._flowing.set()
        self.holds = threading.Event()
        """Set once bytes for the server wait here, after ``stop``."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = None if self._is_cut else self._connect()
                if far is None:
                    near.close()
                    continue
                self._open += [near, far]
                self._near.add(near)
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _connect(self) -> socket.socket | None:
        """Return a connection to the server; None while it does not run."""
        try:
            return socket.create_connection((HOST, self._target))
        except OSError:
            return None

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if target not in self._near and not self._flowing.is_set():
                    self.holds.set()
                self._flowing.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """End all connections, and make no new ones."""
        self._is_cut = True
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Make connections again."""
        self._is_cut = False

    def stop(self) -> None:
        """Pass nothing on; what arrives waits here and in the sockets."""
        self._flowing.clear()

    def go_on(self) -> None:
        """End ``stop``."""
        self._flowing.set()

    def close(self) -> None:
        """End everything."""
        self._flowing.set()
        self._listener.close()
        for one in self._open:
            one.close()


@contextmanager
def wire_to(port: int) -> Iterator[Wire]:
    """Listen for connections to ``port`` until the end of the context."""
    made = Wire(port)
    try:
        yield made
    finally:
        made.cut()
        made.close()
