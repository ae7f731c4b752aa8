"""Router: reads that bring messages of several topics."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.delivery.slow_policy import DISCONNECT, DROP, PAUSE, SlowPolicy
from pubsub.broker.routing import combination_cache, topic_mix
from pubsub.broker.routing.audience import WRITE_BYTES
from pubsub.broker.routing.common_encoder import CommonEncoder
from pubsub.broker.routing.encoders import encoder_in_steps
from pubsub.broker.routing.mixed_audience import RECIPIENT_BYTES
from pubsub.broker.routing.topic_mix import TopicMix
from pubsub.broker.topic_space.topics import Topic
from pubsub.interfaces import Encoding
from tests.unit.fakes import Bench, Lines, Transport, batch_of, mixed_batch, recheck_all
from tests.unit.framed_encoder import Framed


class MixedCase(SynchronousTestCase):
    """A router and the topics a to e."""

    def setUp(self) -> None:
        self.bench = Bench()
        self.router = self.bench.router
        self.topics = {name: Topic(name) for name in "abcde"}
        self.offset = 0

    def subscribe(self, transport: Transport, names: str, encoding: Encoding | None = None) -> None:
        """Subscribe to these topics; by default each message is a line that begins with them."""
        for name in names:
            self.router.subscribe(
                self.box(transport), self.topics[name], encoding or Lines(name.encode())
            )

    def subscriber(
        self, names: str, encoding: Encoding | None = None, policy: SlowPolicy | None = None
    ) -> Transport:
        transport = self.bench.outbox(policy)
        self.subscribe(transport, names, encoding)
        return transport

    def box(self, transport: Transport) -> Outbox:
        assert transport.outbox is not None
        return transport.outbox

    def route(self, *sent: str) -> None:
        """Route one batch; the topic of a message is its first letter, the rest its payload."""
        mix = self.router.mix(self.topics[name] for name in {each[0] for each in sent})
        messages = [(each[0], each[1:].encode()) for each in sent]
        self.router.route_mixed(mix, mixed_batch(messages, mix.names, self.offset))
        self.offset += len(sent)

    def route_one(self, name: str, *payloads: str) -> None:
        """Route one batch of one topic."""
        encoded = [payload.encode() for payload in payloads]
        self.router.route(self.topics[name], batch_of(encoded, name, offset=self.offset))
        self.offset += len(payloads)

    def drops(self) -> dict[tuple[str, str], int]:
        return {(topic, why): n for (_, topic, why), n in self.bench.counters.drops.items() if n}


def lines(*sent: str) -> bytes:
    return "".join(f"{each}\n" for each in sent).encode()


class OrderTests(MixedCase):
    """Every subscriber receives its messages in the order of publishing"""

    def test_subscribers_of_all_of_some_and_of_one(self) -> None:
        everything, some, one = (self.subscriber(names) for names in ("abc", "ac", "b"))
        nothing = self.subscriber("e")
        self.route("a1", "b2", "c3", "b4", "a5", "a6", "c7")
        assert everything.writes == []
        self.bench.turn()
        assert everything.writes == [lines("a1", "b2", "c3", "b4", "a5", "a6", "c7")]
        assert some.writes == [lines("a1", "c3", "a5", "a6", "c7")]
        assert one.writes == [lines("b2", "b4")]
        assert nothing.writes == []
        assert self.bench.counters.delivered == 7 + 5 + 2

    def test_fifty_subscribers_of_different_topics(self) -> None:
        wanted = ["".join(name for bit, name in enumerate("abcde") if n >> bit & 1)
                  for n in range(1, 51)]  # fmt: skip
        transports = [self.subscriber("".join(dict.fromkeys(names))) for names in wanted]
        sent: list[str] = []
        for turn in range(3):
            batch = [f"{'abcde'[n * n % 5]}{turn}.{n}" for n in range(40)]
            self.route(*batch)
            sent += batch
            self.bench.turn()
        for names, transport in zip(wanted, transports, strict=True):
            assert transport.data == lines(*[each for each in sent if each[0] in names])
            assert len(transport.writes) <= 3

    def test_single_and_mixed_batches_in_one_tick(self) -> None:
        everything, some = self.subscriber("abc"), self.subscriber("bc")
        self.route_one("a", "1", "2")
        self.route("b3", "a4", "c5")
        self.route_one("c", "6")
        self.route("a7", "b8")
        self.route_one("a", "9")
        self.bench.turn()
        assert everything.writes == [lines("a1", "a2", "b3", "a4", "c5", "c6", "a7", "b8", "a9")]
        assert some.writes == [lines("b3", "c5", "c6", "b8")]
        assert self.bench.counters.delivered == 9 + 4

    def test_different_mixes_in_one_tick(self) -> None:
        everything, one = self.subscriber("abc"), self.subscriber("b")
        self.route("a1", "b2")
        self.route("b3", "c4")
        self.route("c5", "a6", "b7")
        self.route("a8", "b9")
        self.bench.turn()
        assert everything.data == lines("a1", "b2", "b3", "c4", "c5", "a6", "b7", "a8", "b9")
        assert one.data == lines("b2", "b3", "b7", "b9")

    def test_large_batches_of_audiences_that_share_an_outbox(self) -> None:
        everything, one = self.subscriber("abc"), self.subscriber("b")
        body = "." * (WRITE_BYTES // 2)
        sent = [f"{'abcab'[n % 5]}{n}{body}" for n in range(10)]
        for start in range(0, 10, 2):
            self.route(*sent[start : start + 2])
        self.bench.turn()
        assert everything.data == lines(*sent)
        assert one.data == lines(*[each for each in sent if each[0] == "b"])
        assert max(map(len, everything.writes)) < 3 * WRITE_BYTES

    def test_different_encodings(self) -> None:
        """Subscribers of the same topics in different encodings, of both kinds."""
        first = self.subscriber("ab", Lines(b"1 "))
        second = self.subscriber("ab", Lines(b"2 "))
        each = self.subscriber("ab")
        framed = self.bench.outbox()
        self.subscribe(framed, "a", Framed(b"A"))
        self.subscribe(framed, "b", Framed(b"B"))
        self.route("ax", "by", "az")
        self.bench.turn()
        assert first.data == lines("1 x", "1 y", "1 z")
        assert second.data == lines("2 x", "2 y", "2 z")
        assert each.data == lines("ax", "by", "az")
        stamp = mixed_batch([], ()).timestamp
        assert framed.data == b"".join(
            Framed(tag).frame(p, stamp) for tag, p in [(b"A", b"x"), (b"B", b"y"), (b"A", b"z")]
        )

    def test_each_audience_is_encoded_once(self) -> None:
        encoding = Lines(b"> ")
        many = [self.subscriber("ab", encoding) for _ in range(10)]
        self.route("a1", "b2", "a3")
        self.bench.turn()
        assert len(encoding.batches) == 3
        assert {transport.data for transport in many} == {lines("> 1", "> 2", "> 3")}
        assert len({id(transport.writes[0]) for transport in many}) == 1

    def test_no_subscribers(self) -> None:
        self.subscriber("e")
        self.route("a1", "b2")
        assert self.bench.ticks == 0

    def test_equal_sets_of_topics_are_one_mix(self) -> None:
        a, b, c = (self.topics[name] for name in "abc")
        assert self.router.mix([a, b, c]) is self.router.mix({c, b, a})
        assert self.router.mix([a, b]) is not self.router.mix([a, b, c])


class CommonFramesTests(MixedCase):
    """Frames that several audiences have in common"""

    def framed(self, names: str, tag: bytes = b"") -> Transport:
        transport = self.bench.outbox()
        for name in names:
            self.subscribe(transport, name, Framed(tag or name.encode()))
        return transport

    def frames(self, sent: list[str], names: str, tag: bytes = b"") -> bytes:
        stamp = mixed_batch([], ()).timestamp
        return b"".join(
            Framed(tag or each[:1].encode()).frame(each[1:].encode(), stamp)
            for each in sent
            if each[0] in names and len(each) <= 101
        )

    def is_common(self) -> bool:
        mix = self.router.mix(self.topics.values())
        encoder = mix.common.get(len(mix.audiences()))
        return encoder is not None

    def test_different_sets_of_topics(self) -> None:
        sets = ["abc", "ab", "bcd", "e", "abcde"]
        transports = [self.framed(names) for names in sets]
        sent: list[str] = []
        for turn in range(4):
            batch = [f"{'abcde'[(3 * n + n // 4) % 5]}{turn}.{'x' * n}" for n in range(12)]
            self.route(*batch)
            sent += batch
            self.bench.turn()
        assert self.is_common()
        for names, transport in zip(sets, transports, strict=True):
            assert transport.data == self.frames(sent, names)
        assert self.bench.counters.delivered == sum(
            len([each for each in sent if each[0] in names]) for names in sets
        )

    def test_several_encodings_of_a_topic(self) -> None:
        sets = ["abc", "ab", "bcd", "abcde"]
        transports = [self.framed(names) for names in sets]
        other = self.framed("ae", b"*")
        batch = [f"{name}{n}" for n in range(3) for name in "abcde"]
        for _ in range(3):
            self.route(*batch)
            self.bench.turn()
        assert not self.is_common()
        assert other.data == self.frames(batch * 3, "ae", b"*")
        for names, transport in zip(sets, transports, strict=True):
            assert transport.data == self.frames(batch * 3, names)

    def test_they_are_charged_and_bounded(self) -> None:
        for names in ("abc", "ab", "bcd"):
            self.framed(names)
        charged: list[int] = []
        topics = tuple(self.topics.values())
        mix = TopicMix(topics, lambda _topics, nbytes: charged.append(nbytes))
        assert mix.common.weight(len(mix.audiences())) == 0
        self.framed("abcde")
        added = mix.audiences()[-1]
        assert mix.common.weight(4) > 0
        assert charged[-1] - charged[0] == (
            added.weight(len(topics)) + RECIPIENT_BYTES + mix.common.weight(4)
        )
        many = [Topic(str(n)) for n in range(257)]
        assert CommonEncoder(many[:256]).weight(4) > 0
        assert CommonEncoder(many).weight(4) == 0
        assert [CommonEncoder(many).get(4) for _ in range(3)] == [None] * 3

    @given(st.data())
    def test_as_one_by_one(self, data: st.DataObject) -> None:
        self.setUp()
        sets = data.draw(st.lists(st.sets(st.sampled_from("abcde")), min_size=4, max_size=7))
        transports = [self.framed("".join(sorted(names))) for names in sets]
        expected = [b""] * len(sets)
        messages = st.tuples(
            st.sampled_from("abcde"), st.sampled_from((0, 1, 30, 31, 32, 33, 99, 100, 101))
        ).map(lambda one: one[0] + "x" * one[1])
        for _ in range(data.draw(st.integers(1, 6))):
            if data.draw(st.integers(0, 2)) == 0:
                number, name = data.draw(
                    st.tuples(st.integers(0, len(sets) - 1), st.sampled_from("abcde"))
                )
                box = self.box(transports[number])
                if name in sets[number]:
                    self.router.unsubscribe(box, self.topics[name])
                else:
                    self.router.subscribe(box, self.topics[name], Framed(name.encode()))
                sets[number] ^= {name}
            sent = [*"abcde", *data.draw(st.lists(messages, min_size=5, max_size=9))]
            self.route(*sent)
            for number, names in enumerate(sets):
                expected[number] += self.frames(sent, "".join(names))
            if data.draw(st.booleans()):
                self.bench.turn()
        self.bench.turn()
        assert [transport.data for transport in transports] == expected


class ChangeTests(MixedCase):
    """Subscriptions that begin or end in the middle of a tick"""

    def test_a_subscription_begins_with_the_next_message(self) -> None:
        bob = self.subscriber("a")
        self.route("a1", "b2")
        self.subscribe(bob, "b")
        eve = self.subscriber("ab")
        self.route("a3", "b4")
        self.bench.turn()
        assert bob.writes == [lines("a1", "a3", "b4")]
        assert eve.writes == [lines("a3", "b4")]
        assert self.bench.counters.delivered == 3 + 2

    def test_a_subscription_ends_with_the_message_before(self) -> None:
        bob, eve = self.subscriber("ab"), self.subscriber("ab")
        self.route("a1", "b2")
        self.router.unsubscribe(self.box(bob), self.topics["a"])
        self.route("a3", "b4")
        self.router.forget(self.box(bob))
        self.route("a5", "b6")
        self.bench.turn()
        assert bob.writes == [lines("a1", "b2", "b4")]
        assert eve.writes == [lines("a1", "b2", "a3", "b4", "a5", "b6")]

    def test_a_change_of_encoding(self) -> None:
        bob = self.subscriber("ab")
        self.route("a1", "b2")
        self.router.unsubscribe(self.box(bob), self.topics["b"])
        self.subscribe(bob, "b", Lines(b"B"))
        self.route("a3", "b4")
        self.bench.turn()
        assert bob.data == lines("a1", "b2", "a3", "B4")

    def test_a_topic_that_ends_and_is_created_again(self) -> None:
        bob, eve = self.subscriber("ab"), self.subscriber("a")
        self.route("a1", "b2")
        self.router.end(self.topics["a"])
        assert eve.data == lines("a1")
        self.topics["a"] = Topic("a")
        self.route("a3", "b4")
        self.subscribe(eve, "a")
        self.route("a5", "b6")
        self.bench.turn()
        assert bob.data == lines("a1", "b2", "b4", "b6")
        assert eve.data == lines("a1", "a5")

    def test_a_subscription_that_is_rechecked(self) -> None:
        def recheck(topic: Topic, change: object) -> bool:
            return topic.name != "a"

        transport = self.bench.outbox(recheck=recheck)
        self.subscribe(transport, "ab")
        self.route("a1", "b2")
        assert recheck_all(self.router, self.topics.values()) == (1, 1)
        self.route("a3", "b4")
        self.bench.turn()
        assert transport.data == lines("a1", "b2", "b4")

    def test_excluding_a_subscriber(self) -> None:
        bob, eve = self.subscriber("ab"), self.subscriber("ab")
        self.route("a1", "b2")
        with self.router.excluding(self.box(bob), self.topics["a"]):
            self.route_one("a", "3")
        self.route("a4", "b5")
        self.bench.turn()
        assert bob.data == lines("a1", "b2", "a4", "b5")
        assert eve.data == lines("a1", "b2", "a3", "a4", "b5")

    def test_mixes_are_bounded_and_created_again(self) -> None:
        self.patch(combination_cache, "_MAX_ITEMS", 200)  # type: ignore[no-untyped-call]
        bob = self.subscriber("ab")
        others = [Topic(f"{n}") for n in range(110)]
        self.route("a1", "b2")
        for other in others:
            self.router.mix([self.topics["a"], other])
        self.route("a3", "b4")
        self.bench.turn()
        assert bob.data == lines("a1", "b2", "a3", "b4")
        assert len(self.router.mixes) <= 100

    def test_their_audiences_are_counted_until_memory_is_short(self) -> None:
        memory = self.router.memory
        bob, eve = self.subscriber("ab"), self.subscriber("bc")
        before = memory.used
        self.route("a1", "b2")
        two = memory.used - before
        assert two > 2 * 1000
        now = memory.used
        self.router.unsubscribe(self.box(eve), self.topics["b"])
        freed = now - memory.used
        self.route("a3", "b4")
        assert memory.used - before < two
        memory.limit = memory.used + 1
        memory.add(1)
        memory.free(1)
        assert len(self.router.mixes) == 0
        # The subscription has been freed.
        assert memory.used == before - freed
        memory.limit = 0
        self.route("a5", "b6")
        self.bench.turn()
        assert bob.data == lines("a1", "b2", "a3", "b4", "a5", "b6")

    def test_mixes_do_not_keep_topics_that_have_ended(self) -> None:
        self.patch(combination_cache, "MAX_ENDED", 2)  # type: ignore[no-untyped-call]
        topics = [Topic(f"{n}") for n in range(3)]
        self.router.mix(topics)
        for topic, left in zip(topics, (1, 1, 0), strict=True):
            self.router.mixes.note_ended(topic)
            assert len(self.router.mixes) == left


class LossTests(MixedCase):
    """Messages that are not delivered are counted for each topic"""

    def test_messages_too_large_for_one_encoding(self) -> None:
        bob = self.bench.outbox(label="bob")
        self.subscribe(bob, "a", Lines(b"a", 2))
        self.subscribe(bob, "b", Lines(b"b", 3))
        eve = self.subscriber("abc")
        self.route("a333", "b333", "a22", "b4444", "c55555", "a4444", "b1")
        self.bench.turn()
        assert bob.data == lines("b333", "a22", "b1")
        assert eve.data == lines("a333", "b333", "a22", "b4444", "c55555", "a4444", "b1")
        assert self.drops() == {("a", "too-large"): 2, ("b", "too-large"): 1}
        assert self.bench.counters.delivered == 3 + 7

    def test_audiences_that_cannot_be_made_once(self) -> None:
        """The next messages are for all subscribers, not for those of the audiences made by then"""
        transports = [self.subscriber(names) for names in ("ab", "bc", "ca")]
        made = encoder_in_steps

        def fail_second(*given: Any) -> Any:
            failing.side_effect = MemoryError("no memory")
            return made(*given)

        with (
            patch.object(topic_mix, "encoder_in_steps", side_effect=fail_second) as failing,
            pytest.raises(MemoryError),
        ):
            self.route("a1", "b1", "c1")
        self.route("a2", "b2", "c2")
        self.bench.turn()
        assert [transport.data for transport in transports] == [
            lines("a2", "b2"), lines("b2", "c2"), lines("a2", "c2"),
        ]  # fmt: skip

    def test_no_message_of_a_batch_fits(self) -> None:
        bobs = [self.subscriber("ab", Lines(limit=0)) for _ in range(2)]
        self.route("a1", "b22", "b3")
        self.bench.turn()
        assert [bob.writes for bob in bobs] == [[], []]
        assert self.drops() == {("a", "too-large"): 2, ("b", "too-large"): 4}
        assert self.bench.counters.delivered == 0

    def test_a_slow_subscriber_drops_messages_of_each_topic(self) -> None:
        bob = self.subscriber("ab", policy=SlowPolicy(DROP, 10, 30))
        eve = self.subscriber("abc")
        self.box(bob).pause()
        self.route("a1", "b2", "b3")
        self.bench.turn()
        self.route("a4", "b5", "c6", "a7")
        self.bench.turn()
        assert self.drops() == {("a", "slow-consumer"): 2, ("b", "slow-consumer"): 1}
        assert self.bench.counters.delivered == 3 + 7
        bob.drain()
        assert bob.data == lines("a1", "b2", "b3")
        assert len(eve.data.splitlines()) == 7

    def test_a_slow_subscriber_and_messages_that_are_too_large(self) -> None:
        bob = self.bench.outbox(SlowPolicy(DROP, 1, 30))
        self.subscribe(bob, "a", Lines(b"a", 2))
        self.subscribe(bob, "bc")
        self.box(bob).pause()
        self.route("a333", "b4", "a1", "c", "b5")
        self.bench.turn()
        assert self.drops() == {
            ("a", "too-large"): 1, ("a", "slow-consumer"): 1,
            ("b", "slow-consumer"): 2, ("c", "slow-consumer"): 1,
        }  # fmt: skip
        assert self.bench.counters.delivered == 0

    def test_a_topic_without_remaining_messages_drops_nothing(self) -> None:
        bob = self.bench.outbox(SlowPolicy(DROP, 1, 30))
        self.subscribe(bob, "a", Lines(b"a", 2))
        self.subscribe(bob, "b")
        self.box(bob).pause()
        self.route("a333", "b4")
        self.bench.turn()
        assert dict(self.bench.counters.drops) == {
            ("bob", "a", "too-large"): 1,
            ("bob", "b", "slow-consumer"): 1,
        }

    def test_several_batches_that_were_joined(self) -> None:
        bob = self.subscriber("ab", policy=SlowPolicy(DROP, 1, 30))
        self.box(bob).pause()
        self.route("a1", "b2")
        self.route("b3", "b4", "a5")
        self.bench.turn()
        assert self.drops() == {("a", "slow-consumer"): 2, ("b", "slow-consumer"): 3}
        assert self.bench.counters.delivered == 0

    def test_a_subscriber_that_is_evicted(self) -> None:
        bob = self.subscriber("ab", policy=SlowPolicy(DISCONNECT, 6, 30))
        self.box(bob).pause()
        self.route("a1", "b2")
        self.bench.turn()
        self.route("b3", "a4")
        self.bench.turn()
        assert len(self.bench.closed) == 1
        assert self.drops() == {
            ("a", "disconnected"): 1, ("b", "disconnected"): 1,
            ("a", "slow-consumer"): 1, ("b", "slow-consumer"): 1,
        }  # fmt: skip
        assert self.bench.counters.delivered == 0
        self.route("a5", "b6")
        self.bench.turn()
        assert self.bench.counters.delivered == 0

    def test_a_subscriber_that_is_evicted_between_two_audiences(self) -> None:
        bob = self.subscriber("abc", policy=SlowPolicy(DISCONNECT, 3, 30))
        eve = self.subscriber("bc")
        self.box(bob).pause()
        self.route("a1", "b2")
        self.route("b3", "c4")
        self.bench.turn()
        assert len(self.bench.closed) == 1
        assert eve.data == lines("b2", "b3", "c4")
        assert self.bench.counters.delivered == 3
        assert sum(self.bench.counters.drops.values()) == 4

    def test_a_paused_subscriber_blocks_each_topic(self) -> None:
        bob = self.subscriber("ab", policy=SlowPolicy(PAUSE, 40, 30))
        self.box(bob).pause()
        self.route("a" + "." * 20, "b2", "c3")
        self.bench.turn()
        assert self.topics["a"].blockers == self.topics["b"].blockers == {self.box(bob)}
        assert not self.topics["c"].blockers
        bob.drain()
        assert not self.topics["a"].blockers
        assert not self.topics["b"].blockers

    def test_a_topic_of_the_mix_without_messages_is_not_blocked(self) -> None:
        bob = self.subscriber("abc", policy=SlowPolicy(PAUSE, 40, 30))
        self.box(bob).pause()
        mix = self.router.mix(self.topics[name] for name in "abc")
        sent = [("a", b"." * 20), ("b", b"x")]
        self.router.route_mixed(mix, mixed_batch(sent, mix.names, 0))
        self.bench.turn()
        assert self.topics["a"].blockers == self.topics["b"].blockers == {self.box(bob)}
        assert not self.topics["c"].blockers


class ShutTests(MixedCase):
    """``Outbox.shut`` returns the offset of the first message that was not written"""

    def unsent(self, transport: Transport) -> dict[str, int]:
        unsent = self.box(transport).shut(None)
        return {topic.name: offset for topic, offset in unsent.items()}

    def test_all_was_written(self) -> None:
        bob = self.subscriber("ab")
        self.route("a0", "b1")
        self.bench.turn()
        assert self.unsent(bob) == {}

    def test_a_mixed_batch_that_was_not_written(self) -> None:
        bob = self.subscriber("ab")
        self.box(bob).pause()
        self.route("a0", "b1", "c2")
        self.bench.turn()
        self.route("a3", "b4")
        self.bench.turn()
        unsent = self.unsent(bob)
        # The offsets are those of the batch: a session reads it again, but only its own topics.
        assert unsent == {"a": 0, "b": 0}
        assert self.bench.counters.dropped == 0

    def test_a_part_was_written(self) -> None:
        bob = self.subscriber("abc")
        self.route("a0", "b1")
        self.bench.turn()
        self.box(bob).pause()
        self.route("b2", "c3")
        self.route_one("a", "4")
        self.bench.turn()
        assert self.unsent(bob) == {"a": 4, "b": 2, "c": 2}

    def test_nothing_that_was_written_is_sent_again(self) -> None:
        """No topic has an unsent offset at or before a message that was written."""
        bob = self.subscriber("abc")
        self.route("a0", "b1", "c2")
        self.bench.turn()
        bob.room = 1
        sent = ["a3", "b4", "a5", "c6"]
        self.route(*sent)
        self.route_one("b", "7")
        self.bench.turn()
        assert bob.data == lines("a0", "b1", "c2", "a3", "b4", "a5", "c6", "b7")
        self.route("a8", "c9")
        self.bench.turn()
        assert self.unsent(bob) == {"a": 8, "c": 8}

    def test_a_reason_counts_each_topic(self) -> None:
        bob = self.subscriber("ab")
        self.box(bob).pause()
        self.route("a0", "b1", "a2", "c3")
        self.bench.turn()
        self.box(bob).shut("disconnected")
        assert self.drops() == {("a", "disconnected"): 2, ("b", "disconnected"): 1}
        assert self.bench.counters.delivered == 0


class CountTests(MixedCase):
    """Delivered and dropped messages add up"""

    def test_totals(self) -> None:
        policy = SlowPolicy(DROP, 60, 30)
        transports = [self.subscriber(names, policy=policy) for names in ("abc", "ab", "c", "bcd")]
        wanted: Counter[int] = Counter()
        for number in range(60):
            if number % 7 == 0:
                self.box(transports[number % 4]).pause()
            sent = [f"{'abcd'[(number + n) % 4]}{number}" for n in range(1 + number % 5)]
            self.route(*sent)
            for index, names in enumerate(("abc", "ab", "c", "bcd")):
                wanted[index] += sum(each[0] in names for each in sent)
            if number % 11 == 0:
                transports[number % 3].drain()
            if number % 2:
                self.bench.turn()
        self.bench.turn()
        for transport in transports:
            transport.drain()
        received = sum(len(transport.data.splitlines()) for transport in transports)
        assert self.bench.counters.delivered == received
        assert self.bench.counters.delivered + self.bench.counters.dropped == wanted.total()
        assert self.bench.counters.dropped > 0
