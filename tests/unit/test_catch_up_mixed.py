"""CatchUp: the history of batches that have messages of several topics."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pubsub.broker.catch_up import shut_and_get_offsets
from pubsub.broker.topics import Topic
from pubsub.kernel import Columns
from tests.unit.fakes import Held, Lines, make_listener
from tests.unit.test_catch_up import CatchUpCase


class MixedCase(CatchUpCase):
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
        self.catch_up(self.news, self.sport).start()
        self.publish_mixed("n6", "s7")
        self.turns()
        assert self.found() == ["n0", "s1", "n2", "s3", "s4", "n5", "n6", "s7"]
        assert self.broker.counters.delivered == 8

    def test_one_topic(self) -> None:
        self.publish_mixed("n0", "s1", "n2", "s3")
        self.catch_up(self.sport).start()
        self.publish_mixed("n4", "s5")
        self.turns()
        assert self.found() == ["s1", "s3", "s5"]

    def test_each_topic_begins_at_its_position(self) -> None:
        self.publish_mixed("n0", "s1", "n2", "s3", "n4", "s5")
        self.catch_up_from({self.news: 4, self.sport: 1}).start()
        self.turns()
        assert self.found() == ["s1", "s3", "n4", "s5"]

    def test_a_topic_that_begins_after_the_batch(self) -> None:
        self.publish_mixed("n0", "s1", "n2")
        self.catch_up_from({self.news: 3, self.sport: 0}).start()
        self.publish_mixed("n3", "s4")
        self.turns()
        assert self.found() == ["s1", "n3", "s4"]

    def test_a_discarded_topic(self) -> None:
        self.publish_mixed("n0", "s1", "n2")
        catching_up = self.catch_up(self.news, self.sport)
        catching_up.discard(self.news)
        catching_up.start()
        self.turns()
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
        self.catch_up_from(positions).start()
        self.publish_mixed("nlive", "slive")
        self.turns()
        assert self.found() == [*wanted, "nlive", "slive"]


class LossTests(MixedCase):
    """Messages that are not delivered are counted for each topic"""

    def catch_up_with(self, limits: dict[Topic, int]) -> None:
        encodings = {topic: Lines(limit=limit) for topic, limit in limits.items()}
        positions = dict.fromkeys(limits, 0)
        make_listener(self.broker).catch_up(self.box, positions, encodings).start()

    def test_messages_that_are_too_large(self) -> None:
        self.publish_mixed("n0", "n...", "s1", "s...", "n2", "n...")
        self.catch_up_with({self.news: 2, self.sport: 100})
        self.turns()
        assert self.transport.data == b"n0\ns1\ns...\nn2\n"
        assert self.drops() == {("news", "too-large"): 2}
        assert self.broker.counters.delivered == 4

    def test_messages_that_are_too_large_are_not_counted_again(self) -> None:
        self.publish_mixed("n0", "n...", "s1", "s...", "n2", "s3")
        self.box.pause()
        self.catch_up_with({self.news: 2, self.sport: 2})
        self.box.shut("disconnected")
        assert self.drops() == {
            ("news", "too-large"): 1, ("sport", "too-large"): 1,
            ("news", "disconnected"): 2, ("sport", "disconnected"): 2,
        }  # fmt: skip
        assert self.broker.counters.delivered == 0

    def test_a_topic_of_which_every_message_is_too_large(self) -> None:
        self.publish_mixed("n...", "s1")
        self.box.pause()
        self.catch_up_with({self.news: 2, self.sport: 2})
        self.box.shut("disconnected")
        assert self.drops() == {("news", "too-large"): 1, ("sport", "disconnected"): 1}

    def test_messages_that_were_not_written(self) -> None:
        self.publish_mixed("n0", "s1", "n2")
        catching_up = self.catch_up(self.news, self.sport)
        self.box.pause()
        catching_up.start()
        offsets = shut_and_get_offsets(
            self.box, catching_up.positions, self.broker.store.next_offset
        )
        assert offsets == {self.news: 0, self.sport: 0}
        assert self.broker.counters.dropped == 0
