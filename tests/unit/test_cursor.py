"""Cursor: the history, then live delivery, without gaps or duplicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from pubsub.broker.delivery.history_reads import PAGE_BYTES
from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.delivery.slow_policy import DISCONNECT, SlowPolicy
from pubsub.broker.routing.batch import Page
from pubsub.kernel import Columns
from pubsub.store.memory_store import MemoryStore
from tests.unit.cursor_case import LARGE, CursorCase
from tests.unit.fakes import Held, Lines, Reader, Transport, make_listener


class LateStore(MemoryStore):
    """A history whose pages arrive when the test fires them, like those of a store on disk."""

    def __init__(self) -> None:
        super().__init__(1000, 2**26)
        self.asked: list[tuple[Deferred[Page], Deferred[Page]]] = []

    def read(self, *given: Any, **named: Any) -> Deferred[Page]:
        later: Deferred[Page] = Deferred()
        self.asked.append((later, super().read(*given, **named)))
        return later

    def answer(self) -> None:
        later, page = self.asked.pop(0)
        page.chainDeferred(later)


class CursorTests(CursorCase):
    """From the history to live delivery"""

    def test_missed_messages_precede_live_ones(self) -> None:
        self.publish(self.news, b"old")
        self.publish(self.news, b"missed 1", b"missed 2")
        self.resume(self.news, offset=1)
        self.publish(self.news, b"live")
        self.advance()
        assert self.lines() == [b"missed 1", b"missed 2", b"live"]
        assert self.broker.counters.delivered == 3

    def test_it_may_begin_within_a_batch(self) -> None:
        self.publish(self.news, b"0", b"1", b"2", b"3")
        self.resume(self.news, offset=2)
        self.advance()
        self.publish(self.news, b"4")
        self.advance()
        assert self.lines() == [b"2", b"3", b"4"]

    def test_only_subscribed_topics_are_replayed(self) -> None:
        self.publish(self.news, b"n1")
        self.publish(self.sport, b"s1")
        self.publish(self.news, b"n2")
        self.resume(self.news)
        self.publish(self.sport, b"s2")
        self.publish(self.news, b"n3")
        self.advance()
        assert self.lines() == [b"n1", b"n2", b"n3"]

    def test_each_topic_begins_at_its_position(self) -> None:
        for number in range(6):
            self.publish(self.news if number % 2 else self.sport, b"%d" % number)
        self.resume_from({self.news: 3, self.sport: 1})
        assert [self.cursor.position(topic) for topic in (self.news, self.sport)] == [3, 1]
        self.advance()
        assert self.lines() == [b"2", b"3", b"4", b"5"]
        assert self.box.cursor is None

    def test_each_topic_may_begin_within_a_batch(self) -> None:
        self.publish(self.news, b"n0", b"n1", b"n2")
        self.publish(self.sport, b"s3", b"s4", b"s5")
        self.resume_from({self.news: 1, self.sport: 5})
        self.advance()
        assert self.lines() == [b"n1", b"n2", b"s5"]

    def test_a_topic_without_missed_messages_becomes_live_with_the_others(self) -> None:
        self.publish(self.sport, b"s0")
        self.publish(self.news, b"n1")
        self.resume_from({self.news: 0, self.sport: 2})
        self.publish(self.sport, b"live")
        self.advance()
        assert self.lines() == [b"n1", b"live"]

    def test_without_missed_messages_it_is_live_at_once(self) -> None:
        self.resume(self.news)
        assert self.box.subscriptions == {self.news: Lines()}
        assert self.box.cursor is None

    def test_one_page_arrives_by_itself(self) -> None:
        self.publish(self.news, b"missed")
        self.resume(self.news)
        self.advance()
        assert self.lines() == [b"missed"]

    def test_the_last_of_several_pages_arrives_by_itself(self) -> None:
        for number in range(10):
            self.publish(self.news, b"%d" % number + LARGE)
        self.resume(self.news)
        self.advance()
        assert self.box.cursor is None
        assert self.lines() == [b"%d" % n for n in range(10)]

    def test_messages_published_between_pages_arrive_once_and_in_order(self) -> None:
        for number in range(8):
            self.publish(self.news, b"%d" % number + LARGE)
        self.resume(self.news)
        assert self.box.cursor is not None
        for number in range(8, 20):
            self.publish(self.news, b"%d" % number)
            self.advance(1)
        self.advance()
        assert self.box.cursor is None
        self.publish(self.news, b"20")
        self.advance()
        assert self.lines() == [b"%d" % n for n in range(21)]

    def test_messages_published_while_a_page_is_read_arrive_once(self) -> None:
        store = LateStore()
        self.start_broker(store)
        self.publish(self.news, b"0")
        self.resume(self.news)
        self.advance(1)
        self.publish(self.news, b"1")
        store.answer()
        self.advance()
        assert self.box.cursor is not None
        store.answer()
        self.advance()
        assert self.box.cursor is None
        self.publish(self.news, b"2")
        self.advance()
        assert self.lines() == [b"0", b"1", b"2"]

    @given(
        st.lists(st.lists(st.sampled_from([0, 1, 2, 4]), min_size=1, max_size=3), max_size=12),
        st.integers(0, 10),
        st.lists(st.sampled_from(["publish", "pause", "drain", "one", "turn"]), max_size=25),
    )
    def test_every_message_arrives_once_and_in_order(
        self, before: list[list[int]], start: int, steps: list[str]
    ) -> None:
        self.setUp()
        published = 0

        def publish(sizes: list[int]) -> None:
            nonlocal published
            numbers = range(published, published + len(sizes))
            pairs = zip(numbers, sizes, strict=True)
            self.publish(self.news, *(b"%d" % n + b"." * (size * 30_000) for n, size in pairs))
            published += len(sizes)

        for sizes in before:
            publish(sizes)
        start = min(start, published)
        self.resume(self.news, offset=start)
        for step in steps:
            if step == "publish":
                publish([4, 1])
            elif step == "pause":
                self.box.pause()
            elif step == "drain":
                self.transport.drain()
            elif step == "one":
                self.transport.drain(room=1)
            else:
                self.advance(1)
        self.transport.drain()
        self.advance()
        assert self.box.cursor is None
        publish([0])
        self.advance()
        assert self.lines() == [b"%d" % n for n in range(start, published)]
        assert self.broker.counters.delivered == published - start


class OthersTests(CursorCase):
    """What happens to others when their messages are handed over"""

    def crowd(self, evict: Callable[[str], None]) -> None:
        """A subscriber of sport is disconnected with its next message."""
        policy = SlowPolicy(DISCONNECT, 1)
        traffic = self.broker.counters.traffic["toy"]
        crowded = Outbox(self.broker.cursors, Transport(), policy, Reader(evict=evict), traffic)
        self.broker.router.subscribe(crowded, self.sport, Lines())
        crowded.pause()

    def publish_in_the_tick_of_the_page(self) -> None:
        self.publish(self.news, b"0")
        self.resume(self.news)
        self.publish(self.sport, b"for the other one")
        self.advance()

    def test_a_message_that_an_eviction_releases_is_not_lost(self) -> None:
        def release(reason: str) -> None:
            self.publish(self.news, b"1")

        self.crowd(release)
        self.publish_in_the_tick_of_the_page()
        self.publish(self.news, b"2")
        self.advance()
        assert self.lines() == [b"0", b"1", b"2"]
        assert self.broker.counters.drop_reasons["expired"] == 0

    def test_an_eviction_may_end_the_subscriber_itself(self) -> None:
        def end(reason: str) -> None:
            self.box.shut("slow-consumer")

        self.crowd(end)
        self.publish_in_the_tick_of_the_page()
        assert self.news.groups == {}
        assert self.broker.router.subscriptions == 1


class PausedTests(CursorCase):
    """An outbox that is paused while it catches up"""

    def test_pages_wait_for_the_outbox_to_drain(self) -> None:
        for number in range(20):
            self.publish(self.news, b"%d" % number + LARGE)
        self.transport.room = 1
        self.resume(self.news)
        self.advance()
        assert len(self.transport.writes) == 1
        assert self.box.queued + len(self.transport.data) < 2 * PAGE_BYTES
        assert self.box.cursor is not None
        while self.box.paused:
            self.transport.drain(room=1)
            self.advance()
        assert self.box.cursor is None
        assert self.lines() == [b"%d" % n for n in range(20)]

    def test_the_positions_are_where_the_next_page_starts(self) -> None:
        for number in range(20):
            self.publish(self.news, b"%d" % number + LARGE)
        self.transport.room = 1
        self.resume(self.news)
        self.advance()
        read = len(self.transport.data.splitlines()) + self.box.queued // (len(LARGE) + 1)
        assert self.cursor.position(self.news) == read

    def test_it_ends_when_the_outbox_is_shut(self) -> None:
        for number in range(20):
            self.publish(self.news, b"%d" % number + LARGE)
        self.transport.room = 1
        self.resume(self.news)
        self.advance()
        self.box.shut(None)
        self.advance()
        assert self.box.cursor is None
        assert not self.news.groups


class ChangeTests(CursorCase):
    """Subscriptions that end while the cursor reads"""

    def test_a_discarded_topic_is_neither_replayed_nor_live(self) -> None:
        self.start_with_large_messages(8, self.news, self.sport)
        before = self.lines()
        self.broker.router.unsubscribe(self.box, self.sport)
        self.transport.drain()
        self.advance()
        self.publish(self.sport, b"9")
        self.advance(1)
        self.publish(self.news, b"10")
        self.advance()
        rest = self.lines()[len(before) :]
        assert rest[-2:] == [b"6", b"10"]
        assert b"7" not in rest
        assert b"9" not in rest


class LossTests(CursorCase):
    """Messages that cannot be delivered are counted"""

    def drops(self) -> dict[str, int]:
        """Return the drops by reason."""
        found: dict[str, int] = {}
        for (client, _topic, reason), count in self.broker.counters.drops.items():
            assert client == "bob"
            found[reason] = found.get(reason, 0) + count
        return found

    def test_messages_expired_before_the_start_are_counted(self) -> None:
        self.start_broker(MemoryStore(3, 2**20))
        for number in range(10):
            self.publish(self.news, b"%d" % number)
        self.resume(self.news, offset=2)
        self.advance(1)
        self.publish(self.news, b"10")
        self.advance()
        assert self.lines() == [b"7", b"8", b"9", b"10"]
        assert self.drops() == {"expired": 5}

    def test_messages_expired_before_a_start_that_the_client_chooses_are_not(self) -> None:
        self.patch(Outbox, "chooses_start", True)  # type: ignore[no-untyped-call]
        self.start_broker(MemoryStore(3, 2**20))
        for number in range(10):
            self.publish(self.news, b"%d" % number)
        self.resume(self.news, offset=2)
        self.publish(self.news, b"10")
        self.advance()
        assert self.lines() == [b"8", b"9", b"10"]
        assert self.drops() == {"expired": 1}

    def test_without_a_history_every_missed_message_is_counted(self) -> None:
        self.start_broker(MemoryStore(0, 0))
        for number in range(4):
            self.publish(self.news, b"%d" % number)
        self.resume(self.news, offset=1)
        self.advance(1)
        self.publish(self.news, b"live")
        self.advance()
        assert self.lines() == [b"live"]
        assert self.drops() == {"expired": 3}

    def test_messages_that_expire_between_pages_are_counted(self) -> None:
        self.start_broker(MemoryStore(10, 2**26))
        for number in range(10):
            self.publish(self.news, b"%d" % number + LARGE)
        self.transport.room = 1
        self.resume(self.news)
        self.advance()
        for number in range(10, 19):
            self.publish(self.news, b"%d" % number)
        self.transport.drain()
        self.advance()
        self.publish(self.news, b"19")
        self.advance()
        lines = self.lines()
        assert lines[-11:] == [b"%d" % n for n in range(9, 20)]
        assert len(lines) < 20
        assert self.drops() == {"expired": 20 - len(lines)}

    def test_messages_too_large_for_the_encoding_are_counted(self) -> None:
        self.publish(self.news, b"fits", b"too large", b"ok")
        self.publish(self.news, b"too large", b"as well")
        self.resume(self.news, limit=4)
        self.publish(self.news, b"live")
        self.advance()
        assert self.lines() == [b"fits", b"ok", b"live"]
        assert self.drops() == {"too-large": 3}
        assert self.broker.counters.delivered == 3


class GatheredTests(CursorCase):
    """Messages of the present tick that were gathered when the end of the history is reached"""

    def gather(self, payload: bytes) -> None:
        publisher = make_listener(self.broker).publisher(Held(), b"alice")
        self.broker.router.gathers = True
        assert publisher.publish_soon(self.news, Columns.of([payload]))

    def delivered(self) -> list[bytes]:
        self.advance()
        assert self.box.cursor is None
        assert self.broker.counters.dropped == 0
        return self.lines()

    def test_they_are_in_the_page(self) -> None:
        self.publish(self.news, b"0")
        self.resume(self.news)
        self.gather(b"1")
        self.advance(1)
        # Otherwise it would not be live as long as each tick has others.
        assert self.box.cursor is None
        assert self.delivered() == [b"0", b"1"]

    def test_the_page_is_older(self) -> None:
        self.start_broker(store := LateStore())
        self.publish(self.news, b"0")
        self.resume(self.news)
        self.advance(1)
        self.gather(b"1")
        store.answer()
        assert self.box.cursor is not None
        self.advance(1)
        store.answer()
        assert self.delivered() == [b"0", b"1"]
