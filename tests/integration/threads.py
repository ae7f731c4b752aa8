"""Threads that run a client while the test does something else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from tests.integration.broker import TIMEOUT
from tests.integration.clients import Client

_P = ParamSpec("_P")
_R = TypeVar("_R")


@contextlib.contextmanager
def background(call: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> Iterator[Future[_R]]:
    """Run ``call`` in a thread; the context waits for its end and raises its error."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call, *args, **kwargs)
        yield future
        future.result(TIMEOUT)


@contextlib.contextmanager
def feeding(client: Client, data: bytes) -> Iterator[None]:
    """Send ``data`` repeatedly until the context ends."""
    enough = threading.Event()

    def feed() -> None:
        while not enough.is_set():
            client.sock.sendall(data)

    with background(feed):
        try:
            yield
        finally:
            enough.set()
