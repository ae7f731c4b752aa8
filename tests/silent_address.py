"""An address that answers no attempt to connect, as that of a machine without power."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

SILENT_HOST = "127.0.0.2"
_FULL = 4


@contextmanager
def silent_address(port: int) -> Iterator[None]:
    """Have ``SILENT_HOST`` answer nothing at ``port``: the backlog of a socket is full."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind((SILENT_HOST, port))
        listening.listen(0)
        for _ in range(_FULL):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex((SILENT_HOST, port))
        yield


def name_with_addresses(patch: Callable[..., object], name: str, *hosts: str) -> None:
    """Have ``name`` stand for ``hosts``, in this order; ``patch`` replaces an attribute."""
    found: Callable[..., list[Any]] = socket.getaddrinfo

    def look_up(host: Any, *args: Any, **options: Any) -> list[Any]:
        asked = hosts if host == name else (host,)
        return [info for one in asked for info in found(one, *args, **options)]

    patch(socket, "getaddrinfo", look_up)
