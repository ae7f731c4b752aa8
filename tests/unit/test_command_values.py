"""Input and output of the subcommands: positions, formats, latencies, lines, rates, tables."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.commands import history_reading, message_source, table_output
from pubsub.commands.history_reading import StoredMessage, start_of_last
from pubsub.commands.latency_histogram import (
    LatencyHistogram,
    bucket_of,
    draw,
    duration,
    least_of,
)
from pubsub.commands.message_formats import choose
from pubsub.commands.message_source import LineSplitter, lines, repeated
from pubsub.commands.pace import paced
from pubsub.commands.start_position import EARLIEST, LATEST, StartPosition, offset_of, parse
from pubsub.errors import ConfigurationError


class PositionTests(SynchronousTestCase):
    """--from and --to"""

    def test_texts(self) -> None:
        assert parse("earliest") is EARLIEST
        assert parse("latest") is LATEST
        assert parse("0") == StartPosition(offset=0)
        assert parse("90s") == StartPosition(ago=90)
        assert parse("2h") == StartPosition(ago=7200)
        second = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()) * 1_000_000
        for text in ("2026-01-31T12:00:00Z", "2026-01-31 12:00", "2026-01-31T13:00:00+01:00"):
            assert parse(text) == StartPosition(timestamp=second), text
        assert parse("1960-01-01") == StartPosition(timestamp=0)
        for text in ("", "-1", "1.5", "soon", "5w", "٣", "2026-13-01", "1h30m"):
            assert parse(text) is None, text

    def test_offsets(self) -> None:
        def bounds(timestamp: int | None) -> dict[str, int]:
            return {"first": 3, "next": 9, "offset": 0 if timestamp is None else timestamp}

        assert offset_of(EARLIEST, bounds, 100.0) == 3
        assert offset_of(LATEST, bounds, 100.0) == 9
        assert offset_of(StartPosition(offset=5), bounds, 100.0) == 5
        assert offset_of(StartPosition(timestamp=7), bounds, 100.0) == 7
        assert offset_of(StartPosition(ago=10), bounds, 100.0) == 90_000_000


class FormatTests(SynchronousTestCase):
    """--format"""

    def shown(self, name: str, payload: bytes, topic: bool = False, tty: bool = False) -> bytes:
        message = StoredMessage("a/b", payload, b"ada", 5, 7, {"k": b"v", "b": b"\xff"})
        return choose(name, topic, tty)(message)

    def test_text_hex_and_raw(self) -> None:
        assert self.shown("text", b"hello \xff\x1b[2J") == b"hello \xff\x1b[2J\n"
        assert self.shown("hex", b"\x00\xff") == b"00ff\n"
        assert self.shown("raw", b"a\n", topic=True) == b"a\n"
        assert self.shown("text", b"x", topic=True) == b"a/b x\n"
        assert self.shown("hex", b"x", topic=True) == b"a/b 78\n"

    def test_a_terminal_gets_no_control_characters(self) -> None:
        shown = self.shown(
            "text", b"\x1b]0;title\x07 \xff\r\tbell \xc2\x9b1m \xe2\x82\xac", tty=True
        )
        assert shown == b"\\x1b]0;title\\x07 \\xff\\r\tbell \\x9b1m \xe2\x82\xac\n"

    def test_a_terminal_gets_none_in_json_either(self) -> None:
        """JSON has escapes for some of them only."""
        payload = "a\u009b2J\x7f\u202e \U0001f600\U000e0001\n".encode()
        shown = self.shown("json", payload, tty=True)
        assert shown.decode().removesuffix("\n").isprintable()
        assert json.loads(shown) == json.loads(self.shown("json", payload))
        assert "\U0001f600" in shown.decode()

    def test_json(self) -> None:
        common = {
            "topic": "a/b", "offset": 7, "timestamp": 5, "sender": "ada",
            "headers": {"k": "v", "b": {"base64": "/w=="}},
        }  # fmt: skip
        assert json.loads(self.shown("json", b"hi\n")) == {**common, "payload": "hi\n"}
        assert json.loads(self.shown("json", b"\xff")) == {**common, "payload_base64": "/w=="}
        assert self.shown("json", b"hi\n").count(b"\n") == 1


class HistoryRowTests(SynchronousTestCase):
    """The rows of the history over the HTTP API"""

    def test_rows(self) -> None:
        rows: list[dict[str, Any]] = [
            {
                "offset": 3, "timestamp": 5, "topic": "a", "key": "YWRh", "value": "\u20ac",
                "headers": [{"key": "k", "value": "v"}, {"key": "b", "value_base64": "/w=="}],
            },
            {"damaged": [4, 6]},
            {"offset": 6, "timestamp": 7, "topic": "a", "key": "", "value_base64": "/w=="},
        ]  # fmt: skip
        asked: list[tuple[str, dict[str, object]]] = []

        def lines(path: str, query: dict[str, object]) -> Iterator[dict[str, Any]]:
            asked.append((path, query))
            return iter(rows)

        api: Any = SimpleNamespace(lines=lines)
        assert list(history_reading.read(api, 3, 9, ["a"])) == [
            StoredMessage("a", "\u20ac".encode(), b"ada", 5, 3, {"k": b"v", "b": b"\xff"}),
            history_reading.DamagedOffsets(4, 6),
            StoredMessage("a", b"\xff", b"", 7, 6, {}),
        ]
        query = {"start": 3, "stop": 9, "format": "jsonl", "headers": 1, "skip_expired": 1}
        assert asked == [("/v1/history", {**query, "topic": ["a"]})]
        list(history_reading.read(api, 3, 9, ()))
        assert asked[1:] == [("/v1/history", query)]
        assert list(history_reading.read(api, 9, 9, ())) == []
        assert len(asked) == 2


class LatencyTests(SynchronousTestCase):
    """The histogram of pubsub bench"""

    @given(st.integers(0, 10**13))
    def test_a_bucket_is_narrow(self, value: int) -> None:
        least = least_of(bucket_of(value))
        assert least <= value <= least * 1.04

    @given(st.lists(st.integers(-5, 10**12), min_size=1), st.floats(0, 100))
    def test_percentiles_and_bars(self, values: list[int], percent: float) -> None:
        histogram = LatencyHistogram()
        for value in values:
            histogram.record(value)
        ordered = sorted(max(value, 0) for value in values)
        # The least value that this number of values does not exceed.
        exact = ordered[max(-(-len(values) * percent // 100), 1).__int__() - 1]
        assert exact <= histogram.percentile(percent) <= max(exact * 1.04, exact + 1)
        assert histogram.percentile(100) == histogram.most == ordered[-1]
        bars = histogram.bars()
        assert sum(bar.count for bar in bars) == len(values)
        assert len(bars) <= 14
        assert all(one.high == other.low for one, other in itertools.pairwise(bars))

    def test_drawing(self) -> None:
        histogram = LatencyHistogram()
        assert histogram.percentile(50) == 0
        assert draw(histogram, 10) == []
        histogram.record(1000, 8)
        histogram.record(3000)
        assert draw(histogram, 8) == [
            "  512 ns - 1.02 µs  ████████ 8",
            " 1.02 µs - 2.05 µs           0",
            " 2.05 µs - 4.1 µs   █        1",
        ]
        assert [duration(x) for x in (0, 1500, 2.5e6, 3e9)] == ["0 ns", "1.5 µs", "2.5 ms", "3 s"]


class LinesTests(SynchronousTestCase):
    """The lines of standard input"""

    @given(st.binary(max_size=60), st.lists(st.integers(0, 60)))
    def test_however_they_arrive(self, data: bytes, cuts: list[int]) -> None:
        splitter, found = LineSplitter(), []
        bounds = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
        for start, end in itertools.pairwise(bounds):
            found += splitter.feed(data[start:end])
        found += splitter.feed(b"")
        expected = data.split(b"\n")
        assert found == (expected[:-1] if not expected[-1] else expected)

    def test_a_line_without_end(self) -> None:
        splitter = LineSplitter()
        for _ in range(64):
            assert splitter.feed(bytes(1024 * 1024)) == []
        with pytest.raises(ConfigurationError, match="--file"):
            splitter.feed(b"x")

    def test_no_more_is_read_than_is_taken(self) -> None:
        reads = 0
        found: list[bytes] = []

        def read(source: int, most: int) -> bytes:
            nonlocal reads
            reads += 1
            return b"x\n" if reads < 50 else b""

        async def take() -> None:
            async for part in lines(0, None):
                if not found:
                    await asyncio.sleep(0.05)
                    assert reads < 10
                found.extend(part)

        with patch.object(message_source, "read_some", read):
            asyncio.run(take())
        assert found == [b"x"] * 49


class PaceTests(SynchronousTestCase):
    """--rate"""

    def run_at(self, rate: float | None, *sizes: int) -> tuple[list[int], list[float]]:
        """Return the sizes of the parts, and the pauses."""
        now, pauses, parts = 0.0, [], []

        async def source() -> AsyncIterator[list[bytes]]:
            for size in sizes:
                yield [b"x"] * size

        async def sleep(seconds: float) -> None:
            nonlocal now
            pauses.append(round(seconds, 6))
            now += seconds

        async def collect() -> None:
            async for part in paced(source(), rate, lambda: now, sleep):
                parts.append(len(part))

        asyncio.run(collect())
        return parts, pauses

    def test_parts_are_sent_when_they_are_due(self) -> None:
        assert self.run_at(None, 5, 1000) == ([5, 1000], [])
        assert self.run_at(1, 3) == ([1, 1, 1], [1.0, 1.0])
        assert self.run_at(100, 12) == ([5, 5, 2], [0.05, 0.05])
        assert self.run_at(0.5, 1, 1) == ([1, 1], [2.0])

    def test_a_repeated_message(self) -> None:
        async def sizes() -> list[int]:
            return [len(part) async for part in repeated(b"x", 1200)]

        assert asyncio.run(sizes()) == [500, 500, 200]


class LastMessagesTests(SynchronousTestCase):
    """pubsub tail finds where the last messages begin."""

    @given(st.sets(st.integers(100, 20_000)), st.integers(0, 30), st.sampled_from([0, 5, 1000]))
    @example({20_000}, 0, 0)
    def test_it_begins_before_them_and_not_long_before(
        self, offsets: set[int], number: int, more: int
    ) -> None:
        def count(start: int, stop: int) -> int:
            return sum(start <= offset < stop for offset in offsets)

        start = start_of_last(number, 100, 20_001, count, more)
        assert 100 <= start <= 20_001
        found = count(start, 20_001)
        assert found >= min(number, len(offsets))
        assert found <= number + more

    def test_few_requests(self) -> None:
        asked = 0

        def count(start: int, stop: int) -> int:
            nonlocal asked
            asked += 1
            return max(0, 5_000_000 - start) if start < 5_000_000 else 0

        start = start_of_last(10, 0, 10**9, count, 1000)
        assert 10 <= count(start, 10**9) <= 1010
        assert asked < 50


class TableTests(SynchronousTestCase):
    """Lists on a terminal"""

    def shown(self, columns: int, client: str) -> list[str]:
        terminal = io.StringIO()
        row = {"mark": "0006613f63fa91fa", "client": client, "messages": 12_345_678}
        kinds = (
            table_output.Column("mark", "mark"),
            table_output.text("client", "client"),
            table_output.number("messages", "messages"),
        )
        with (
            patch.object(terminal, "isatty", lambda: True),
            patch.object(sys, "stdout", terminal),
            patch.dict("os.environ", {"COLUMNS": str(columns), "TERM": "dumb"}),
        ):
            table_output.print_rows(kinds, [row], as_json=False)
        return [line.rstrip() for line in terminal.getvalue().splitlines()]

    def test_json(self) -> None:
        """Names are those that clients have chosen."""
        row = {"name": "a\u009b2J\x7f\u20ac"}
        for is_terminal in (True, False):
            out = io.StringIO()
            with (
                patch.object(out, "isatty", lambda shown=is_terminal: shown),
                patch.object(sys, "stdout", out),
            ):
                table_output.print_rows((), [row], as_json=True)
            (line,) = out.getvalue().splitlines()
            assert json.loads(line) == row
            assert "\u20ac" in line
            assert line.isprintable() is is_terminal

    def test_a_row_is_a_line(self) -> None:
        assert self.shown(80, "ada") == [
            "mark              client    messages",
            "0006613f63fa91fa  ada     12,345,678",
        ]

    def test_nothing_is_cut_off(self) -> None:
        for columns in (30, 56, 100):
            _, first, *others = self.shown(columns, "c" * 70)
            assert first.startswith("0006613f63fa91fa  ccc")
            assert first.endswith("  12,345,678")
            assert sum(line.count("c") for line in (first, *others)) == 70
