"""The blocking publishers with a real broker: a message is stored, or there is an error."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pubsub.errors import PubSubError
from pubsub.protocols.cafe.client import CafePublisher
from pubsub.protocols.fast.client import FastPublisher
from pubsub.protocols.nsd.client import NsdPublisher
from pubsub.protocols.rheos.client import RheosPublisher
from pubsub.protocols.spot.client import SpotPublisher
from pubsub.wire.blocking_publisher import (
    WINDOW_MESSAGES,
    Address,
    BlockingPublisher,
    ConnectionBroken,
    NotPublished,
)
from tests.integration.broker import HOST, Broker, Start, listen
from tests.integration.clients import Nsd
from tests.integration.fast_client import make_secret, make_token

PROTOCOLS = ("cafe", "nsd", "rheos", "spot", "fast")
TOPIC = {"cafe": "cafe/7", "fast": "keyed"}
_READERS = itertools.count()
LARGEST = {"cafe": 1_048_567, "nsd": 1_000_000, "rheos": 65_535, "spot": 1 << 20, "fast": 1 << 20}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return make_secret(tmp_path / "secret")


@pytest.fixture
def broker(start: Start, secret: Path) -> Broker:
    return start(
        *listen(*PROTOCOLS), f"--secret-file={secret}", "--nsd-max-body=2000000", "--grant=*"
    )


def address(broker: Broker, protocol: str) -> Address:
    return Address(HOST, broker.port(protocol))


def make(broker: Broker, protocol: str, secret: Path) -> BlockingPublisher:
    """Return a publisher for a protocol's listener."""
    where = address(broker, protocol)
    if protocol == "fast":
        return FastPublisher(where, make_token(secret).decode())
    kinds: dict[str, Callable[[Address], BlockingPublisher]] = {
        "cafe": CafePublisher,
        "nsd": NsdPublisher,
        "rheos": RheosPublisher,
        "spot": SpotPublisher,
    }
    return kinds[protocol](where)


def publish(client: BlockingPublisher, topic: str, *payloads: bytes) -> None:
    """Publish these messages and finish."""
    for payload in payloads:
        client.add(topic, payload)
    client.finish()


def stored(broker: Broker, topic: str) -> list[str]:
    """Return the stored payloads of a topic."""
    reader = f"reader {next(_READERS)}"
    with Nsd.to(broker) as client:
        client.do("Subscribe", reader, channel=topic)
        return [message["body"] for message in client.get(reader)]


@contextmanager
def refused(words: str) -> Iterator[None]:
    with pytest.raises(NotPublished, match=words):
        yield


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("what", ["windows", "sizes"])
def test_finished_messages_are_stored(
    broker: Broker, secret: Path, protocol: str, what: str
) -> None:
    """More than one window, in order; the largest payloads, and empty ones."""
    large = LARGEST[protocol]
    sent = (
        [f"{protocol} {number}" for number in range(WINDOW_MESSAGES + 500)]
        if what == "windows"
        else ["", "x" * large, "", "y" * large]
    )
    topic = TOPIC.get(protocol, "plain")
    with make(broker, protocol, secret) as client:
        for text in sent:
            client.add(topic, text.encode())
        client.finish()
        assert stored(broker, topic) == sent


@pytest.mark.parametrize("protocol", ["nsd", "rheos", "spot", "fast"])
def test_unusual_names_and_many_topics(broker: Broker, secret: Path, protocol: str) -> None:
    names = ["a,b", 'q"uote', "sl/ash", "\N{PARTY POPPER}", "x" * 255, *map(str, range(50))]
    with make(broker, protocol, secret) as client:
        for name in names:
            client.add(name, name.encode())
        client.finish()
    for name in names:
        assert stored(broker, name) == [name]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_concurrent_publishers(broker: Broker, secret: Path, protocol: str) -> None:
    """Like Spark's executors."""
    topic = TOPIC.get(protocol, "plain")
    failed: list[BaseException] = []

    def publish(number: int) -> None:
        try:
            with make(broker, protocol, secret) as client:
                for index in range(300):
                    client.add(topic, b"%d-%d" % (number, index))
                client.finish()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(stored(broker, topic)) == sorted(f"{n}-{i}" for n in range(4) for i in range(300))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_publish_without_permission_is_an_error(
    start: Start, secret: Path, protocol: str
) -> None:
    broker = start(*listen(*PROTOCOLS), f"--secret-file={secret}", "--allow-publish=allowed/*")
    with make(broker, protocol, secret) as client, pytest.raises(NotPublished) as caught:
        publish(client, TOPIC.get(protocol, "plain"), b"no")
    assert protocol in str(caught.value)


