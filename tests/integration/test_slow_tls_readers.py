"""A subscriber that does not read over TLS: held or behind as over TCP, in bounded memory."""

from __future__ import annotations

import ssl
from pathlib import Path

from tests.integration.broker import Broker, Start
from tests.integration.clients import Cafe, handshake_sub
from tests.integration.slow_reading import (
    FLOOD,
    MIB,
    SIZE,
    flood,
    numbered,
    read_numbers,
    send_until_blocked,
)
from tests.integration.streams import serve
from tests.integration.threads import background

BUFFER = 16 * 1024
# For the bound of the queue, and the garbage of a busy interpreter.
ROOM = 48 * MIB


def stuck(broker: Broker) -> Cafe:
    """Return a subscriber over TLS with a small window that does not read."""
    client = Cafe(broker.ports("cafe")[1], BUFFER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client.sock = context.wrap_socket(client.sock)
    client.shake(handshake_sub(b"\x01", b"stuck"))
    return client


def test_auto_continues_from_the_history(start: Start, tmp_path: Path) -> None:
    options = ("--store=memory", "--slow-seconds=1", "--slow-bytes=4M")
    broker, _ = serve(start, "cafe", tmp_path, ("tcp", "tls"), *options)
    with stuck(broker) as slow, Cafe.publisher(broker) as source:
        before = broker.memory()
        flood(source)
        # The history is in memory; it alone has the messages that were not read.
        assert broker.memory("VmHWM") - before < FLOOD * SIZE + ROOM
        assert read_numbers(slow, FLOOD) == list(range(FLOOD))
        source.send(*numbered(FLOOD, 1))
        assert read_numbers(slow, 1) == [FLOOD]
        assert slow.sync() == source.sync() == []
    broker.stop()
    assert broker.totals()["dropped"] == 0


def test_pause_holds_the_publisher(start: Start, tmp_path: Path) -> None:
    options = ("--slow-consumer=pause", "--slow-bytes=4M", "--slow-seconds=600")
    broker, _ = serve(start, "cafe", tmp_path, ("tcp", "tls"), *options)
    with stuck(broker) as slow, Cafe.publisher(broker) as source:
        before = broker.memory()
        number, rest = send_until_blocked(source)
        assert broker.memory("VmHWM") - before < ROOM
        with background(read_numbers, slow, FLOOD) as all_of_slow:
            source.send(rest)
            flood(source, number + 1)
        assert all_of_slow.result() == list(range(FLOOD))
    broker.stop()
    assert broker.totals()["dropped"] == 0
