"""Messages in the history of a broker, for the source."""

from __future__ import annotations

from pathlib import Path

from pubsub.pipeline.options.connector_options import Credentials
from pubsub.pipeline.publishing.publisher_urls import PublisherFactory
from pubsub.pipeline.publishing.sink_publisher import SinkPublisher
from tests.integration.broker import HOST, Broker
from tests.integration.fast_client import make_token
from tests.spark.http_brokers import client_of
from tests.waiting import until

NAMES = ["a,b", 'q"uote', "it's", "sl/ash", "\N{PARTY POPPER}", " space ", "[x]", "x" * 255]


def publishers(broker: Broker, secret: Path) -> dict[str, SinkPublisher]:
    """Return a publisher for each protocol."""
    token = make_token(secret).decode()
    return {
        name: publisher(broker, name, token if name == "fast" else None)
        for name in ("cafe", "nsd", "rheos", "spot", "fast")
    }


def publisher(broker: Broker, protocol: str, token: str | None = None) -> SinkPublisher:
    """Return a publisher for a protocol's listener."""
    where = f"{protocol}://{HOST}:{broker.port(protocol)}"
    return PublisherFactory(where, {}, Credentials(token))()


def publish(client: SinkPublisher, topic: str, *payloads: bytes) -> None:
    """Publish over a connection of its own."""
    with client:
        for payload in payloads:
            client.add(topic, payload)
        client.finish()


def wait_for_messages(broker: Broker, messages: int) -> None:
    """Wait until this number of messages is committed."""
    client = client_of(broker)
    until(lambda: client.bounds().next >= messages, f"{messages} messages")
