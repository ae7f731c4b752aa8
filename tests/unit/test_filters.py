"""Option filter: the rows that a condition selects are read; other conditions narrow nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.pipeline.options.filter_parser import parse_filter
from pubsub.pipeline.options.regions import EVERYTHING, Interval, Region
from tests.histories import START, history
from tests.unit.reader_case import ReaderCase

_OTHERS = (
    "topic != 'a'", "NOT topic = 'a'", "topic = upper('a')", "topic LIKE 'a%'", "topic = 'a''b'",
    r"topic = 'a\'b'", 'topic = "a"', "offset = 5L", "offset > 1.5", "offset = '5'",
    "offset = 5 = true",
    "offset BETWEEN 1 AND 5 = true", "offset + 1 = 5", "5 = offset + 1", "x.offset = 5",
    "CASE WHEN x AND topic = 'a' AND y THEN z ELSE true END", "topic IS NOT DISTINCT FROM 'a'",
    "(SELECT max(x) FROM t WHERE topic = 'a' AND offset = 5) > 1", "offset = 5 -- AND topic = 'a'",
    "offset IN (1, length(value))", "topic = 'a' OR length(value) > 5", "timestamp = 'now'",
    "offset IN (1) = false", "offset::string = '5'", "f(x -> x AND topic = 'a')", "topic = NULL",
    "date '2026-03-01' + x = timestamp", "timestamp > '2026-13-01'", "'unclosed", "",
    "((offset = 1)",
    "(" * 2000 + "offset = 1" + ")" * 2000,
)  # fmt: skip


def _micros(text: str) -> int:
    moment = datetime.fromisoformat(text).astimezone(UTC)
    return round(moment.timestamp() * 1_000_000)


class ParseTests(SynchronousTestCase):
    def test_topics(self) -> None:
        for condition in (
            "topic = 'a'", "TOPIC=='a'", "`topic` <=> 'a'", "'a' = topic", "((topic = 'a'))",
            "topic IN ('a')", "topic = 'a' AND length(value) > 5",
            "x > 1.5 AND (y OR z) AND topic='a'", "offset BETWEEN x AND y AND topic = 'a'",
        ):  # fmt: skip
            assert parse_filter(condition).topics == frozenset({"a"}), condition
        found = parse_filter("topic IN ('a', 'b and c') OR topic = '\N{PARTY POPPER}'")
        assert found == Region(topics=frozenset({"a", "b and c", "\N{PARTY POPPER}"}))
        assert parse_filter("topic = 'a' AND topic = 'b'").topics == frozenset()

    def test_numbers(self) -> None:
        for condition, low, stop in (
            ("offset = 5", 5, 6), ("offset > 5", 6, math.inf), ("5 > offset", -math.inf, 5),
            ("offset <= 5", -math.inf, 6), ("-5 <= offset", -5, math.inf),
            ("offset BETWEEN 2 AND 9 AND NOT x", 2, 10), ("offset IN (7, 3)", 3, 8),
            ("offset > 1 AND offset < 9 OR offset = 20", 2, 21),
        ):  # fmt: skip
            assert parse_filter(condition).offsets == Interval(low, stop), condition
        assert parse_filter("partition = 1").partitions == Interval(1, 2)

    def test_times(self) -> None:
        noon = _micros("2026-03-01T12:00:00+00:00")
        for text in (
            "'2026-03-01 12:00:00+00:00'", "'2026-03-01T13:00+01:00'", "'2026-03-01T12:00:00.000Z'",
            "timestamp '2026-03-01 12:00:00Z'",
        ):  # fmt: skip
            assert parse_filter(f"timestamp >= {text}").times == Interval(noon), text
            assert parse_filter(f"timestamp <= {text}").times == Interval(stop=noon + 1), text

    def test_times_without_a_zone_may_be_of_any(self) -> None:
        for text in (
            "'2026-03-01'", "date'2026-03-01'", "'2026-03-01 00:00:00'",
            "date'2026-03-01T23:00:00Z'", "date '2026-03-01 23:00+01:00'",
        ):  # fmt: skip
            found = parse_filter(f"timestamp >= {text}").times
            assert found == Interval(_micros("2026-02-28T06:00:00+00:00")), text

    def test_unknown_conditions_narrow_nothing(self) -> None:
        for condition in _OTHERS:
            assert parse_filter(condition) == EVERYTHING, condition


class _Condition(NamedTuple):
    """A condition in SQL, and the same in Python."""

    sql: str
    holds: Callable[[Mapping[str, Any]], bool]


def _comparison(name: str, sign: str, flip: bool, value: int | str) -> _Condition:
    plain = {"==": "=", "<=>": "="}.get(sign, sign)
    test: dict[str, Callable[[Any], bool]] = {
        "=": lambda x: x == value, "<": lambda x: x < value, ">": lambda x: x > value,
        "<=": lambda x: x <= value, ">=": lambda x: x >= value, "!=": lambda x: x != value,
    }  # fmt: skip
    shown = f"'{value}'" if isinstance(value, str) else str(value)
    mirrored = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(sign, sign)
    sql = f"{shown} {mirrored} {name}" if flip else f"{name} {sign} {shown}"
    return _Condition(sql, lambda row: test[plain](row[name]))


def _time(sign: str, number: int, zone: str) -> _Condition:
    moment = datetime.fromtimestamp((START + number) / 1_000_000, UTC)
    found = _comparison("timestamp", sign, False, START + number)
    # Without a zone it is of the session's, which is UTC here.
    text = moment.replace(tzinfo=None).isoformat(" ", "microseconds") + zone
    return _Condition(f"timestamp {sign} '{text}'", found.holds)


def _between(name: str, low: int, high: int) -> _Condition:
    return _Condition(f"{name} BETWEEN {low} AND {high}", lambda row: low <= row[name] <= high)


def _among(values: list[str]) -> _Condition:
    shown = ", ".join(f"'{value}'" for value in values)
    return _Condition(f"topic in ({shown})", lambda row: row["topic"] in values)


_SIGNS = st.sampled_from(["=", "==", "<=>", "<", "<=", ">", ">=", "!="])
_EQUALS = st.sampled_from(["=", "<=>", "!="])
_OFFSETS = st.integers(-5, 110)
_TOPICS = st.sampled_from(["orders", "cafe/7", "nobody", "$SYS/events"])
_PLAIN = st.one_of(
    st.builds(_comparison, st.just("topic"), _EQUALS, st.booleans(), _TOPICS),
    st.builds(_comparison, st.just("offset"), _SIGNS, st.booleans(), _OFFSETS),
    st.builds(_comparison, st.just("partition"), _SIGNS, st.booleans(), st.integers(-1, 1)),
    st.builds(_time, _SIGNS, st.integers(-5, 15), st.sampled_from(["", "Z", "+00:00"])),
    st.builds(_between, st.sampled_from(["offset", "partition"]), _OFFSETS, _OFFSETS),
    st.builds(_among, st.lists(_TOPICS, min_size=1, max_size=3)),
    st.sampled_from([
        _Condition("length(value) > 9", lambda row: len(row["value"]) > 9),
        _Condition("CASE WHEN offset > 5 AND topic = 'orders' AND true THEN true ELSE false END",
                   lambda row: row["offset"] > 5 and row["topic"] == "orders"),
    ]),
)  # fmt: skip


def _joined(both: tuple[_Condition, _Condition], word: str, brackets: bool) -> _Condition:
    left, right = both
    sql = f"({left.sql}) {word} ({right.sql})"
    if word == "AND":
        return _Condition(sql if brackets else f"({sql})",
                          lambda row: left.holds(row) and right.holds(row))  # fmt: skip
    return _Condition(f"({sql})", lambda row: left.holds(row) or right.holds(row))


def _joins(inner: st.SearchStrategy[_Condition]) -> st.SearchStrategy[_Condition]:
    return st.one_of(
        st.builds(_joined, st.tuples(inner, inner), st.sampled_from(["AND", "OR"]), st.booleans()),
        st.builds(
            lambda one: _Condition(f"NOT ({one.sql})", lambda row: not one.holds(row)), inner
        ),
    )


class ReadTests(ReaderCase):
    """The history of ``ReaderCase``, with later times."""

    def setUp(self) -> None:
        super().setUp()
        with history(self.path, START + 5) as file:
            file.put("$SYS/events", [b'{"event": "connect"}'])
        with history(self.path, START + 10) as file:
            file.put("orders", [b"late"])

    def found(self, condition: str, **options: str) -> list[dict[str, Any]]:
        rows = self.all(**{**options, "filter": condition})
        for row in rows:
            row["timestamp"] = round(row["timestamp"].timestamp() * 1_000_000)
        return rows

    @given(st.recursive(_PLAIN, _joins, max_leaves=6))
    def test_the_same_rows_as_without_the_filter(self, condition: _Condition) -> None:
        everything = [row for row in self.found("") if condition.holds(row)]
        narrowed = [row for row in self.found(condition.sql) if condition.holds(row)]
        assert narrowed == everything, condition.sql

    def test_little_else_is_read(self) -> None:
        for condition, count in (
            ("topic = 'orders'", 51), ("topic = 'nobody'", 0), ("topic = '$SYS/events'", 0),
            ("offset >= 90", 11), ("offset BETWEEN 5 AND 9 AND topic = 'orders'", 5),
            (f"timestamp > '{datetime.fromtimestamp(START / 1e6, UTC).isoformat()}'", 1),
            (f"timestamp <= '{datetime.fromtimestamp(START / 1e6, UTC).isoformat()}'", 100),
            ("timestamp < '1900-01-01T00:00:00Z'", 0), ("timestamp > '1900-01-01T00:00:00Z'", 101),
            ("timestamp > '9999-12-31T00:00:00Z'", 0), ("partition = 1", 0),
            ("offset > 5 AND offset < 3", 0), ("offset < 9999999999999999999999", 101),
        ):  # fmt: skip
            assert len(self.found(condition)) == count, condition

    def test_with_other_options(self) -> None:
        assert len(self.found("topic = 'orders'", subscribe="cafe/7")) == 0
        assert len(self.found("topic IN ('orders', 'a')", subscribePattern="o.*|c.*")) == 51
        assert len(self.found("offset >= 90", endingOffsets='{"0": 95}')) == 5
        assert len(self.found("topic = 'x' AND offset > 5", stream="events")) == 1

    def test_a_stream_has_no_filter(self) -> None:
        with pytest.raises(Exception, match="filter does not apply to a streaming query"):
            self.stream(filter="offset > 5")
