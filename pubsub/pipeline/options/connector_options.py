"""The options of the source and the sink. Spark passes their keys in lower case.

An option that is unknown, not applicable or invalid is an error that names it. No ``repr`` and no
message contains a token.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from errno import EINVAL

from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.errors import ConfigurationError, InvalidTopicName
from pubsub.pipeline.options.filter_parser import parse_filter
from pubsub.pipeline.options.given_options import GivenOptions
from pubsub.pipeline.options.offset_options import (
    Start,
    TopicOffsets,
    parse_assigned,
    parse_delay,
    parse_offsets,
    parse_timestamp,
)
from pubsub.pipeline.options.option_urls import sink_urls, source_urls
from pubsub.pipeline.options.regions import EVERYTHING, Region
from pubsub.pipeline.options.topic_selection import TopicSelection
from pubsub.wire.text_file import read_line

MESSAGES, EVENTS = "messages", "events"
EVENTS_TOPIC = "$SYS/events"
PUBSUB, KAFKA = "pubsub", "kafka"

_READ_OPTIONS = ("url", "path", "token", "tokenFile", "stream", "subscribe", "subscribePattern",
         "assign", "startingOffsets", "startingTimestamp", "failOnDataLoss", "rowsPerTask",
         "minPartitions", "includeHeaders", "columns")  # fmt: skip
_BATCH_OPTIONS = ("endingOffsets", "endingTimestamp", "filter")
_STREAM_OPTIONS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger",
         "maxTriggerDelay", "readerName", "exclusiveReader")  # fmt: skip
_DEFAULT_DELAY = 900.0
_SINK_OPTIONS = ("url", "topic", "token", "tokenFile", "atomic", "columns")
# Options that Spark itself adds to a query that writes.
_SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname", "outputmode", "trigger", "path"})
_SIZE = re.compile(r"([0-9]+)([kmg]?)b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_READER_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A token, or the file whose first line it is, read for each request, as tokens expire."""

    token: str | None = field(default=None, repr=False)
    file: str | None = field(default=None, repr=False)

    @property
    def given(self) -> bool:
        """Return whether there is a token."""
        return self.token is not None or self.file is not None

    def read(self) -> str | None:
        """Return the token. Raises OSError for a file that cannot be read, or is not text."""
        if self.file is None:
            return self.token
        try:
            # To open a FIFO would wait for its writer.
            if not stat.S_ISREG(os.stat(self.file).st_mode):
                raise OSError(EINVAL, "not a regular file", self.file)
            return read_line(self.file)
        except ValueError:
            # The text of the error has the bytes of the file.
            raise OSError(EINVAL, "not text", self.file) from None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of the source. Timestamps are in µs since the Unix epoch, ``max_delay`` in seconds.

    With ``kafka`` the columns are those of Kafka's source.

    ``topics`` are those of option ``subscribe``; without them and ``pattern``, all topics are read.
    ``assigned`` has those of each partition instead. ``shared`` identifies the brokers' history.
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
    kafka: bool = False
    exclusive_reader: bool = True
    region: Region = EVERYTHING
    ending_timestamp: int | None = None
    assigned: Mapping[int, frozenset[str]] | None = None
    min_partitions: int = 1
    min_offsets: int | None = None
    max_delay: float = _DEFAULT_DELAY
    shared: str = ""

    @property
    def partitions(self) -> int:
        """Number of partitions, one for each history."""
        return 1 if self.shared else max(len(self.urls), 1)

    def subscription(self, number: int) -> TopicSelection:
        """Return the topics that are read from a partition."""
        if self.assigned is not None:
            return TopicSelection(self.assigned.get(number, frozenset()), None)
        return TopicSelection(self.topics, self.pattern)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The destination of the sink. ``of_protocol`` has the unparsed options of single protocols.

    Without ``atomic`` a frame is published in several batches. With ``kafka`` columns of Kafka's
    source that cannot be published are left out, and ``topic`` is for all rows. Several ``urls``
    are brokers with one history, if they are written to over HTTP.
    """

    urls: tuple[str, ...]
    credentials: Credentials
    topic: str | None
    of_protocol: Mapping[str, str]
    atomic: bool = True
    kafka: bool = False


def source_options(given: Mapping[str, str], streaming: bool | None) -> SourceOptions:
    """Parse the options of the source. Raises ConfigurationError.

    ``streaming`` is None before it is known whether the query is one: the options of both kinds of
    queries are then permitted.
    """
    _check_kind(given, streaming)
    known = _READ_OPTIONS + _STREAM_OPTIONS + _BATCH_OPTIONS
    options = GivenOptions(given, known)
    urls, path = _urls_or_path(options)
    stream = options.choice("stream", (MESSAGES, EVENTS), MESSAGES)
    if stream == EVENTS:
        options.forbid(
            ("subscribe", "subscribePattern", "assign", "includeHeaders", "columns"),
            "stream=events",
        )
    options.at_most_one("subscribe", "subscribePattern", "assign")
    options.at_most_one("startingOffsets", "startingTimestamp")
    options.at_most_one("endingOffsets", "endingTimestamp")
    topics = parse_topics(options.get("subscribe"))
    parsed = SourceOptions(
        urls=urls,
        path=path,
        credentials=_credentials(options),
        stream=stream,
        topics=frozenset({EVENTS_TOPIC}) if stream == EVENTS else topics,
        pattern=_check_pattern(options.get("subscribePattern")),
        starting=parse_offsets("startingOffsets", options.get("startingOffsets")),
        ending=parse_offsets("endingOffsets", options.get("endingOffsets")),
        starting_timestamp=parse_timestamp("startingTimestamp", options.get("startingTimestamp")),
        max_offsets=options.number("maxOffsetsPerTrigger"),
        max_bytes=_parse_size(options, "maxBytesPerTrigger"),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        rows_per_task=options.number("rowsPerTask") or 250_000,
        headers=options.flag("includeHeaders", False),
        reader_name=_check_reader_name(options.get("readerName")),
        kafka=_kafka_columns(options),
        exclusive_reader=options.flag("exclusiveReader", True),
        region=_region(options, stream),
        ending_timestamp=parse_timestamp("endingTimestamp", options.get("endingTimestamp")),
        assigned=parse_assigned(options.get("assign")),
        min_partitions=options.number("minPartitions") or 1,
        min_offsets=options.number("minOffsetsPerTrigger"),
        max_delay=_max_delay(options),
    )
    _check_offsets(parsed)
    return parsed


def _check_kind(given: Mapping[str, str], streaming: bool | None) -> None:
    """Raise ConfigurationError for options of the other kind of query; None permits both."""
    if streaming is not None:
        for key in _BATCH_OPTIONS if streaming else _STREAM_OPTIONS:
            if key.lower() in given:
                kind = "streaming" if streaming else "batch"
                raise ConfigurationError(f"option {key} does not apply to a {kind} query")


def _max_delay(options: GivenOptions) -> float:
    found = parse_delay("maxTriggerDelay", options.get("maxTriggerDelay"))
    if found is None:
        return _DEFAULT_DELAY
    if options.get("minOffsetsPerTrigger") is None:
        raise ConfigurationError("option maxTriggerDelay applies with minOffsetsPerTrigger only")
    return found


def _check_offsets(options: SourceOptions) -> None:
    """Raise ConfigurationError for partitions that do not exist and topics that are not read."""
    last = options.partitions - 1
    for number in options.assigned or ():
        if number > last:
            raise ConfigurationError(
                f"option assign: partition {number} does not exist; the numbers are 0 to {last}"
            )
    for name, start in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        if isinstance(start, TopicOffsets):
            for topic, places in start.of.items():
                for number in places:
                    exists = 0 <= number <= last
                    if not exists or not options.subscription(number).covers(topic):
                        raise ConfigurationError(
                            f"option {name}: topic {topic} is not read from partition {number}"
                        )


def sink_options(given: Mapping[str, str], of_protocol: Collection[str]) -> SinkOptions:
    """Parse the options of the sink.

    ``of_protocol`` names the options that only some protocols have. Raises ConfigurationError.
    """
    known = (*_SINK_OPTIONS, *of_protocol)
    options = GivenOptions(given, known, ignored=_SPARK_OPTIONS)
    url = options.get("url")
    if url is None:
        raise ConfigurationError("option url is required: the URL of the broker")
    topic = options.get("topic")
    if topic is not None:
        _check_topic(topic, "topic")
    found = {name: options.get(name) for name in of_protocol}
    own = {name: value for name, value in found.items() if value is not None}
    return SinkOptions(
        sink_urls(url),
        _credentials(options),
        topic,
        own,
        atomic=options.flag("atomic", True),
        kafka=_kafka_columns(options),
    )


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


def _region(options: GivenOptions, stream: str) -> Region:
    region = parse_filter(options.get("filter") or "")
    # The topic in an event is not the one that it is read from.
    return replace(region, topics=None) if stream == EVENTS else region


def _kafka_columns(options: GivenOptions) -> bool:
    return options.choice("columns", (PUBSUB, KAFKA), PUBSUB) == KAFKA


def _check_topic(name: str, option: str) -> None:
    try:
        topic_name(name)
    except InvalidTopicName as error:
        raise ConfigurationError(f"option {option}: {error}") from None


def _urls_or_path(options: GivenOptions) -> tuple[tuple[str, ...], str | None]:
    url, path = options.get("url"), options.get("path")
    if (url is None) == (path is None):
        raise ConfigurationError(
            "either option url (HTTP API of a broker) or option path (a history) is required"
        )
    if url is None:
        options.forbid(("token", "tokenFile"), "path: the file system controls access to a file")
        return (), path
    return source_urls(url), None


def _credentials(options: GivenOptions) -> Credentials:
    options.at_most_one("token", "tokenFile")
    return Credentials(options.get("token"), options.get("tokenFile"))


def _check_pattern(value: str | None) -> str | None:
    if value is not None:
        try:
            re.compile(value)
        except re.error as error:
            raise ConfigurationError(f"option subscribePattern: {error}") from None
    return value


def _parse_size(options: GivenOptions, name: str) -> int | None:
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
