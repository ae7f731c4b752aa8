"""fast's exclusive topics, which only their owner reads (fast §4.4)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tests.unit import fast_wire as wire
from tests.unit import nsd_lines
from tests.unit.fast_wire import (
    EXCLUSIVE,
    EXISTS,
    NO_PERMISSION,
    NO_TOPIC,
    OWNER,
    READER,
    WRITER,
    WRONG_KEY,
    Fast,
    FastCase,
)
from tests.unit.streams import Client

OTHER = wire.grant(key="k2", sub="mal")
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
DEALER = bytes.fromhex("04 1c") + b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"


class OwnerTests(FastCase):
    """Permissions of owners and others"""

    def setUp(self) -> None:
        self.fast = self.house()
        self.owner = self.fast.owner(EXCLUSIVE)

    def test_only_the_owner_subscribes_with_any_token(self) -> None:
        self.owner.send(wire.subscribe(READER))
        assert self.owner.take() == b""
        for raw in (OWNER, READER):
            assert self.answer(self.fast, wire.subscribe(raw)) == wire.error(2, NO_PERMISSION)
        assert self.answer(self.fast, wire.subscribe(OTHER)) == wire.error(2, WRONG_KEY)

    def test_others_can_publish(self) -> None:
        self.owner.send(wire.subscribe(OWNER))
        assert self.answer(self.fast, wire.publish(WRITER, b"in")) == b""
        assert self.answer(self.fast, wire.publish(READER, b"in")) == wire.error(3, NO_PERMISSION)
        assert self.owner.take() == wire.message(b"in")

    def test_others_cannot_create_it_even_with_the_key(self) -> None:
        for flags in (0, EXCLUSIVE):
            assert self.answer(self.fast, wire.create(OWNER, flags=flags)) == wire.error(1, EXISTS)
        self.owner.send(wire.create(OWNER, flags=EXCLUSIVE))
        assert self.owner.take() == b""

    def test_a_rotation_keeps_it_exclusive(self) -> None:
        self.owner.send(wire.subscribe(OWNER))
        assert self.answer(self.fast, wire.rotate(wire.grant("rotate"), b"k2")) == b""
        assert self.owner.take() == wire.key_update(b"k2")
        assert self.answer(self.fast, wire.subscribe(wire.grant(key="k2"))) == wire.error(
            2, NO_PERMISSION
        )

    def test_it_ends_with_its_owner(self) -> None:
        self.owner.send(wire.subscribe(OWNER))
        writer = self.fast.client(wire.publish(WRITER, b"x"))
        self.owner.stream.lose()
        assert not len(self.fast.broker.topics)
        assert not self.fast.broker.queue_keys.exclusive
        writer.send(wire.publish(WRITER, b"x"))
        assert writer.take() == wire.error(3, NO_TOPIC)
        assert self.answer(self.fast, wire.create(OTHER) + wire.subscribe(OTHER)) == b""

    def test_it_ends_with_any_end_of_its_owner(self) -> None:
        for end in ("close", "abort", "bad"):
            fast = self.house()
            owner = fast.owner(EXCLUSIVE)
            if end == "close":
                owner.stream.lose(clean=True)
            elif end == "abort":
                owner.protocol.abort("enough")
            else:
                owner.send(b"\xff")
            assert not len(fast.broker.topics)

    def test_it_can_be_released(self) -> None:
        self.owner.send(wire.create(OWNER))
        reader = self.fast.reader()
        self.owner.stream.lose()
        assert self.answer(self.fast, wire.publish(WRITER, b"x")) == b""
        assert reader.take() == wire.message(b"x")

    def test_an_existing_topic_cannot_become_exclusive(self) -> None:
        fast = self.house(also={"cafe": {"channels": "1:cups"}})
        owner = fast.owner()
        owner.send(wire.create(OWNER, flags=EXCLUSIVE) + wire.create(OWNER, "cups", EXCLUSIVE))
        assert owner.take() == wire.error(1, EXISTS) + wire.error(1, EXISTS, wire.topic_id("cups"))
        assert "cups" not in fast.broker.queue_keys.names
        owner.stream.lose()
        assert self.answer(fast, wire.subscribe(READER)) == b""

    def test_an_owner_can_have_several(self) -> None:
        self.owner.send(wire.create(OWNER, "a", EXCLUSIVE) + wire.create(OWNER, "b", EXCLUSIVE))
        self.owner.send(wire.create(OWNER, "a"))
        self.owner.stream.lose()
        assert [topic.name for topic in self.fast.broker.topics] == ["a"]

    def test_many_end_together(self) -> None:
        owner = self.fast.client(
            b"".join(wire.create(OWNER, f"many/{number}", EXCLUSIVE) for number in range(50))
        )
        assert len(self.fast.broker.topics) == 51
        owner.stream.lose()
        assert len(self.fast.broker.topics) == 1

    def test_publishers_held_by_a_slow_owner_are_released_at_its_end(self) -> None:
        fast = self.house(slow_consumer="pause", slow_bytes=100_000)
        owner = fast.owner(EXCLUSIVE)
        owner.send(wire.subscribe(OWNER))
        owner.stream.stop_reading()
        writer = fast.client()
        for _ in range(5):
            writer.send(wire.publish(WRITER, bytes(30_000)))
        assert writer.stream.paused
        owner.stream.lose()
        fast.turn()
        assert not writer.stream.paused


GRANTED: Mapping[str, Mapping[str, object]] = {
    "nsd": {"grant": "*"}, "rheos": {"grant": "*"}, "spot": {"grant": "*"},
}  # fmt: skip


class ManyTopicsTests(FastCase):
    """Many exclusive topics, which end in slices"""

    def test_a_topic_can_be_created_again_before_its_turn(self) -> None:
        fast = self.house()
        names = [f"t{number}" for number in range(300)]
        owner = fast.client(b"".join(wire.create(OWNER, name, EXCLUSIVE) for name in names))
        owner.stream.lose()
        left = [topic.name for topic in fast.broker.topics]
        assert 100 < len(left) < 300
        again = fast.connect("fast")
        again.stream.feed(wire.create(OTHER, left[-1], EXCLUSIVE))
        assert len(fast.broker.topics) == len(left)
        fast.turn()
        assert again.take() == b""
        assert [topic.name for topic in fast.broker.topics] == [left[-1]]


class OtherProtocolTests(FastCase):
    """No other protocol reads it, even with ``grant``"""

    def ask(self, fast: Fast, *lines: bytes) -> list[dict[str, object]]:
        client = fast.connect("nsd")
        client.send(b"".join(lines))
        fast.pump()
        return [json.loads(line) for line in client.take().splitlines()]

    def spot(self, fast: Fast, *requests: str) -> Client:
        """Return a DEALER that has sent these."""
        client = fast.connect("spot")
        client.send(GREETING + DEALER + b"".join(map(bytes.fromhex, requests)))
        assert client.take().startswith(GREETING)
        return client

    def test_nsd_may_publish_but_not_read(self) -> None:
        fast = self.house(also=GRANTED)
        owner = fast.owner(EXCLUSIVE)
        owner.send(wire.subscribe(OWNER) + wire.publish(OWNER, b"secret"))
        assert owner.take() == wire.message(b"secret")
        opened, subscribed, published, got = self.ask(
            fast,
            nsd_lines.open_("news"),
            nsd_lines.subscribe("bob", "news"),
            nsd_lines.publish("news", "hi"),
            nsd_lines.get("news"),
        )
        assert opened["_class"] == published["_class"] == "SuccessResponse"
        assert subscribed == {"_class": "ErrorResponse", "error": "NOT AUTHORIZED: news"}
        assert got["messages"] == []
        assert owner.take() == wire.message(b"hi")

    def test_an_earlier_pattern_does_not_read_it(self) -> None:
        fast = self.house(also=GRANTED)
        spot = self.spot(fast, "01 00 01 01 02 00 01 2a")
        fast.owner(EXCLUSIVE).send(wire.publish(OWNER, b"secret"))
        assert spot.take() == b""

    def test_a_later_pattern_does_not_read_it(self) -> None:
        fast = self.house(also=GRANTED)
        owner = fast.owner(EXCLUSIVE)
        spot = self.spot(fast, "01 00 01 01 02 00 01 2a")
        owner.send(wire.publish(OWNER, b"secret"))
        assert spot.take() == b""

    def test_its_messages_cannot_be_read_after_its_end(self) -> None:
        """The name is free again, but the messages were for the owner."""
        fast = self.house(also={"nsd": {}})
        owner = fast.owner(EXCLUSIVE)
        owner.send(wire.publish(OWNER, b"secret"))
        owner.stream.lose()
        opened, got = self.ask(fast, nsd_lines.open_("news"), nsd_lines.get("news"))
        assert opened["_class"] == "SuccessResponse"
        assert got["messages"] == []