def test_inexpressible_messages_are_errors(broker: Broker, secret: Path) -> None:
    with make(broker, "cafe", secret) as client:
        with refused("no channel"):
            client.add("plain", b"")
        with refused("the limit is 1048567"):
            client.add("cafe/1", bytes(1_048_568))
    with make(broker, "rheos", secret) as client, refused("65536 bytes are too many"):
        client.add("plain", bytes(65_536))
    with make(broker, "nsd", secret) as client, refused("not UTF-8"):
        client.add("plain", b"\xff")
    with make(broker, "spot", secret) as client, refused("the limit is 1048576"):
        client.add("plain", bytes(1_048_577))


def test_fast_requires_the_key_of_the_topic(broker: Broker, secret: Path) -> None:
    with make(broker, "fast", secret) as client:
        publish(client, "keyed", b"mine")
    other = make_token(secret, key="k2").decode()
    with FastPublisher(address(broker, "fast"), other) as client, refused("WRONG_QUEUE_KEY"):
        publish(client, "keyed", b"not mine")
    with FastPublisher(address(broker, "fast"), "a.b.c") as client, refused("BAD_TOKEN"):
        client.add("keyed", b"nobody's")
    assert stored(broker, "keyed") == ["mine"]


def test_fast_reports_why_the_connection_was_closed(broker: Broker, secret: Path) -> None:
    with make(broker, "fast", secret) as client, refused("TOO_LARGE"):
        publish(client, "keyed", bytes((1 << 20) + 1))


def test_a_publish_over_fast_changes_no_flags(broker: Broker, secret: Path) -> None:
    """A publish to an existing topic sends no CREATE."""
    with make(broker, "fast", secret) as client:
        publish(client, "keyed", b"1")
    publish_only = make_token(secret, permission="publish").decode()
    with FastPublisher(address(broker, "fast"), publish_only) as client:
        publish(client, "keyed", b"2")
    assert stored(broker, "keyed") == ["1", "2"]


def test_rheos_in_the_other_layouts(start: Start) -> None:
    broker = start(*listen("rheos", "nsd"), "--rheos-layout=original", "--rheos-checksum=crc32")
    with RheosPublisher(address(broker, "rheos"), "original", checksum=True) as client:
        publish(client, "plain", b"x" * 70_000)
    assert stored(broker, "plain") == ["x" * 70_000]


@pytest.mark.parametrize("protocol", ["cafe", "nsd", "rheos", "spot", "fast"])
def test_another_protocol_at_the_port_is_an_error(
    broker: Broker, secret: Path, protocol: str
) -> None:
    """The error comes at once, without a timeout."""
    wrong = {"cafe": "spot", "nsd": "cafe", "rheos": "cafe", "spot": "cafe", "fast": "cafe"}
    there = make(broker, protocol, secret)
    there._address = address(broker, wrong[protocol])
    with there as client, pytest.raises(PubSubError):
        publish(client, TOPIC.get(protocol, "plain"), b"x")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_broker_that_is_gone_is_an_error(broker: Broker, secret: Path, protocol: str) -> None:
    with make(broker, protocol, secret) as client:
        publish(client, TOPIC.get(protocol, "plain"), b"x")
        broker.kill()
        with pytest.raises(ConnectionBroken):
            publish(client, TOPIC.get(protocol, "plain"), b"y")
