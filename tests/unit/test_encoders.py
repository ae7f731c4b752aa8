"""Encoders: batches of several topics, as frames for subscribers of some of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from sys import maxsize

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch
from pubsub.broker.routing.encoders import RowEncoding, make_encoder
from pubsub.interfaces import Encoding
from tests.unit.fakes import Lines, mixed_batch
from tests.unit.framed_encoder import Framed

TOPICS = ("a", "b", "c")


class EncoderCase(SynchronousTestCase):
    """Three topics, of which b is not subscribed to."""

    def encode(
        self, encodings: list[Encoding | None], *sent: tuple[str, bytes]
    ) -> tuple[bytes, int]:
        return make_encoder(encodings).encode(mixed_batch(sent, TOPICS))


class HeadTests(EncoderCase):
    """Encodings with heads"""

    def test_messages_keep_their_order(self) -> None:
        made = self.encode(
            [Framed(b"A"), None, Framed(b"C")],
            ("c", b"1"), ("a", b"22"), ("b", b"3"), ("a", b"4"), ("c", b""),
        )  # fmt: skip
        frames = [(b"C", b"1"), (b"A", b"22"), (b"A", b"4"), (b"C", b"")]
        stamp = mixed_batch([], TOPICS).timestamp
        assert made == (b"".join(Framed(tag).frame(p, stamp) for tag, p in frames), 4)

    def test_each_topic_has_its_limit(self) -> None:
        encodings: list[Encoding | None] = [Framed(b"A", 2), None, Framed(b"C", 3)]
        encoder = make_encoder(encodings)
        assert list(encoder.limits) == [2, maxsize, 3]
        assert encoder.limit == 2
        batch = mixed_batch(
            [("a", b"333"), ("c", b"333"), ("a", b"22"), ("c", b"4444"), ("b", b"55555")], TOPICS
        )
        wanted = Framed(b"C").frame(b"333", batch.timestamp)
        wanted += Framed(b"A").frame(b"22", batch.timestamp)
        assert encoder.encode(batch) == (wanted, 2)

    def test_no_message_fits(self) -> None:
        assert self.encode([Framed(b"A", 0), None, None], ("a", b"1"), ("b", b"")) == (b"", 0)


class RunTests(EncoderCase):
    """Encodings that write whole batches"""

    def test_messages_keep_their_order(self) -> None:
        made = self.encode(
            [Lines(b"A"), None, Lines(b"C")],
            ("c", b"1"), ("a", b"22"), ("a", b"2"), ("b", b"3"), ("a", b"4"), ("c", b""),
        )  # fmt: skip
        assert made == (b"C1\nA22\nA2\nA4\nC\n", 5)

    def test_consecutive_messages_of_a_topic_are_one_call(self) -> None:
        lines = Lines(b"A")
        self.encode(
            [lines, None, Lines(b"C")],
            ("a", b"1"), ("a", b"2"), ("c", b"3"), ("a", b"4"),
        )  # fmt: skip
        assert [batch.payloads() for batch in lines.batches] == [[b"1", b"2"], [b"4"]]
        assert [batch.sequence for batch in lines.batches] == [0, 3]
        assert [batch.topics for batch in lines.batches] == [("a",), ("a",)]

    def test_each_topic_has_its_limit(self) -> None:
        encodings: list[Encoding | None] = [Lines(b"A", 2), None, Lines(b"C", 3)]
        encoder = make_encoder(encodings)
        assert (encoder.limit, list(encoder.limits)) == (2, [2, maxsize, 3])
        batch = mixed_batch(
            [("a", b"333"), ("c", b"333"), ("a", b"22"), ("c", b"4444"), ("b", b"55555")], TOPICS
        )
        assert encoder.encode(batch) == (b"C333\nA22\n", 2)

    def test_a_batch_of_one_topic_is_passed_on_whole(self) -> None:
        lines = Lines()
        batch = mixed_batch([("a", b"1"), ("a", b"2")], ("a",))
        assert make_encoder([lines]).encode(batch) == (b"1\n2\n", 2)
        assert lines.batches == [batch]
        assert lines.batches[0] is batch


class RowTests(EncoderCase):
    """Encodings that write messages of several topics"""

    def test_all_messages_are_one_call(self) -> None:
        encoding = Rows()
        made = self.encode(
            [encoding, None, Rows()], ("c", b"1"), ("a", b"2"), ("b", b"3"), ("a", b"4")
        )
        assert made == (b'"c"1"a"2"a"4', 3)
        assert encoding.calls == [4]

    def test_topics_that_differ_between_batches(self) -> None:
        encoder = make_encoder([Rows()])
        for name in ("a", 'b"', "a"):
            batch = mixed_batch([(name, b"1")], (name,))
            assert encoder.encode(batch) == (json.dumps(name).encode() + b"1", 1)

    def test_encodings_that_differ_keep_the_order(self) -> None:
        made = self.encode(
            [Rows(), None, Rows(b":")],
            ("c", b"1"), ("a", b"2"), ("a", b"3"), ("b", b"4"), ("c", b"5"),
        )  # fmt: skip
        assert made == (b'"c":1"a"2"a"3"c":5', 4)

    def test_messages_of_any_size(self) -> None:
        encoder = make_encoder([Rows(), Rows()])
        assert (encoder.limit, list(encoder.limits)) == (maxsize, [maxsize, maxsize])

    def test_no_topics(self) -> None:
        assert make_encoder([]).encode(mixed_batch([], ())) == (b"", 0)


@dataclass(frozen=True)
class Rows(RowEncoding):
    """The name of the topic, ``tag`` and the payload; ``calls`` has the messages of each call."""

    tag: bytes = b""
    calls: list[int] = field(default_factory=list, compare=False, repr=False)

    def rows(self, batch: Batch, names: list[bytes | None]) -> tuple[bytes, int]:
        self.calls.append(batch.count)
        named = [names[index] for index in batch.columns.indexes()]
        rows = [
            name + self.tag + payload
            for name, payload in zip(named, batch.payloads(), strict=True)
            if name is not None
        ]
        return b"".join(rows), len(rows)


class PropertyTests(EncoderCase):
    """Both kinds of encoders"""

    @given(
        st.lists(st.tuples(st.sampled_from(TOPICS), st.binary(max_size=4)), max_size=30),
        st.lists(st.none() | st.integers(0, 4), min_size=3, max_size=3).filter(any),
    )
    def test_each_message_that_fits_is_encoded_once_and_in_order(
        self, sent: list[tuple[str, bytes]], limits: list[int | None]
    ) -> None:
        by_topic = dict(zip(TOPICS, limits, strict=True))
        wanted = [
            (topic.encode(), payload)
            for topic, payload in sent
            if (limit := by_topic[topic]) is not None and len(payload) <= limit
        ]
        framed = [n if n is None else Framed(t.encode(), n) for t, n in by_topic.items()]
        lines = [n if n is None else Lines(t.encode(), n) for t, n in by_topic.items()]
        batch = mixed_batch(sent, TOPICS)
        assert make_encoder(framed).encode(batch) == (
            b"".join(Framed(tag).frame(p, batch.timestamp) for tag, p in wanted),
            len(wanted),
        )
        assert make_encoder(lines).encode(batch) == (
            b"".join(tag + payload + b"\n" for tag, payload in wanted),
            len(wanted),
        )
