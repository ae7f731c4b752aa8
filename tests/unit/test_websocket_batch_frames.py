"""Frames of the WebSocket with several messages: those of the broker, as the client reads them."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.kernel import Columns
from pubsub.wire.client_events import Interest, Malformed, Messages, MixedMessages
from pubsub.wire.client_wire import Role
from tests.unit.client_frames import NEWS, SPORT, positions, subscribed
from tests.unit.http_ends import HandMade, HttpPair, make
from tests.unit.web import WebHouse
from tests.unit.web_sockets import connected
from tests.unit.wire_pairs import runs

# Indexes of topics, of which one is not subscribed to, and payloads.
MESSAGES = st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=9)), min_size=1, max_size=20)
Frame = tuple[dict[str, Any], bytes]


def frames(house: WebHouse, *published: list[bytes], **members: object) -> list[Frame]:
    """Return the objects and the payloads of the frames of a subscriber."""
    client = connected(house)
    client.ask("subscribe", topic="a", batches=True, **members)
    for payloads in published:
        house.publish("a", *payloads)
    client.pull()
    ends = [4 + int.from_bytes(data[:4], "big") for data in client.binary]
    return [
        (json.loads(data[4:end]), data[end:]) for end, data in zip(ends, client.binary, strict=True)
    ]


class BrokerTests(SynchronousTestCase):
    """The member ``batches`` of subscribe"""

    def test_messages_of_a_batch_share_a_frame(self) -> None:
        house = WebHouse()
        ((head, payload), (alone, last)) = frames(house, [b"1", b"", b"333"], [b"4"])
        assert (payload, last) == (b"1333", b"4")
        rows = house.get("/v1/topics/a/messages").lines
        batch = head["batch"]
        assert batch.pop("sizes") == [1, 0, 3]
        del rows[0]["value"]
        assert batch == rows[0]
        assert "headers" not in batch
        first = UUID(rows[0]["message_id"]).int
        assert [UUID(row["message_id"]).int - first for row in rows[:3]] == [0, 1, 2]
        # A message alone has the frame that it has without ``batches``.
        assert alone["message"]["offset"] == 3

    def test_each_message_has_its_headers(self) -> None:
        house = WebHouse()
        client = connected(house)
        client.ask("subscribe", topic="a", batches=True, headers=True)
        house.publish("a", b"1", b"2", headers=[{}, {"k": b"\xff"}])
        client.pull()
        (data,) = client.binary
        batch = json.loads(data[4 : 4 + int.from_bytes(data[:4], "big")])["batch"]
        assert batch["headers"] == [[], [{"key": "k", "value_base64": "/w=="}]]

    def test_frames_are_bounded(self) -> None:
        found = frames(WebHouse(), [b"x"] * 2500, [bytes(30_000)] * 5, [bytes(200_000)] * 2)
        counts = [len(head["batch"]["sizes"]) if "batch" in head else 1 for head, _ in found]
        assert counts == [1000, 1000, 500, 2, 2, 1, 1, 1]
        sizes = [len(payload) for _, payload in found[3:]]
        assert sizes == [60_000, 60_000, 30_000, 200_000, 200_000]

    def test_from_the_past(self) -> None:
        house = WebHouse()
        house.publish("a", b"1", b"2")
        ((head, payload),) = frames(house, start=0)
        assert (head["batch"]["offset"], payload) == (0, b"12")


def batch(far: HandMade, payload: bytes, **changed: object) -> bytes:
    """Return a frame of two messages of bob, with some members changed."""
    members = {"offset": 3, "timestamp": 7, "topic": "news", "key": "Ym9i", "sizes": [1, 2]}
    head = json.dumps({"batch": {**members, **changed}}).encode()
    far.server.send_binary(len(head).to_bytes(4, "big") + head + payload)
    return far.sent()


class ClientTests(SynchronousTestCase):
    """The client library"""

    def test_it_requests_batches_of_a_broker_that_has_them(self) -> None:
        far = subscribed(NEWS)
        (event,) = far.receive(batch(far, b"xyz"))
        assert isinstance(event, Messages)
        assert event.columns.payloads() == [b"x", b"yz"]
        assert (event.timestamps, event.senders) == ([7, 7], [b"bob", b"bob"])
        assert event.offsets is not None
        assert list(event.offsets) == [3, 4]
        assert event.headers == [{}, {}]
        assert positions(far) == {NEWS: "1-abc:5"}

    def test_messages_before_it_arrive_before_it(self) -> None:
        far = subscribed(NEWS)
        events = far.receive(far.message("news", 2, b"w"), batch(far, b"xyz"))
        assert [one.columns.count for one in events if isinstance(one, Messages)] == [1, 2]

    def test_a_topic_that_was_unsubscribed(self) -> None:
        far = subscribed(NEWS)
        assert far.receive(batch(far, b"xyz", topic="other")) == []

    def test_malformed_ones(self) -> None:
        wrong: list[dict[str, Any]] = [
            {"sizes": [1, 1]}, {"sizes": []}, {"sizes": [-1, 4]}, {"sizes": ["1", 2]},
            {"sizes": 3}, {"sizes": [1.5, 1.5]}, {"headers": [[]]}, {"offset": "x"},
            {"key": 5}, {"timestamp": None},
        ]  # fmt: skip
        for changed in wrong:
            far = subscribed(NEWS)
            (event,) = far.receive(batch(far, b"xyz", **changed))
            assert isinstance(event, Malformed), changed

    def test_messages_of_several_topics(self) -> None:
        far = subscribed(NEWS, SPORT)
        mixed = {"topics": ["sport", "news"], "indexes": [0, 1, 0], "sizes": [1, 1, 2]}
        (event,) = far.receive(batch(far, b"1234", **mixed))
        assert isinstance(event, MixedMessages)
        assert [(one.topic, one.columns.payloads()) for one in event.runs()] == [
            ("sport", [b"1"]), ("news", [b"2"]), ("sport", [b"34"]),
        ]  # fmt: skip
        assert list(event.offsets or ()) == [3, 4, 5]
        assert positions(far) == {NEWS: "1-abc:5", SPORT: "1-abc:6"}
        (event,) = far.receive(batch(far, b"1234", **mixed, offsets=[7, 9, 12]))
        assert isinstance(event, MixedMessages)
        assert event.offsets == [7, 9, 12]
        assert positions(far) == {NEWS: "1-abc:10", SPORT: "1-abc:13"}

    def test_one_of_several_topics_that_was_unsubscribed(self) -> None:
        far = subscribed(NEWS)
        mixed = {"topics": ["other", "news"], "indexes": [0, 1, 0], "sizes": [1, 1, 1]}
        (event,) = far.receive(batch(far, b"123", **mixed))
        assert isinstance(event, Messages)
        assert (event.topic, event.columns.payloads()) == ("news", [b"2"])
        assert positions(far) == {NEWS: "1-abc:5"}

    def test_malformed_ones_of_several_topics(self) -> None:
        wrong: list[dict[str, Any]] = [
            {"topics": ["a"], "indexes": [0, 1]}, {"topics": ["a", "b"]}, {"offsets": [3]},
            {"topics": ["a", "b"], "indexes": [0]}, {"topics": 5, "indexes": [0, 0]},
            {"topics": ["a", "b"], "indexes": [0, -1]}, {"topics": [], "indexes": [0, 0]},
            {"topics": ["a", "b"], "indexes": [0, 1], "offsets": ["x", 4]},
        ]  # fmt: skip
        for changed in wrong:
            far = subscribed(NEWS)
            (event,) = far.receive(batch(far, b"xyz", **changed))
            assert isinstance(event, Malformed), changed

    @given(st.lists(MESSAGES, max_size=5))
    def test_what_was_published_to_several_topics_arrives_in_order(
        self, published: list[list[tuple[int, bytes]]]
    ) -> None:
        house = WebHouse()
        broker = house.broker
        mix = broker.router.mix([broker.topics.create(name) for name in ("a", "b", "c")])
        pair = HttpPair(house, make(Role.SUBSCRIBER), piece=50)
        pair.take()
        for name in ("a", "b"):
            pair.connection.subscribe(Interest(name))
        pair.take()
        for messages in published:
            columns = Columns.of([payload for _, payload in messages], [at for at, _ in messages])
            broker.dispatcher.publish_mixed(mix, columns, b"alice", "toy")
            house.clock.advance(0)
        expected = [
            (mix.names[at], payload, offset)
            for offset, (at, payload) in enumerate(chain.from_iterable(published))
            if mix.names[at] != "c"
        ]
        assert [
            (one.topic, payload, offset)
            for one in runs(pair.take())
            for payload, offset in zip(one.columns.payloads(), one.offsets or (), strict=True)
        ] == expected

    @given(st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=30), max_size=5))
    def test_what_was_published_is_what_arrives(self, published: list[list[bytes]]) -> None:
        house = WebHouse()
        pair = HttpPair(house, make(Role.SUBSCRIBER), piece=50)
        pair.take()
        pair.connection.subscribe(NEWS)
        pair.take()
        for payloads in published:
            house.publish("news", *payloads)
        got = [one for one in pair.take() if isinstance(one, Messages)]
        expected = [payload for payloads in published for payload in payloads]
        assert [payload for one in got for payload in one.columns.payloads()] == expected
        offsets = [offset for one in got for offset in one.offsets or ()]
        assert offsets == list(range(len(expected)))
