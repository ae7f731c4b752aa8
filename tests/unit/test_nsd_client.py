"""The blocking publisher of nsd: the bytes it sends, and its handling of replies."""

from __future__ import annotations

import json

from pubsub.protocols.nsd.client import NsdPublisher
from pubsub.wire.blocking_publisher import NotPublished
from tests.unit import nsd_lines
from tests.unit.raising import raised
from tests.unit.sockets import ADDRESS, PublisherCase
from tests.unit.streams import House


class PublisherTests(PublisherCase):
    """With a broker in memory or scripted replies"""

    def test_the_bytes_sent(self) -> None:
        house = House({"nsd": {}})
        self.over(house, "nsd")
        with NsdPublisher(ADDRESS) as publisher:
            publisher.add("orders", b"one", b"ada")
            publisher.add("orders", "zwei ü".encode())
            publisher.finish()
        opened, *requests = map(json.loads, self.sent().splitlines())
        assert opened == {"_class": "OpenRequest", "identity": "orders"}
        assert requests == [
            {
                "_class": "PublishRequest",
                "identity": "orders",
                "message": {"_class": "Message", "from": sender, "when": 0, "body": body},
            }
            for sender, body in (("ada", "one"), ("", "zwei ü"))
        ]
        assert self.published(house, "orders") == [b"one", "zwei ü".encode()]

    def test_errors_are_counted(self) -> None:
        self.scripted(nsd_lines.SUCCESS, nsd_lines.error("full"), nsd_lines.error("no"))
        publisher = NsdPublisher(ADDRESS)
        publisher.add("t", b"1")
        publisher.add("t", b"2")
        assert "2 messages refused: full" in str(raised(NotPublished, publisher.finish))

    def test_replies_of_another_protocol(self) -> None:
        for reply in (b"HTTP/1.1 400 Bad Request\n", b"[]\n", b'{"_class":"Toy"}\n', b"\xff\n"):
            self.scripted(reply, nsd_lines.SUCCESS)
            publisher = NsdPublisher(ADDRESS)
            publisher.add("t", b"1")
            assert "does not speak nsd" in str(raised(NotPublished, publisher.finish))

    def test_messages_that_cannot_be_expressed(self) -> None:
        publisher = NsdPublisher(ADDRESS)
        assert "UTF-8" in str(raised(NotPublished, publisher.add, "t", b"\xff"))
        # Each NUL takes six characters in JSON.
        assert "900000 bytes" in str(raised(NotPublished, publisher.add, "t", bytes(900_000)))
