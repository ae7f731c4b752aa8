"""The publisher of the sink with a real broker: a message is stored, or there is an error."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pubsub.client import ClientError
from pubsub.pipeline.options.connector_options import Credentials
from pubsub.pipeline.publishing.publisher_urls import PublisherFactory
from pubsub.pipeline.publishing.sink_publisher import WINDOW_MESSAGES, SinkPublisher
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


def make(
    broker: Broker,
    protocol: str,
    secret: Path,
    query: str = "",
    token: str | None = None,
    timeout: float = 120.0,
) -> SinkPublisher:
    """Return a publisher for a protocol's listener."""
    url = f"{protocol}://{HOST}:{broker.port(protocol)}"
    if protocol == "fast" and token is None:
        token = make_token(secret).decode()
    return PublisherFactory(url + query, {}, Credentials(token), timeout)()


def publish(client: SinkPublisher, topic: str, *payloads: bytes) -> None:
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
    with pytest.raises(ClientError, match=words):
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
    with make(broker, protocol, secret) as client, pytest.raises(ClientError) as caught:
        publish(client, TOPIC.get(protocol, "plain"), b"no")
    assert protocol in str(caught.value)


def test_inexpressible_messages_are_errors(broker: Broker, secret: Path) -> None:
    large = bytes(1_048_578)
    for protocol, topic, payload, words in (
        ("cafe", "plain", b"", "not the topic of a channel"),
        ("cafe", "cafe/1", large, "more than 1048567"),
        ("rheos", "plain", bytes(65_536), "65536"),
        ("nsd", "plain", b"\xff", "not UTF-8"),
        ("spot", "plain", large, "1048578"),
    ):
        with make(broker, protocol, secret) as client, refused(words):
            publish(client, topic, payload)


def test_fast_requires_the_key_of_the_topic(broker: Broker, secret: Path) -> None:
    with make(broker, "fast", secret) as client:
        publish(client, "keyed", b"mine")
    other = make_token(secret, key="k2").decode()
    with make(broker, "fast", secret, token=other) as client, refused("WRONG_QUEUE_KEY"):
        publish(client, "keyed", b"not mine")
    with make(broker, "fast", secret, token="a.b.c") as client, refused("BAD_TOKEN"):
        publish(client, "keyed", b"nobody's")
    assert stored(broker, "keyed") == ["mine"]


def test_a_publish_over_fast_changes_no_flags(broker: Broker, secret: Path) -> None:
    """A publish to an existing topic sends no CREATE."""
    with make(broker, "fast", secret) as client:
        publish(client, "keyed", b"1")
    publish_only = make_token(secret, permission="publish").decode()
    with make(broker, "fast", secret, token=publish_only) as client:
        publish(client, "keyed", b"2")
    assert stored(broker, "keyed") == ["1", "2"]


def test_rheos_in_the_other_layouts(start: Start, secret: Path) -> None:
    broker = start(*listen("rheos", "nsd"), "--rheos-layout=original", "--rheos-checksum=crc32")
    query = "?layout=original&checksum=crc32"
    with make(broker, "rheos", secret, query=query) as client:
        publish(client, "plain", b"x" * 70_000)
    assert stored(broker, "plain") == ["x" * 70_000]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_broker_that_is_gone_is_an_error(broker: Broker, secret: Path, protocol: str) -> None:
    with make(broker, protocol, secret, timeout=4.0) as client:
        publish(client, TOPIC.get(protocol, "plain"), b"x")
        broker.kill()
        with pytest.raises(ClientError):
            publish(client, TOPIC.get(protocol, "plain"), b"y")
