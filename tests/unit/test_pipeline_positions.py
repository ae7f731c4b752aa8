"""A position for each topic: topics that are added, quiet ones, and those of earlier versions."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from pubsub.errors import ConfigurationError
from pubsub.pipeline.histories.history import DataLoss
from tests.histories import history
from tests.unit.raising import raised
from tests.unit.reader_case import ALL, ReaderCase


class PositionCase(ReaderCase):
    """100 messages, ten orders and ten of cafe/7 in turn, and a query with a position."""

    def setUp(self) -> None:
        super().setUp()
        self.at: dict[str, Any] = {}
        self.batches = 0

    def put(self, topic: str, count: int = 1) -> None:
        with history(self.path) as file:
            file.put(topic, [b"x"] * count)

    def run_query(self, limit: ReadLimit = ALL, /, **given: str) -> list[int]:
        """Run the query until nothing is left, in a new process; return the offsets."""
        reader = self.stream(**given)
        at = self.at or reader.initialOffset()
        batches, self.at = self.run_batches(reader, at, limit)
        self.batches = len(batches)
        return [row["offset"] for batch in batches for row in batch]

    def read_topics(self, limit: ReadLimit = ALL, /, **given: str) -> dict[str, int]:
        """As ``run_query``; return the number of messages of each topic, none of them twice."""
        reader = self.stream(**given)
        at = self.at or reader.initialOffset()
        batches, self.at = self.run_batches(reader, at, limit)
        self.batches = len(batches)
        rows = [row for batch in batches for row in batch]
        assert len({row["offset"] for row in rows}) == len(rows)
        counts: dict[str, int] = {}
        for row in rows:
            counts[row["topic"]] = counts.get(row["topic"], 0) + 1
        return counts


class AddedTopicTests(PositionCase):
    def test_it_begins_at_the_earliest_offset(self) -> None:
        start = {"startingOffsets": "earliest"}
        assert self.read_topics(subscribe="orders", **start) == {"orders": 50}
        self.put("orders", 3)
        found = self.read_topics(subscribe="orders,cafe/7", **start)
        assert found == {"orders": 3, "cafe/7": 50}
        # The first batch is empty: it stores where the new topic begins.
        assert self.batches == 2
        assert "behind" not in self.at["0"]
        assert self.read_topics(subscribe="orders,cafe/7", **start) == {}
        assert self.batches == 0

    def test_it_begins_at_the_end(self) -> None:
        """The messages of the others before the end are still read."""
        start = {"startingOffsets": "latest"}
        assert self.read_topics(subscribe="orders", startingOffsets="earliest") == {"orders": 50}
        self.put("orders", 3)
        self.put("cafe/7", 3)
        assert self.read_topics(subscribe="orders,cafe/7", **start) == {"orders": 3}
        self.put("cafe/7", 2)
        assert self.read_topics(subscribe="orders,cafe/7", **start) == {"cafe/7": 2}

    def test_it_begins_at_its_own_offset(self) -> None:
        assert self.read_topics(subscribe="orders", startingOffsets="earliest") == {"orders": 50}
        own = '{"cafe/7": {"0": 85}, "orders": {"0": 0}}'
        found = self.run_query(subscribe="orders,cafe/7", startingOffsets=own)
        assert found == [*range(90, 100)]
        raised(ConfigurationError, self.stream, subscribe="orders", startingOffsets=own)

    def test_it_begins_at_a_time(self) -> None:
        assert self.read_topics(subscribe="orders", startingOffsets="earliest") == {"orders": 50}
        found = self.read_topics(subscribe="orders,cafe/7", startingTimestamp="0")
        assert found == {"cafe/7": 50}

    def test_it_catches_up_beside_the_others(self) -> None:
        """With a limit on rows, neither the new topic nor the old one waits for the other."""
        start = {"startingOffsets": "earliest"}
        self.read_topics(subscribe="orders", **start)
        self.put("orders", 50)
        reader = self.stream(subscribe="orders,cafe/7", **start)
        batches, _ = self.run_batches(reader, self.at, ReadMaxRows(20))
        topics = [{row["topic"] for row in batch} for batch in batches]
        assert topics[0] == set()
        assert topics[1] == {"orders", "cafe/7"}
        assert [len(batch) for batch in batches] == [0, 20, 20, 20, 20, 20]

    def test_a_wider_pattern(self) -> None:
        start = {"startingOffsets": "earliest"}
        self.put("more", 5)
        assert self.read_topics(subscribePattern="ord.*", **start) == {"orders": 50}
        assert self.read_topics(subscribePattern=".*r.*", **start) == {"more": 5}
        self.put("river", 5)
        assert self.read_topics(**start) == {"cafe/7": 50, "river": 5}

    def test_removed_and_added_again(self) -> None:
        start = {"startingOffsets": "earliest"}
        assert self.run_query(**start) == list(range(100))
        assert self.read_topics(subscribe="orders", **start) == {}
        self.put("cafe/7", 5)
        assert self.read_topics(subscribe="orders,cafe/7", **start) == {"cafe/7": 55}

    def test_a_batch_that_is_run_again_with_other_options_reads_the_same(self) -> None:
        start = {"startingOffsets": "earliest"}
        reader = self.stream(subscribe="orders", **start)
        first = reader.initialOffset()
        end = json.loads(json.dumps(reader.latestOffset(first, ReadMaxRows(20))))
        other = self.stream(subscribe="cafe/7", **start)
        rows = self.rows(other, other.partitions(first, end))
        assert [row["topic"] for row in rows] == ["orders"] * 20

    @settings(max_examples=15, deadline=None)
    @example(steps=[(frozenset("a"), "b", 7), (frozenset("ab"), "a", 3)], limit=2)
    @given(
        steps=st.lists(
            st.tuples(
                st.frozensets(st.sampled_from("abc"), min_size=1),
                st.sampled_from("abc"),
                st.integers(1, 20),
            ),
            min_size=1,
            max_size=6,
        ),
        limit=st.none() | st.integers(1, 30),
    )
    def test_every_message_of_the_topics_once(
        self, steps: list[tuple[frozenset[str], str, int]], limit: int | None
    ) -> None:
        """Topics are only added; each is read from its first message on, none twice."""
        self.path = self.path.with_name(f"history-{len(list(self.path.parent.iterdir()))}")
        self.at = {}
        topics: frozenset[str] = frozenset()
        sent: dict[str, int] = {}
        seen: dict[str, int] = {}
        most = ReadAllAvailable() if limit is None else ReadMaxRows(limit)
        for added, topic, count in steps:
            topics |= added
            self.put(topic, count)
            sent[topic] = sent.get(topic, 0) + count
            found = self.read_topics(
                most, subscribe=",".join(sorted(topics)), startingOffsets="earliest"
            )
            for name, number in found.items():
                seen[name] = seen.get(name, 0) + number
            assert seen == {name: number for name, number in sent.items() if name in topics}


class ChangedTopicTests(PositionCase):
    """The topics are changed while some are behind, or have offsets of their own"""

    def begin(self, limit: int, **given: str) -> list[str]:
        """Read one batch; return its topics and offsets."""
        reader = self.stream(**given)
        end = reader.latestOffset(self.at, ReadMaxRows(limit))
        rows = self.rows(reader, reader.partitions(self.at, end))
        self.at = json.loads(json.dumps(end))
        return [f"{row['topic']} {row['offset']}" for row in rows]

    def test_a_topic_that_is_behind_goes_on_where_it_is(self) -> None:
        start = {"startingOffsets": "earliest"}
        assert self.read_topics(subscribe="orders", **start) == {"orders": 50}
        both = {"subscribe": "orders,cafe/7", **start}
        # It stores where the new topic begins.
        assert self.begin(15, **both) == []
        assert self.begin(15, **both) == [f"cafe/7 {n}" for n in (*range(10, 20), *range(30, 35))]
        assert self.at["0"]["behind"] == [{"next": 35, "topics": ["cafe/7"]}]
        self.put("third", 4)
        found = self.run_query(subscribe="orders,cafe/7,third", **start)
        left = [*range(35, 40), *range(50, 60), *range(70, 80), *range(90, 100)]
        assert sorted(found) == [*left, *range(100, 104)]

    def test_a_topic_that_is_behind_stays_so_if_another_begins_at_the_end(self) -> None:
        start = {"startingOffsets": "earliest"}
        self.run_query(subscribe="orders", **start)
        for _ in range(2):
            self.begin(15, subscribe="orders,cafe/7", **start)
        self.put("orders", 2)
        self.put("cafe/7", 2)
        self.put("third", 2)
        latest = {"subscribe": "orders,cafe/7,third", "startingOffsets": "latest"}
        assert self.begin(15, **latest) == []
        self.put("third", 2)
        left = [*range(35, 40), *range(50, 60), *range(70, 80), *range(90, 100)]
        assert sorted(self.run_query(**latest)) == [*left, *range(100, 104), 106, 107]

    def test_a_topic_that_is_removed_while_it_is_behind(self) -> None:
        """It begins again if it is added again."""
        start = {"startingOffsets": "earliest"}
        self.run_query(subscribe="orders", **start)
        for _ in range(2):
            self.begin(15, subscribe="orders,cafe/7", **start)
        assert self.read_topics(subscribe="orders", **start) == {}
        assert "behind" not in self.at["0"]
        assert self.read_topics(subscribe="orders,cafe/7", **start) == {"cafe/7": 50}

    def test_own_offsets_are_those_of_topics_that_are_new(self) -> None:
        """A topic that was read before does not begin again, and others have the default."""
        self.put("third", 3)
        assert self.read_topics(subscribe="orders", startingOffsets="earliest") == {"orders": 50}
        self.put("orders", 2)
        own = json.dumps({"orders": {"0": 0}, "cafe/7": {"0": 85}})
        given = {"subscribePattern": ".*", "startingOffsets": own}
        assert sorted(self.run_query(**given)) == [*range(90, 100), 103, 104]
        self.put("third")
        assert self.run_query(**given) == [105]


class FirstBatchTests(PositionCase):
    """Spark asks again where a query begins if its first batch was not committed."""

    def again(self, first: dict[str, Any], **given: str) -> list[str]:
        """Run the first batch of a reader again in another process; return the topics."""
        other = self.stream(**first)
        end = json.loads(json.dumps(other.latestOffset(other.initialOffset(), ReadMaxRows(20))))
        self.put("orders", 30)
        reader = self.stream(**{**first, **given})
        return [
            r["topic"] for r in self.rows(reader, reader.partitions(reader.initialOffset(), end))
        ]

    def test_with_other_topics(self) -> None:
        first = {"subscribe": "orders", "startingOffsets": "earliest"}
        assert self.again(first, subscribe="orders,cafe/7") == ["orders"] * 20

    def test_from_the_end(self) -> None:
        reader = self.stream(subscribe="orders")
        first = reader.initialOffset()
        self.put("orders", 10)
        end = reader.latestOffset(first, ALL)
        self.put("orders", 10)
        later = self.stream(subscribe="orders")
        tasks = later.partitions(later.initialOffset(), end)
        assert self.offsets(self.rows(later, tasks)) == list(range(100, 110))

    def test_of_an_earlier_version(self) -> None:
        first = self.stream(subscribe="orders", startingOffsets="earliest").initialOffset()
        end = {"0": {"next": 60, "epoch": first["0"]["epoch"]}}
        reader = self.stream(subscribe="orders", startingOffsets="earliest")
        assert len(self.rows(reader, reader.partitions(reader.initialOffset(), end))) == 30

    def test_the_batch_after_it(self) -> None:
        """A partition that does not move is not read again."""
        start = {"subscribe": "orders", "startingOffsets": "earliest"}
        assert len(self.run_query(ReadMaxRows(20), **start)) == 50
        assert "since" not in self.at["0"]
        assert "initial" not in self.at["0"]


class QuietTests(PositionCase):
    def test_a_quiet_topic_costs_no_batches(self) -> None:
        start = {"subscribe": "orders", "startingOffsets": "earliest"}
        assert len(self.run_query(**start)) == 50
        reader = self.stream(**start)
        for _ in range(3):
            self.put("cafe/7", 10)
            assert reader.latestOffset(self.at, ALL) == self.at
            assert reader.reportLatestOffset()["0"]["lag"]["messages"] == 0
        self.put("orders")
        assert self.run_query(**start) == [130]

    def test_events_are_no_reason_for_a_batch(self) -> None:
        self.run_query(startingOffsets="earliest")
        self.put("$SYS/events", 10)
        assert self.run_query() == []
        assert self.batches == 0

    def test_expired_messages_of_other_topics_are_no_loss(self) -> None:
        start = {"subscribe": "orders", "startingOffsets": "earliest"}
        self.run_query(**start)
        reader = self.stream(**start)
        self.put("cafe/7", 50)
        assert reader.latestOffset(self.at, ALL) == self.at
        with history(self.path) as file:
            file.expire(150)
        # The position moves before another process can take this for a loss.
        end = reader.latestOffset(self.at, ALL)
        assert end["0"]["next"] == 150
        assert list(reader.partitions(self.at, end)) == []

    def test_expired_messages_that_were_not_read_are_a_loss(self) -> None:
        start = {"subscribe": "orders", "startingOffsets": "earliest"}
        self.run_query(**start)
        self.put("orders", 50)
        with history(self.path) as file:
            file.expire(150)
        reader = self.stream(**start)
        end = reader.latestOffset(self.at, ALL)
        raised(DataLoss, reader.partitions, self.at, end)

    def test_of_a_file_the_position_stays_in_its_newer_half(self) -> None:
        """No broker stores the quiet topics, so another process could take them for a loss."""
        start = {"subscribe": "orders", "startingOffsets": "earliest"}
        self.run_query(**start)
        self.put("cafe/7", 50)
        self.run_query(**start)
        assert self.batches == 0
        self.put("cafe/7", 100)
        assert self.run_query(**start) == []
        assert (self.batches, self.at["0"]["next"]) == (1, 250)


class OldCheckpointTests(PositionCase):
    """Positions of version 0.1: {"0": {"next": 60, "epoch": "1-..."}}."""

    def setUp(self) -> None:
        super().setUp()
        epoch = self.stream().initialOffset()["0"]["epoch"]
        self.at = {"0": {"next": 60, "epoch": epoch}}

    def test_it_goes_on(self) -> None:
        assert self.run_query(subscribe="orders") == [*range(60, 70), *range(80, 90)]
        assert self.at["0"]["reads"] == {"topics": ["orders"]}
        found = self.read_topics(subscribe="orders,cafe/7", startingOffsets="earliest")
        assert found == {"cafe/7": 50}

    def test_it_costs_no_batch(self) -> None:
        self.at["0"]["next"] = 100
        before = self.at
        assert self.run_query(subscribe="orders") == []
        assert (self.batches, self.at) == (0, before)

    def test_a_batch_that_was_not_committed_is_run_again(self) -> None:
        end = {"0": {**self.at["0"], "next": 75}}
        reader = self.stream(subscribe="orders")
        rows = self.rows(reader, reader.partitions(self.at, end))
        assert self.offsets(rows) == list(range(60, 70))
