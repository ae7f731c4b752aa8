"""EndedTopics: a log forgets topics that ended when it has no message of them."""

from __future__ import annotations

import errno
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.segments.segment import Segment
from pubsub.store.upkeep import ended_topics
from pubsub.store.upkeep.retention_limits import RetentionLimits
from tests.unit.fakes import scratch
from tests.unit.upkeep_log import Log

MANY = 4


class EndedTopicTests(SynchronousTestCase):
    """A log whose messages do not expire soon."""

    def setUp(self) -> None:
        self.patch(LogDirectory, "free_bytes", lambda _: (2**40, 2**40))  # type: ignore[no-untyped-call]
        self.patch(ended_topics, "_MANY", MANY)  # type: ignore[no-untyped-call]
        self.patch(ended_topics, "_FORGOTTEN", 3)  # type: ignore[no-untyped-call]
        self.path = scratch(self) / "history"
        self.log = self.open()

    def open(self) -> Log:
        log = Log(self.path, RetentionLimits("*", seconds=10**6))
        self.addCleanup(lambda: log.close() if log is self.log else None)
        return log

    def known(self) -> dict[str, int]:
        """Return the topics that are known to have ended, which are the same on disk."""
        assert self.log.metadata.ended() == self.log.catalog.ended
        return dict(self.log.catalog.ended)

    def end_empty(self, count: int) -> None:
        for number in range(count):
            self.log.end(f"empty-{number}")

    def test_topics_without_messages(self) -> None:
        self.log.put(("other", b"1"))
        self.end_empty(100)
        self.log.seal()
        self.log.rest()
        assert self.known() == {}

    def test_a_few_are_not_searched_for(self) -> None:
        self.log.put(("other", b"1"))
        self.end_empty(MANY - 1)
        self.log.seal()
        self.log.rest()
        assert len(self.known()) == MANY - 1

    def test_topics_with_messages_in_any_segment(self) -> None:
        for name in "abcd":
            # Most of each segment is not hidden, so that it is not rewritten.
            self.log.put((name, b""), *[("other", b"x" * 100)] * 10)
            if name != "c":
                self.log.seal()
        for name in "abcd":
            self.log.end(name)
        self.end_empty(20)
        self.log.seal()
        self.log.rest()
        assert sorted(self.known()) == ["a", "b", "c", "d"]
        assert {topic for _, topic, _ in self.log.read()} == {"other"}

    def test_messages_that_were_removed(self) -> None:
        for name in "abcdef":
            self.log.put((name, b"x" * 100))
        self.log.put(("other", b"1"))
        for name in "abcdef":
            self.log.end(name)
        self.log.seal()
        self.log.rest()
        assert self.known() == {}
        assert self.log.read() == [(6, "other", b"1")]

    def test_a_topic_that_ended_after_the_last_complete_segment(self) -> None:
        self.log.put(("other", b"1"))
        self.log.seal()
        self.log.put(("late", b"1"), *[("other", b"x" * 100)] * 10)
        self.log.end("late")
        self.end_empty(MANY)
        self.log.rest()
        assert "late" in self.known()

    def test_a_topic_that_was_created_again(self) -> None:
        self.end_empty(MANY)
        self.log.put(("empty-0", b"again"))
        self.log.seal()
        self.log.rest()
        assert self.known() == {}
        assert self.log.read("empty-0") == [(0, "empty-0", b"again")]

    def test_a_topic_that_ends_again_during_the_search(self) -> None:
        self.log.put(("other", b"1"))
        self.end_empty(MANY)
        self.log.seal()
        search = ended_topics.EndedTopics(self.log.catalog, self.log.metadata, self.log.writer)
        assert search.step()
        self.log.put(("empty-1", b"again"))
        self.log.end("empty-1")
        while search.step():
            pass
        assert self.known() == {"empty-1": 2}
        assert self.log.read("empty-1") == []

    def test_the_next_search_waits_for_as_many_again(self) -> None:
        names = [f"kept-{number}" for number in range(MANY)]
        self.log.put(*[(name, b"") for name in names], *[("other", b"x" * 100)] * 10)
        for name in names:
            self.log.end(name)
        self.log.seal()
        self.log.rest()
        assert sorted(self.known()) == names
        self.end_empty(MANY - 1)
        self.log.seal()
        self.log.rest()
        assert len(self.known()) == 2 * MANY - 1
        self.log.end("empty-9")
        self.log.seal()
        self.log.rest()
        assert sorted(self.known()) == names

    def test_a_segment_that_cannot_be_read_now(self) -> None:
        """It may have messages that are hidden."""
        self.log.put(("a", b""), *[("other", b"x" * 100)] * 10)
        self.log.end("a")
        self.end_empty(MANY)
        self.log.seal()
        error = OSError(errno.EIO, "Input/output error")
        search = ended_topics.EndedTopics(self.log.catalog, self.log.metadata, self.log.writer)
        self.log.catalog.segments[0].release()
        with patch.object(Segment, "_read_index", side_effect=error):
            while search.step():
                pass
        assert len(self.known()) == MANY + 1
        self.log.end("empty-9")
        self.log.rest()
        self.log.seal()
        self.log.rest()
        assert set(self.known()) <= {"a", "empty-9"}

    def test_a_restart(self) -> None:
        self.log.put(("a", b""), *[("other", b"x" * 100)] * 10)
        self.log.end("a")
        self.end_empty(10)
        self.log.close()
        self.log = self.open()
        self.log.rest()
        assert self.known() == {"a": 11}
        assert {topic for _, topic, _ in self.log.read()} == {"other"}
