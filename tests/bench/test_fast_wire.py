"""The fast wire of the load generator, against the protocol in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import BenchError
from tests.bench.wires import PREPARATIONS, WIRES
from tests.unit.streams import Client, House

WIRE = WIRES["fast"]


@pytest.fixture
def house(tmp_path: Path) -> House:
    for name, content in PREPARATIONS["fast"].files.items():
        path = tmp_path / name
        path.touch(mode=0o600)
        path.write_bytes(content)
    return House({"fast": {}}, top={"secret-file": str(tmp_path / "secret")})


def welcomed(house: House, hello: bytes) -> Client:
    """Return a client whose hello got the reply that the wire expects."""
    client = house.connect("fast")
    client.send(hello)
    answer = client.take()
    assert not WIRE.welcomed(answer[:-1])
    assert WIRE.welcomed(answer)
    return client


@pytest.mark.parametrize("topic", [0, 7])
@pytest.mark.parametrize("payload", [16, 64, 1 << 20])
def test_publications_are_delivered(house: House, topic: int, payload: int) -> None:
    subscriber = welcomed(house, WIRE.subscriber_hello([topic], "bench-subscriber-1"))
    publisher = welcomed(house, WIRE.publisher_hello([topic], "bench-publisher-1"))
    publication, delivery = WIRE.publication(topic, payload), WIRE.delivery(topic, payload)
    publisher.send((publication.before + bytes(payload)) * 3)
    assert publisher.take() == b""
    assert subscriber.take() == (delivery.before + bytes(payload)) * 3
    assert len(publication.before) + payload == publication.size


def test_a_refusal_is_reported() -> None:
    with pytest.raises(BenchError, match="answered fast requests with 7f 01 05"):
        WIRE.welcomed(bytes.fromhex("7f 01 05 00 00 00 00"))
