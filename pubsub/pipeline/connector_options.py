"""The options of the source and the sink. Spark passes their keys in lower case.

An option that is unknown, not applicable or invalid is an error that names it. No ``repr`` and no
message contains a token.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from pubsub.broker.topics import topic_name
from pubsub.errors import ConfigurationError, InvalidTopicName

EARLIEST, LATEST = "earliest", "latest"
MESSAGES, EVENTS = "messages", "events"
EVENTS_TOPIC = "$SYS/events"

Start: TypeAlias = str | Mapping[int, int | str]
"""EARLIEST, LATEST, or an offset or one of these words for each partition."""

_READ_OPTIONS = ("url", "path", "token", "tokenFile", "stream", "subscribe", "subscribePattern",
         "startingOffsets", "startingTimestamp", "failOnDataLoss", "rowsPerTask",
         "includeHeaders")  # fmt: skip
_BATCH_OPTIONS = ("endingOffsets",)
_STREAM_OPTIONS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "readerName")
_SINK_OPTIONS = ("url", "topic", "token", "tokenFile")
# Options that Spark itself adds to a query that writes.
_SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname", "outputmode", "trigger", "path"})
_SIZE = re.compile(r"([0-9]+)([kmg]?)b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_READER_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A token, or the file that holds it. The file is read for each request, as tokens expire."""

    token: str | None = field(default=None, repr=False)
    file: str | None = field(default=None, repr=False)

    def read(self) -> str | None:
        """Return the token. Raises OSError for a file that cannot be read."""
        if self.file is not None:
            return Path(self.file).read_text().strip()
        return self.token


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the source reads. ``starting_timestamp`` is in µs since the Unix epoch.

    ``topics`` are those of option ``subscribe``; without them and ``pattern``, all topics are read.
    """

    urls: tuple[str, ...]
    path: str | None
    credentials: Credentials
    stream: str
    topics: frozenset[str] | None
    pattern: str | None
    starting: Start | None
    ending: Start | None
    starting_timestamp: int | None
    max_offsets: int | None
    max_bytes: int | None
    fail_on_data_loss: bool
    rows_per_task: int
    headers: bool
    reader_name: str | None

    @property
    def partitions(self) -> int:
        """Number of partitions, one for each broker."""
        return max(len(self.urls), 1)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where the sink writes. ``of_protocol`` has the unparsed options of single protocols."""

    url: str
    credentials: Credentials
    topic: str | None
    of_protocol: Mapping[str, str]


def source_options(given: Mapping[str, str], streaming: bool) -> SourceOptions:
    """Parse the options of the source. Raises ConfigurationError."""
    for key in _BATCH_OPTIONS if streaming else _STREAM_OPTIONS:
        if key.lower() in given:
            kind = "streaming" if streaming else "batch"
            raise ConfigurationError(f"option {key} does not apply to a {kind} query")
    known = _READ_OPTIONS + (_STREAM_OPTIONS if streaming else _BATCH_OPTIONS)
    options = _GivenOptions(given, known)
    urls, path = _urls_or_path(options)
    stream = options.choice("stream", (MESSAGES, EVENTS), MESSAGES)
    if stream == EVENTS:
        options.forbid(("subscribe", "subscribePattern", "includeHeaders"), "stream=events")
    options.at_most_one("subscribe", "subscribePattern")
    options.at_most_one("startingOffsets", "startingTimestamp")
    topics = parse_topics(options.get("subscribe"))
    return SourceOptions(
        urls=urls,
        path=path,
        credentials=_credentials(options),
        stream=stream,
        topics=frozenset({EVENTS_TOPIC}) if stream == EVENTS else topics,
        pattern=_check_pattern(options.get("subscribePattern")),
        starting=_offsets_option(options, "startingOffsets"),
        ending=_offsets_option(options, "endingOffsets"),
        starting_timestamp=_parse_timestamp(options.get("startingTimestamp")),
        max_offsets=options.number("maxOffsetsPerTrigger"),
        max_bytes=_parse_size(options, "maxBytesPerTrigger"),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        rows_per_task=options.number("rowsPerTask") or 250_000,
        headers=options.flag("includeHeaders", False),
        reader_name=_check_reader_name(options.get("readerName")),
    )


def sink_options(given: Mapping[str, str], of_protocol: Collection[str]) -> SinkOptions:
    """Parse the options of the sink.

    ``of_protocol`` names the options that only some protocols have. Raises ConfigurationError.
    """
    known = (*_SINK_OPTIONS, *of_protocol)
    options = _GivenOptions(given, known, ignored=_SPARK_OPTIONS)
    url = options.get("url")
    if url is None:
        raise ConfigurationError("option url is required: the URL of the broker")
    if "," in url:
        raise ConfigurationError("option url: messages are written to one broker, not several")
    _check_url(url)
    topic = options.get("topic")
    if topic is not None:
        _check_topic(topic, "topic")
    found = {name: options.get(name) for name in of_protocol}
    own = {name: value for name, value in found.items() if value is not None}
    return SinkOptions(url, _credentials(options), topic, own)


