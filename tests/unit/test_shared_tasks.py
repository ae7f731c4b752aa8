"""Tasks between two positions continue at other brokers, and have each message once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import PubSubError
from pubsub.pipeline.histories.broker_list import BrokerList
from pubsub.pipeline.histories.history import (
    BatchOrGap,
    DamagedRange,
    DataLoss,
    HistoryRefused,
    Unreachable,
    WrongHistory,
)
from pubsub.pipeline.histories.http_history import ErrorReply
from pubsub.pipeline.histories.retry import Retry
from pubsub.pipeline.options.connector_options import source_options
from pubsub.pipeline.tasks.shared_tasks import SharedTask, read_shared_task, without
from pubsub.store.reading.arrow import SCHEMA
from tests.unit.raising import raised

FIRST, SECOND = "00000000-0000-8000", "11111111-1111-8111"
LACKS = ErrorReply("never got", "position-unknown", {})
Item: TypeAlias = "PubSubError | BatchOrGap"


def ids(run: str, *numbers: int) -> list[str]:
    """Return ids as message_id has them."""
    return [f"{run}-8000-{number:012x}" for number in numbers]


def batch(*found: str) -> pa.RecordBatch:
    """Return messages with these ids as a broker sends them."""
    rows = [
        {"topic": "t", "partition": 0, "offset": place, "timestamp": place, "protocol": "cafe",
         "key": b"", "value": b"", "message_id": one}
        for place, one in enumerate(found)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


class FakeBroker:
    """A broker that answers each request with the next of ``answers``, the last one again."""

    def __init__(self, number: int, *answers: Sequence[Item]) -> None:
        self.url = f"http://{number}"
        self._answers = list(answers)
        self.asked: list[tuple[bool, object]] = []

    def read_between(
        self, shared: str, since: str, until: str, topics: object, headers: bool,
        skip_expired: bool, start: object,
    ) -> Iterator[BatchOrGap]:  # fmt: skip
        assert (shared, since, until) == ("s", "begin", "end")
        self.asked.append((skip_expired, start))
        items = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        for item in items:
            if isinstance(item, PubSubError):
                raise item
            yield item


class SharedTaskTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def read(self, *brokers: FakeBroker, fail: str = "true") -> list[tuple[int, str]]:
        """Return the broker and the id of each message that a task of the first broker reads."""
        options = source_options({"url": "http://a", "failOnDataLoss".lower(): fail}, None)
        task = SharedTask(0, 5, 9, "1-a", None, since="begin", until="end", broker=0, planner=1)
        found = BrokerList(cast(Any, brokers), "s", options.fail_on_data_loss)
        retry = Retry(10, lambda: self.now, self.sleep)
        return [
            (number, one)
            for number, rows in read_shared_task(found, task, options, retry)
            for one in rows["message_id"].to_pylist()
        ]

    def test_another_broker_goes_on(self) -> None:
        """It has the messages of two runs in another order."""
        mine, others = ids(FIRST, 1, 2, 3), ids(SECOND, 7, 8)
        here = FakeBroker(0, [batch(mine[0], others[0], mine[1]), Unreachable("killed")])
        there = FakeBroker(1, [batch(*others), batch(*mine)])
        assert self.read(here, there) == [
            (0, mine[0]), (0, others[0]), (0, mine[1]), (1, others[1]), (1, mine[2])
        ]  # fmt: skip
        # Only the broker that has planned the task knows its offsets.
        assert here.asked == [(False, None)]
        assert there.asked == [(False, (5, "1-a"))]
        assert self.now == 0

    def test_all_brokers_are_tried_again(self) -> None:
        one = ids(FIRST, 1)
        here = FakeBroker(0, [Unreachable("away")], [batch(*one)])
        there = FakeBroker(1, [Unreachable("away")])
        assert self.read(here, there) == [(0, one[0])]
        assert self.now > 0
        gone = FakeBroker(0, [Unreachable("away")])
        assert "away" in str(raised(Unreachable, self.read, gone, there))
        assert 5 < self.now <= 20

    def test_a_broker_that_lacks_messages(self) -> None:
        one = ids(FIRST, 1)
        for lack in (LACKS, WrongHistory("another"), DamagedRange(3, 5)):
            here, there = FakeBroker(0, [lack]), FakeBroker(1, [batch(*one)])
            assert self.read(here, there) == [(1, one[0])]

    def test_no_broker_has_all(self) -> None:
        one = ids(FIRST, 1)
        brokers = FakeBroker(0, [LACKS], [batch(*one)]), FakeBroker(1, [LACKS])
        error = raised(DataLoss, self.read, *brokers)
        assert "begin to end" in str(error)
        brokers = FakeBroker(0, [LACKS], [batch(*one)]), FakeBroker(1, [LACKS])
        assert self.read(*brokers, fail="false") == [(0, one[0])]
        assert brokers[0].asked == [(False, None), (True, None)]
        other = WrongHistory("another")
        raised(WrongHistory, self.read, FakeBroker(0, [other]), FakeBroker(1, [LACKS]))

    def test_damage_is_left_out_if_no_broker_has_the_messages(self) -> None:
        one = ids(FIRST, 1, 2)
        damaged = [batch(one[0]), DamagedRange(3, 5), batch(one[1])]
        brokers = FakeBroker(0, damaged), FakeBroker(1, damaged)
        assert self.read(*brokers, fail="false") == [(0, one[0]), (0, one[1])]
        raised(DataLoss, self.read, FakeBroker(0, damaged), FakeBroker(1, damaged))

    def test_a_broker_that_may_have_the_rest_is_waited_for(self) -> None:
        one = ids(FIRST, 1)
        away, lacks = FakeBroker(0, [Unreachable("away")], [batch(*one)]), FakeBroker(1, [LACKS])
        assert self.read(away, lacks) == [(0, one[0])]
        raised(Unreachable, self.read, FakeBroker(0, [Unreachable("away")]), lacks)

    def test_a_refusal_ends_the_task(self) -> None:
        refused = ErrorReply("no", "not-authorized", {})
        here, there = FakeBroker(0, [refused]), FakeBroker(1, [batch()])
        raised(HistoryRefused, self.read, here, there)
        assert there.asked == []

    def test_messages_that_are_left_out(self) -> None:
        rows = batch(*ids(FIRST, 1, 2, 3), *ids(SECOND, 1))
        assert without(rows, {}) is rows
        last = {FIRST: ids(FIRST, 2)[0]}
        found = without(rows, last)["message_id"].to_pylist()
        assert found == [*ids(FIRST, 3), *ids(SECOND, 1)]
