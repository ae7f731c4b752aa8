"""Cursor: the history of batches that have messages of several topics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pubsub.broker.topic_space.topics import Topic
from pubsub.kernel import Columns
from tests.unit.cursor_case import CursorCase
from tests.unit.fakes import Held, Lines, make_listener


class MixedCase(CursorCase):
    """Messages are named by the first letter of their topic and their number."""

    def topic(self, message: str) -> Topic:
        return {"n": self.news, "s": self.sport}[message[0]]

    def publish_mixed(self, *messages: str) -> None:
        mix = self.broker.router.mix([self.news, self.sport])
        indexes = [mix.topics.index(self.topic(message)) for message in messages]
        columns = Columns.of([message.encode() for message in messages], indexes)
        publisher = make_listener(self.broker).publisher(Held(), b"alice")
        assert publisher.publish_mixed(mix, columns) is not None

    def found(self) -> list[str]:
        return [line.decode() for line in self.lines()]

    def drops(self) -> dict[tuple[str, str], int]:
        return {(topic, why): n for (_, topic, why), n in self.broker.counters.drops.items()}


class OrderTests(MixedCase):
    """Messages keep their order"""

    def test_all_topics(self) -> None:
        self.publish_mixed("n0", "s1", "n2", "s3")
        self.publish_mixed("s4", "n5")
        self.resume(self.news, self.sport)
        self.publish_mixed("n6", "s7")
        self.advance()
        assert self.found() == ["n0", "s1", "n2", "s3", "s4", "n5", "n6", "s7"]
        assert self.broker.counters.delivered == 8

    def test_one_topic(self) -> None:
        self.publish_mixed("n0", "s1", "n2", "s3")
        self.resume(self.sport)
        self.publish_mixed("n4", "s5")
        self.advance()
        assert self.found() == ["s1", "s3", "s5"]

    def test_each_topic_begins_at_its_position(self) -> None:
        self.publish_mixed("n0", "s1", "n2", "s3", "n4", "s5")
        self.resume_from({self.news: 4, self.sport: 1})
        self.advance()
        assert self.found() == ["s1", "s3", "n4", "s5"]

    def test_a_topic_that_begins_after_the_batch(self) -> None:
        self.publish_mixed("n0", "s1", "n2")
        self.resume_from({self.news: 3, self.sport: 0})
        self.publish_mixed("n3", "s4")
        self.advance()
        assert self.found() == ["s1", "n3", "s4"]

    def test_a_discarded_topic(self) -> None:
        self.publish_mixed("n0", "s1", "n2")
        self.resume(self.news, self.sport)
        self.broker.router.unsubscribe(self.box, self.news)
        self.advance()
        assert self.found() == ["s1"]

    @given(
        st.lists(st.lists(st.sampled_from("ns"), min_size=1, max_size=6), max_size=6),
        st.integers(0, 40),
        st.integers(0, 40),
    )
    def test_from_any_offsets(self, batches: list[list[str]], news: int, sport: int) -> None:
        self.setUp()
        number = 0
        wanted: list[str] = []
        for batch in batches:
            messages = [f"{name}{number + n}" for n, name in enumerate(batch)]
            starts = {"n": news, "s": sport}
            wanted += [each for each in messages if int(each[1:]) >= starts[each[0]]]
            self.publish_mixed(*messages)
            number += len(messages)
        # A position is never after the end of the log.
        positions = {self.news: min(news, number), self.sport: min(sport, number)}
        self.resume_from(positions)
        self.publish_mixed("nlive", "slive")
        self.advance()
        assert self.found() == [*wanted, "nlive", "slive"]


class LossTests(MixedCase):
    """Messages that are not delivered are counted for each topic"""

    def resume_with(self, limits: dict[Topic, int]) -> None:
        for topic, limit in limits.items():
            self.broker.router.subscribe(self.box, topic, Lines(limit=limit), 0)
        self.advance()

    def test_messages_that_are_too_large(self) -> None:
        self.publish_mixed("n0", "n...", "s1", "s...", "n2", "n...")
        self.resume_with({self.news: 2, self.sport: 100})
        self.advance()
        assert self.transport.data == b"n0\ns1\ns...\nn2\n"
        assert self.drops() == {("news", "too-large"): 2}
        assert self.broker.counters.delivered == 4

    def leave_unsent(self, *messages: str) -> None:
        """Catch up with a page whose last batch is ``messages``, which the transport has no room
        for; then end the connection. Messages over two bytes are too large."""
        for _ in range(600):
            self.publish_mixed("s0")
        self.publish_mixed(*messages)
        self.transport.room = 1
        for topic in (self.news, self.sport):
            # Large enough for two writes of a page.
            self.broker.router.subscribe(self.box, topic, Lines(b"." * 500, 2), 0)
        self.advance()
        self.box.shut("disconnected")
        assert self.broker.counters.delivered == len(self.lines())

    def test_messages_that_are_too_large_are_not_counted_again(self) -> None:
        self.leave_unsent("n1", "n...", "s1", "s...", "n2", "s3")
        drops = self.drops()
        assert drops.pop(("sport", "disconnected")) == 602 - len(self.lines())
        assert drops == {
            ("news", "too-large"): 1, ("sport", "too-large"): 1, ("news", "disconnected"): 2,
        }  # fmt: skip

    def test_a_topic_without_remaining_messages(self) -> None:
        self.leave_unsent("n...", "s1")
        drops = self.drops()
        assert drops.pop(("sport", "disconnected")) == 601 - len(self.lines())
        assert drops == {("news", "too-large"): 1}

    def test_messages_that_were_not_written(self) -> None:
        self.publish_mixed("n0", "s1", "n2")
        self.transport.room = 0
        self.resume(self.news, self.sport)
        self.advance()
        self.publish_mixed("n3", "s4")
        self.advance()
        assert self.found() == ["n0", "s1", "n2"]
        assert self.box.shut_and_get_offsets() == {self.news: 3, self.sport: 3}
        assert self.broker.counters.dropped == 0