class _GivenOptions:
    """The given options, by their documented names."""

    def __init__(
        self,
        given: Mapping[str, str],
        known: tuple[str, ...],
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        lower = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for key, value in given.items():
            name = lower.get(key.lower())
            if name is not None:
                self._values[name] = value
            elif key.lower() not in ignored:
                near = difflib.get_close_matches(key.lower(), lower, 1)
                hint = f"; did you mean {lower[near[0]]}?" if near else ""
                raise ConfigurationError(f"unknown option {key}{hint}")

    def get(self, name: str) -> str | None:
        """Return the value as text."""
        return self._values.get(name)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return the value, which must be one of ``choices``."""
        value = self._values.get(name, default).lower()
        if value not in choices:
            raise ConfigurationError(
                f"option {name}: expected {' or '.join(choices)}, not {value!r}"
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return whether the value is true."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str) -> int | None:
        """Return the value, a whole number of at least 1."""
        value = self._values.get(name)
        if value is None:
            return None
        if not value.isascii() or not value.isdecimal() or int(value) == 0:
            raise ConfigurationError(
                f"option {name}: expected a whole number of at least 1, not {value!r}"
            )
        return int(value)

    def at_most_one(self, *names: str) -> None:
        """Raise ConfigurationError if more than one of these options is given."""
        if len([name for name in names if name in self._values]) > 1:
            raise ConfigurationError(f"options {' and '.join(names)} cannot be combined")

    def forbid(self, names: tuple[str, ...], why: str) -> None:
        """Raise ConfigurationError if one of these options is given."""
        for name in names:
            if name in self._values:
                raise ConfigurationError(f"option {name} cannot be combined with {why}")


def parse_topics(value: str | None) -> frozenset[str] | None:
    """Return the topics of option ``subscribe``: separated by commas, or a JSON list.

    Raises ConfigurationError.
    """
    if value is None:
        return None
    if value.lstrip().startswith("["):
        try:
            names = json.loads(value)
        except ValueError as error:
            raise ConfigurationError(f"option subscribe: not a JSON list: {error}") from None
        if not all(isinstance(name, str) for name in names):
            raise ConfigurationError("option subscribe: expected a JSON list of topic names")
    else:
        names = [name.strip() for name in value.split(",")]
    if not names:
        raise ConfigurationError("option subscribe: the list of topics is empty")
    for name in names:
        _check_topic(name, "subscribe")
    return frozenset(names)


def _check_topic(name: str, option: str) -> None:
    try:
        topic_name(name)
    except InvalidTopicName as error:
        raise ConfigurationError(f"option {option}: {error}") from None


def _urls_or_path(options: _GivenOptions) -> tuple[tuple[str, ...], str | None]:
    url, path = options.get("url"), options.get("path")
    if (url is None) == (path is None):
        raise ConfigurationError(
            "either option url (HTTP API of a broker) or option path (a history) is required"
        )
    if url is None:
        options.forbid(("token", "tokenFile"), "path: the file system controls access to a file")
        return (), path
    urls = tuple(each.strip().rstrip("/") for each in url.split(","))
    for each in urls:
        _check_url(each)
        if urlsplit(each).scheme not in ("http", "https"):
            raise ConfigurationError(
                f"option url: reading requires http:// or https://, not {each!r}"
            )
    if len(set(urls)) < len(urls):
        raise ConfigurationError("option url: the same broker is named twice")
    return urls, None


def _check_url(url: str) -> None:
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError:
        raise ConfigurationError("option url: not a valid URL") from None
    if split.username is not None or split.password is not None:
        # The URL is not shown, as the part before the @ is a secret.
        raise ConfigurationError(
            "option url: remove the user and password, which logs would show; use option token"
        )
    if not split.scheme or not split.hostname or port == 0:
        raise ConfigurationError(f"option url: expected scheme://host:port, not {url!r}")


def _credentials(options: _GivenOptions) -> Credentials:
    options.at_most_one("token", "tokenFile")
    return Credentials(options.get("token"), options.get("tokenFile"))


def _check_pattern(value: str | None) -> str | None:
    if value is not None:
        try:
            re.compile(value)
        except re.error as error:
            raise ConfigurationError(f"option subscribePattern: {error}") from None
    return value


def _offsets_option(options: _GivenOptions, name: str) -> Start | None:
    value = options.get(name)
    if value is None or value.lower() in (EARLIEST, LATEST):
        return value and value.lower()
    try:
        offsets = json.loads(value)
        return {int(key): _parse_offset(offset) for key, offset in offsets.items()}
    except (ValueError, AttributeError, TypeError):
        raise ConfigurationError(
            f'option {name}: expected earliest, latest or JSON such as {{"0": 1234, "1": "latest"}}'
        ) from None


def _parse_offset(value: object) -> int | str:
    if value in (EARLIEST, LATEST) or (type(value) is int and value >= 0):
        return value
    raise ValueError


def _parse_timestamp(value: str | None) -> int | None:
    """Return µs since the Unix epoch from milliseconds, or from ISO 8601 with a time zone."""
    if value is None:
        return None
    if value.isascii() and value.isdecimal():
        return int(value) * 1000
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is None:
            raise ValueError
    except ValueError:
        raise ConfigurationError(
            "option startingTimestamp: expected milliseconds since 1970 or a time such as "
            "2026-01-31T12:00:00+00:00"
        ) from None
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND


_MICROSECOND = datetime.resolution


def _parse_size(options: _GivenOptions, name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    match = _SIZE.fullmatch(value)
    if match is None or not int(match[1]):
        raise ConfigurationError(f"option {name}: expected bytes such as 64m, not {value!r}")
    return int(match[1]) * _FACTORS[match[2].lower()]


def _check_reader_name(value: str | None) -> str | None:
    if value is not None and not _READER_NAME.fullmatch(value):
        raise ConfigurationError(
            "option readerName: expected 1 to 200 letters, digits, dots, dashes and underscores"
        )
    return value
