"""Parses the SQL conditions of option ``filter`` into regions of a history.

The source reads a superset of the rows that satisfy a condition: a part that is not understood does
not narrow it, and Spark applies the condition to the rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_
from typing import NamedTuple

from pubsub.pipeline.options.regions import EVERYTHING, Interval, Region, union

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>'[^'\\]*')
    | (?P<name>`[^`]+`)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<number>[0-9]+(?![\w.]))
    | (?P<decimal>[0-9][\w.]*)
    | (?P<sign><=>|<=|>=|<>|!=|==|=|<|>|\(|\)|,|-(?!-))
    | (?P<other>[^\w\s'"`\\#;/-]|/(?!\*))
    )""",
    re.VERBOSE,
)
# Words after which AND and OR need not join conditions.
_NOT_UNDERSTOOD = frozenset(
    {"case", "when", "select", "from", "with", "values", "table", "map", "reduce", "exists", "over"}
)
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?(?:\s?(Z|[+-]\d\d:\d\d))?"
)
_MICROSECOND = timedelta(microseconds=1)
# A time without a zone is of the session's, which can be this far from UTC.
_ZONES = timedelta(hours=18) // _MICROSECOND
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_EQUAL = frozenset({"=", "==", "<=>"})


class _FilterToken(NamedTuple):
    kind: str
    text: str


_Tokens = Sequence[_FilterToken]
_OPEN, _CLOSE = _FilterToken("sign", "("), _FilterToken("sign", ")")


def parse_filter(condition: str) -> Region:
    """Return a region that has all rows that can satisfy an SQL condition."""
    tokens = _tokenize(condition)
    if tokens is None or any(token.text in _NOT_UNDERSTOOD for token in tokens):
        return EVERYTHING
    try:
        return _any_of(tokens)
    except RecursionError:
        return EVERYTHING


def _tokenize(condition: str) -> list[_FilterToken] | None:
    """Return the tokens, words and names in lower case; None if some text is none."""
    tokens = []
    at, end = 0, len(condition.rstrip())
    while at < end:
        match = _TOKEN.match(condition, at)
        if match is None or match.lastgroup is None:
            return None
        kind, text = match.lastgroup, match[match.lastgroup]
        if kind == "name":
            kind, text = "column", text[1:-1].lower()
        elif kind == "word":
            text = text.lower()
        elif kind == "text":
            text = text[1:-1]
        tokens.append(_FilterToken(kind, text))
        at = match.end()
    return tokens


def _any_of(tokens: _Tokens) -> Region:
    return union(map(_all_of, _split(tokens, "or")))


def _all_of(tokens: _Tokens) -> Region:
    return reduce(and_, map(_condition, _split(tokens, "and")))


def _split(tokens: _Tokens, word: str) -> Iterator[_Tokens]:
    """Yield the tokens between the words outside of parentheses; the AND of BETWEEN is none."""
    start = depth = betweens = 0
    for index, token in enumerate(tokens):
        if token == _OPEN:
            depth += 1
        elif token == _CLOSE:
            depth -= 1
        elif depth or token.kind != "word":
            continue
        elif token.text == "between":
            betweens += 1
        elif token.text == "and" and betweens:
            betweens -= 1
        elif token.text == word:
            yield tokens[start:index]
            start = index + 1
    yield tokens[start:]


def _condition(tokens: _Tokens) -> Region:
    if _is_enclosed(tokens):
        return _any_of(tokens[1:-1])
    if len(tokens) >= 3 and tokens[0].text in _COLUMNS and tokens[0].kind in ("word", "column"):
        return _of_column(_COLUMNS[tokens[0].text], tokens[1], tokens[2:])
    if len(tokens) >= 3 and tokens[-1].text in _COLUMNS and tokens[-1].kind in ("word", "column"):
        sign = tokens[-2]
        mirrored = _FilterToken(sign.kind, _MIRRORED.get(sign.text, sign.text))
        if mirrored.kind == "sign":
            return _of_column(_COLUMNS[tokens[-1].text], mirrored, tokens[:-2])
    return EVERYTHING


def _is_enclosed(tokens: _Tokens) -> bool:
    """Return whether the first parenthesis is closed by the last token."""
    if len(tokens) < 2 or tokens[0] != _OPEN or tokens[-1] != _CLOSE:
        return False
    depth = 0
    for token in tokens[:-1]:
        depth += (token == _OPEN) - (token == _CLOSE)
        if not depth:
            return False
    return True


_ColumnFilter = Callable[[str, _Tokens], Region]


def _of_column(column: _ColumnFilter, operator: _FilterToken, values: _Tokens) -> Region:
    """Return the region of a comparison, of IN, or of BETWEEN."""
    if operator.kind == "sign":
        return column("=" if operator.text in _EQUAL else operator.text, values)
    if operator == _FilterToken("word", "in") and _is_enclosed(values):
        return union(column("=", value) for value in _separated(values[1:-1]))
    if operator == _FilterToken("word", "between"):
        ends = list(_split(values, "and"))
        if len(ends) == 2:
            low, high = column(">=", ends[0]), column("<=", ends[1])
            return EVERYTHING if EVERYTHING in (low, high) else low & high
    return EVERYTHING


def _separated(tokens: _Tokens) -> Iterator[_Tokens]:
    start = 0
    for index, token in enumerate(tokens):
        if token == _FilterToken("sign", ","):
            yield tokens[start:index]
            start = index + 1
    yield tokens[start:]


def _topic(operator: str, value: _Tokens) -> Region:
    if operator == "=" and len(value) == 1 and value[0].kind == "text":
        return Region(topics=frozenset({value[0].text}))
    return EVERYTHING


def _partition(operator: str, value: _Tokens) -> Region:
    number = _whole_number(value)
    return EVERYTHING if number is None else Region(partitions=_compared(operator, number))


def _offset(operator: str, value: _Tokens) -> Region:
    number = _whole_number(value)
    return EVERYTHING if number is None else Region(offsets=_compared(operator, number))


def _timestamp(operator: str, value: _Tokens) -> Region:
    kind = value[0].text if len(value) == 2 and value[0].kind == "word" else ""
    if kind in ("timestamp", "date"):
        value = value[1:]
    match = _TIME.fullmatch(value[0].text) if len(value) == 1 and value[0].kind == "text" else None
    if match is None:
        return EVERYTHING
    day, time, zone = match.groups(default="")
    if kind == "date":
        # A date is the beginning of the day, whatever follows it.
        time = zone = ""
    if zone and not time:
        return EVERYTHING
    try:
        moment = datetime.fromisoformat(f"{day}T{time or '00:00'}{zone or 'Z'}")
    except ValueError:
        return EVERYTHING
    microseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND
    times = _compared(operator, microseconds)
    return Region(times=times if zone else times.widened(_ZONES))


_COLUMNS: dict[str, _ColumnFilter] = {
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
}


def _whole_number(value: _Tokens) -> int | None:
    minus = len(value) == 2 and value[0] == _FilterToken("sign", "-")
    if len(value) != 1 + minus or value[-1].kind != "number":
        return None
    return -int(value[-1].text) if minus else int(value[-1].text)


def _compared(operator: str, number: int) -> Interval:
    match operator:
        case "=":
            return Interval(number, number + 1)
        case "<":
            return Interval(stop=number)
        case "<=":
            return Interval(stop=number + 1)
        case ">":
            return Interval(number + 1)
        case ">=":
            return Interval(number)
        case _:
            return Interval()
