"""Brokers that share a history: one plans, and another one takes its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client.history_replies import HistoryBounds
from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.histories import open_histories
from pubsub.pipeline.histories.broker_list import BrokerList, same_place
from pubsub.pipeline.histories.history import HistoryRefused, OtherBroker, Unreachable, WrongHistory
from pubsub.pipeline.histories.http_history import ErrorReply
from pubsub.pipeline.histories.open_histories import with_shared_history
from pubsub.pipeline.options.connector_options import SourceOptions, source_options
from pubsub.pipeline.positions.offsets import Behind, PartitionPosition, from_json, to_json
from pubsub.pipeline.positions.shared_offsets import converted, located
from tests.unit.raising import raised


def position(sequence: int, stream: int = 1) -> str:
    """Return a position with this number of messages of one broker before it."""
    return json.dumps({"stream": stream, "next": {"a": {"1": sequence}}})


class FakeBroker:
    """A broker with a hundred messages, of which offset n is position n + ``shift``."""

    def __init__(self, epoch: str, shift: int = 0) -> None:
        self.url = f"http://{epoch}"
        self.epoch = epoch
        self.shift = shift
        self.error: PubSubError | None = None
        self.asked: list[dict[str, Any]] = []
        self.held: list[str] = []

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error

    def shared_bounds(
        self, shared: str, timestamp: int | None = None, at: int | None = None,
        begin: str | None = None, skip_expired: bool = False,
    ) -> HistoryBounds:  # fmt: skip
        self._fail()
        self.asked.append({"at": at, "begin": begin, "skip": skip_expired})
        at = 100 if at is None else at
        low = high = None
        sequence = at + self.shift
        if begin is not None:
            before = json.loads(begin)["next"]["a"]["1"]
            sequence = max(sequence, before)
            low, high = max(before - self.shift - 5, 0), before - self.shift + 5
        return HistoryBounds(3, 120, self.epoch, 50, position(sequence), at, low, high, 7, shared)

    def check(self, offset: int, epoch: str) -> None:
        self._fail()
        if epoch != self.epoch:
            raise WrongHistory(f"not {epoch}")

    def hold_reader(self, reader: str, holder: str) -> float:
        self._fail()
        self.held.append(holder)
        return 10


class BrokerListTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.one, self.other = FakeBroker("1-a"), FakeBroker("2-b", shift=10)
        self.found = BrokerList(cast(Any, [self.one, self.other]), "s", True)

    def test_bounds_are_those_of_all_brokers(self) -> None:
        found = self.found.bounds(timestamp=5)
        assert (found.first, found.next, found.epoch, found.offset_at_time) == (7, 100, "1-a", 50)

    def test_another_broker_plans(self) -> None:
        for error in (Unreachable("x"), WrongHistory("x"), ErrorReply("x", "expired", {})):
            self.one.error = error
            self.found.planner = 0
            assert raised(OtherBroker, self.found.bounds).error is error
            assert self.found.bounds().epoch == "2-b"
        self.found.planner = 0
        self.one.error = ErrorReply("x", "not-authorized", {})
        raised(HistoryRefused, self.found.bounds)
        assert self.found.planner == 0

    def test_the_offsets_of_a_position(self) -> None:
        """They are exact at the broker that made it, and near elsewhere."""
        made = self.found.position(40, None)
        given = PartitionPosition(1, "9-z", shared=made, behind=(Behind(1, frozenset("t"), made),))
        assert located(self.found, given, is_end=True).next == 40
        assert self.found.is_exact(made, "1-a")
        self.one.error = Unreachable("x")
        raised(OtherBroker, located, self.found, given, False)
        assert not self.found.is_exact(made, "2-b")
        start, end = located(self.found, given, False), located(self.found, given, True)
        assert (start.next, end.next) == (30, 35)
        assert start.behind[0].next == 30
        # It is looked for once.
        count = len(self.other.asked)
        assert located(self.found, given, False) == start
        assert len(self.other.asked) == count + 2
        assert start.epoch == "2-b"
        late = PartitionPosition(1, "9-z", shared=position(108))
        assert located(self.found, late, True).next == 100

    def test_a_position_that_has_not_moved(self) -> None:
        begin = position(40, stream=99)
        assert self.found.position(40, begin) is begin
        assert same_place(begin, position(40))
        assert not same_place(begin, position(41))

    def test_losses_are_left_to_the_tasks_if_they_are_allowed(self) -> None:
        begin = PartitionPosition(1, "1-a", shared=position(40))
        located(self.found, begin, False)
        located(BrokerList(cast(Any, [self.other]), "s", False), begin, False)
        assert {asked["skip"] for asked in self.one.asked} == {False}
        assert {asked["skip"] for asked in self.other.asked} == {True}

    def test_positions_of_one_broker(self) -> None:
        """A checkpoint of earlier versions is continued."""
        since = PartitionPosition(10, "2-b")
        old = PartitionPosition(20, "2-b", behind=(Behind(15, frozenset("t")),), since=since)
        found = converted(self.found, old)
        assert found.shared == position(30)
        assert found.behind[0].shared == position(25)
        assert found.since is not None
        assert found.since.shared == position(20)
        assert from_json(to_json({0: found}), 1) == {0: found}
        self.one.error = Unreachable("x")
        assert converted(self.found, old) == found
        raised(Unreachable, converted, self.found, PartitionPosition(20, "1-a"))
        self.one.error = None
        raised(WrongHistory, converted, self.found, PartitionPosition(20, "9-z"))

    def test_leases_are_held_at_all_brokers(self) -> None:
        self.one.error = Unreachable("x")
        assert self.found.hold_reader("r", "me") == 10
        assert self.other.held == ["me"]
        self.other.error = Unreachable("x")
        raised(Unreachable, self.found.hold_reader, "r", "me")


class SharedHistoryTests(SynchronousTestCase):
    """Whether the brokers of option url share a history."""

    def found(
        self, answers: dict[str, str | PubSubError], **given: str
    ) -> Callable[[], SourceOptions]:
        class Asked:
            def __init__(self, url: str, *_: object) -> None:
                self._answer = answers[url]

            def identity(self) -> str:
                if isinstance(self._answer, PubSubError):
                    raise self._answer
                return self._answer

        self.patch(open_histories, "HttpHistory", Asked)  # type: ignore[no-untyped-call]
        lower = {name.lower(): value for name, value in given.items()}
        options = source_options({"url": ",".join(answers), **lower}, None)
        return lambda: with_shared_history(options)

    def test_one_history(self) -> None:
        found = self.found({"http://a": "s", "http://b": "s", "http://c": Unreachable("x")})()
        assert (found.shared, found.partitions) == ("s", 1)

    def test_histories_of_their_own(self) -> None:
        found = self.found({"http://a": "", "http://b": ""})()
        assert (found.shared, found.partitions) == ("", 2)

    def test_what_belongs_to_each_broker(self) -> None:
        for given in ({"stream": "events"}, {"subscribe": "$SYS/a"}, {}):
            urls: dict[str, str | PubSubError] = {"http://a": "s", "http://b": "s"}
            if not given:
                del urls["http://b"]
            assert self.found(urls, **given)().shared == ""

    def test_different_histories(self) -> None:
        for first, second in (("s", "t"), ("s", ""), ("", "s")):
            check = self.found({"http://a": first, "http://b": second})
            error = raised(ConfigurationError, check)
            assert "http://a and http://b do not share one history" in str(error)

    def test_no_broker_answers(self) -> None:
        check = self.found({"http://a": Unreachable("x"), "http://b": Unreachable("y")})
        assert str(raised(Unreachable, check)) == "y"

    def test_options_of_one_broker(self) -> None:
        for name, value in (
            ("startingOffsets", '{"0": 5}'),
            ("startingOffsets", '{"t": {"0": 5}}'),
            ("assign", '{"t": [1]}'),
            ("subscribe", "t,$SYS/a"),
        ):
            check = self.found({"http://a": "s", "http://b": "s"}, **{name: value})
            assert name in str(raised(ConfigurationError, check))
        check = self.found({"http://a": "s", "http://b": "s"}, startingOffsets='{"0": "latest"}')
        assert check().shared == "s"
