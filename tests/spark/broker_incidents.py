"""Incidents for the clients of a broker with ``--events``, and the outcome of its run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pubsub.client.history_client import HistoryError
from tests.integration.broker import Broker, Start
from tests.integration.clients import Cafe, Client, Nsd, publish
from tests.integration.fast_client import Fast, create, make_token, rotate, subscribe
from tests.spark.http_brokers import PROTOCOLS, client_of, serve
from tests.spark.source_messages import publish as publish_all
from tests.spark.source_messages import publishers

PAYLOADS = (b"12345", b"678", b"9")
FORGED = 7
# Malformed frames, and the bytes of them that an event shows.
MALFORMED = {
    "cafe": bytes.fromhex("feca0103000000070568"),
    "nsd": b'{"_class":',
    "rheos": bytes(40),
    "fast": b"\x99abc" + bytes(40),
    "spot": b"GET / HTTP/1.1\r\n\r\n" + bytes(64),
}
_FLOOD, _SIZE = 16, 64 * 1024
_OPTIONS = (
    "--events", "--slow-consumer=disconnect", "--slow-bytes=512K", "--resume-window=0",
    "--durability=cafe/9=none",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BrokerRun:
    """The run of a broker that has ended: its dropped messages, its start and its end."""

    dropped: int
    began: datetime
    ended: datetime


def run_incidents(start: Start, path: Path, secret: Path) -> BrokerRun:
    """Run a broker, cause every incident to its clients, and stop it."""
    began = datetime.now(UTC)
    broker = serve(start, path, f"--secret-file={secret}", *_OPTIONS)
    for protocol, client in publishers(broker, secret).items():
        publish_all(client, "cafe/1" if protocol == "cafe" else protocol, *PAYLOADS)
    _cause_refusals(broker, secret)
    for protocol in PROTOCOLS:
        end = b"\n" if protocol == "nsd" else b""
        with Client(broker.port(protocol)) as stranger:
            stranger.send(MALFORMED[protocol] + end)
            stranger.sock.shutdown(1)
            while stranger.sock.recv(4096):
                pass
    _cause_eviction(broker)
    with Cafe.publisher(broker, client=b"faithful") as faithful:
        faithful.send(publish(1, b"x"))
        assert faithful.sync() == []
        broker.stop()
    return BrokerRun(broker.totals()["dropped"], began, datetime.now(UTC))


def _cause_refusals(broker: Broker, secret: Path) -> None:
    """Use forged tokens, each over its own connection; rotate a token; read without permission."""
    old, new = (make_token(secret, "--sub=ada", key=key) for key in ("k1", "k2"))
    with Fast.to(broker, create(old), rotate(old, b"k2"), subscribe(old)) as ada:
        assert ada.error() == (2, 2)
        ada.sync(new)
    for _ in range(FORGED):
        with Fast.to(broker, subscribe(b"x.y.z")) as eve:
            assert eve.error() == (2, 1)
    with Nsd.to(broker) as nsd:
        assert nsd.refused("Open", "$SYS/events") == "NOT AUTHORIZED: $SYS/events"
    with pytest.raises(HistoryError, match="403"):
        next(client_of(broker).read(0, topics=["$SYS/events"]))


def _cause_eviction(broker: Broker) -> None:
    """Subscribe with a client that does not read."""
    stuck = Cafe.subscriber(broker, b"\x09", b"stuck", receive_buffer=4096)
    with stuck, Cafe.publisher(broker, 9, b"flood") as source:
        while "stuck@" not in broker.output:
            source.send(publish(9, bytes(_SIZE)) * _FLOOD)
            assert source.sync() == []
