"""libzmq sockets that reconnect with their identity get missed messages (spot §3.5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from tests.integration.broker import HOST, Broker, Start, listen
from tests.integration.cluster import Open, Socket, free_port, sockets, subscribe
from tests.waiting import until

EVENTS = ("--events", "--grant=$SYS/events")


@pytest.fixture
def connect() -> Iterator[Open]:
    """Yield a function that opens pyzmq sockets."""
    with sockets() as opener:
        yield opener


class Watch:
    """Follows the broker's events, so that tests wait for an event."""

    def __init__(self, connect: Open, broker: Broker) -> None:
        self._socket = connect(zmq.SUB, _endpoint(broker))
        self._socket.zmq.setsockopt(zmq.SUBSCRIBE, b"$SYS/events")

        def hears() -> bool:
            connect(zmq.DEALER, _endpoint(broker))
            return bool(self._socket.zmq.poll(50))

        # A SUB socket does not report when it is subscribed.
        until(hears, "the subscription")

    def wait(self, event: str, client: str) -> None:
        """Wait until this event has happened to a client of this name."""
        while True:
            _, data = self._socket.receive()
            found = json.loads(data)
            if found["event"] == event and found["client"].startswith(client):
                return


def _endpoint(broker: Broker) -> str:
    return f"tcp://{HOST}:{broker.port('spot')}"


@contextmanager
def _named(broker: Broker) -> Iterator[Socket]:
    """Return a connected DEALER with an identity."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as bare:
        bare.setsockopt(zmq.IDENTITY, b"bob")
        made = Socket(bare)
        bare.connect(_endpoint(broker))
        yield made


def _message(data: bytes) -> list[bytes]:
    return [b"", b"\x01", b"sync/t", data]


@pytest.mark.parametrize("store", ["memory", "log:history"])
def test_a_dealer_gets_missed_messages(start: Start, connect: Open, store: str) -> None:
    broker = start(*listen("spot"), *EVENTS, f"--store={store}")
    watch = Watch(connect, broker)
    writer = connect(zmq.DEALER, _endpoint(broker))
    for away in range(3):
        with _named(broker) as reader:
            if not away:
                subscribe(reader, b"sync/*")
            else:
                got = [reader.receive() for _ in range(1000)]
                assert got == [_message(b"%d.%d" % (away, n)) for n in range(1000)]
                writer.send(b"", b"\x01", b"sync/t", b"live")
                assert reader.receive() == _message(b"live")
        watch.wait("disconnect", "bob@")
        for number in range(1000):
            writer.send(b"", b"\x01", b"sync/t", b"%d.%d" % (away + 1, number))
        writer.query()


def test_after_a_restart_it_gets_new_messages(start: Start, connect: Open) -> None:
    options = (f"--listen=spot=tcp:{free_port()}:interface={HOST}", *EVENTS)
    first = start(*options, "--store=log:history")
    writer = connect(zmq.DEALER, _endpoint(first))
    with _named(first) as reader:
        subscribe(reader, b"sync/*")
        writer.send(b"", b"\x01", b"sync/t", b"before")
        assert reader.receive() == _message(b"before")
        first.stop()
        again = start(*options, "--store=log:history")
        writer = connect(zmq.DEALER, _endpoint(again))
        writer.send(b"", b"\x01", b"sync/t", b"meanwhile")
        writer.query()
        # The session ended with the process.
        subscribe(reader, b"sync/*")
        writer.send(b"", b"\x01", b"sync/t", b"after")
        assert reader.receive() == _message(b"after")
