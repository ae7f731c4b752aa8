"""The client library when the other side of a connection stops reading."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from pubsub.client import Uncertain
from tests.integration.broker import HOST, Broker
from tests.integration.client_shells import SHELLS, Connect, run

# More than the buffers of the sockets and of a transport hold.
COUNT, MESSAGE = 400, bytes(60_000)
_SMALL = 16 * 1024


@contextmanager
def stalling(port: int, stop: Event, lose: Event) -> Iterator[int]:
    """Yield the port of a relay whose first connection reads nothing from the client once ``stop``
    is set, and is lost when ``lose`` is set.
    """

    def pump(source: socket.socket, target: socket.socket, is_first: bool) -> None:
        try:
            while data := source.recv(_SMALL):
                if is_first and stop.is_set():
                    lose.wait()
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with end:
                end.close()

    def serve() -> None:
        is_first = True
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection((HOST, port))
            for source, target, first in ((near, far, is_first), (far, near, False)):
                Thread(target=pump, args=(source, target, first), daemon=True).start()
            is_first = False

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
        listener.bind((HOST, 0))
        listener.listen()
        thread = Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            lose.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("shell", SHELLS)
def test_messages_that_the_system_did_not_take_are_sent_later(broker: Broker, shell: str) -> None:
    stop, lose = Event(), Event()
    lost: list[int] = []

    def on_event(notice: object) -> None:
        if isinstance(notice, Uncertain):
            lost.append(notice.count)

    async def scenario(connect: Connect) -> int:
        async with connect(url, on_event=on_event, queue_bytes=2**26) as client:
            await client.publish("cafe/7", b"first", confirm=True)
            stop.set()
            for _ in range(COUNT):
                await client.publish("cafe/7", MESSAGE)
            lose.set()
            await client.flush()
            return sum(lost)

    with stalling(broker.port("cafe"), stop, lose) as port:
        url = f"cafe://{HOST}:{port}"
        uncertain = run(shell, scenario)
    assert 0 < uncertain < COUNT // 2
