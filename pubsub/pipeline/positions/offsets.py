"""The position of a query: the next offset of each partition, and the epoch of its history.

    {"0": {"next": 1234, "epoch": "3-9f6c01d2", "reads": {"topics": ["orders", "returns"]},
           "behind": [{"next": 57, "topics": ["returns"]}]},
     "1": {"next": 0, "epoch": "1-00c0ffee", "reads": {"pattern": null}}}

A partition is the history of one broker, numbered as in option url. The epoch shows whether a
history was restored to an older state, or is another one. The messages of the topics in ``reads``
have been read up to ``next``, except those of topics that are ``behind``, which were added later or
start elsewhere. Without ``reads``, as earlier versions wrote it, they are those of the options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pubsub.errors import ConfigurationError
from pubsub.pipeline.options.topic_selection import TopicSelection


@dataclass(frozen=True, slots=True)
class Behind:
    """Topics with a position of their own, before that of the others."""

    next: int
    topics: frozenset[str]
    shared: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """A position in one partition. ``reads`` is None if the topics are those of the options.

    Spark does not store where a query begins, and asks again if its first batch is run again. So
    this position is ``initial``, and the end of that batch has it as ``since``.

    Of a history that several brokers share, ``shared`` is the position that means the same at all
    of them. ``next`` and ``epoch`` are its place at one of these.
    """

    next: int
    epoch: str
    reads: TopicSelection | None = None
    behind: tuple[Behind, ...] = ()
    initial: bool = False
    since: PartitionPosition | None = None
    shared: str | None = None

    @property
    def apart(self) -> frozenset[str]:
        """The topics that are behind."""
        return frozenset(name for each in self.behind for name in each.topics)


Offsets: TypeAlias = dict[int, PartitionPosition]


def to_json(offsets: Offsets) -> dict[str, dict[str, Any]]:
    """Return the offsets as Spark stores them in its checkpoint."""
    return {str(number): _entry(position) for number, position in sorted(offsets.items())}


def _entry(position: PartitionPosition) -> dict[str, Any]:
    entry: dict[str, Any] = {"next": position.next, "epoch": position.epoch}
    if position.reads is not None:
        entry["reads"] = position.reads.to_json()
    if position.shared is not None:
        entry["shared"] = position.shared
    if position.behind:
        entry["behind"] = [_behind_entry(each) for each in position.behind]
    if position.initial:
        entry["initial"] = True
    if position.since is not None:
        entry["since"] = _entry(position.since)
    return entry


def _behind_entry(each: Behind) -> dict[str, Any]:
    entry: dict[str, Any] = {"next": each.next, "topics": sorted(each.topics)}
    return entry if each.shared is None else {**entry, "shared": each.shared}


def from_json(value: Mapping[str, Mapping[str, Any]], partitions: int) -> Offsets:
    """Return the offsets that ``to_json`` converted.

    Raises ConfigurationError if they are of another number of partitions, or of another source.
    """
    try:
        found = {int(partition): _position(entry) for partition, entry in value.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigurationError(
            "the checkpoint has offsets of another source, such as Kafka's, or is damaged; use a "
            "new checkpoint"
        ) from None
    if set(found) != set(range(partitions)):
        raise ConfigurationError(
            f"the checkpoint is of {len(value)} brokers, but option url names {partitions}; "
            "use a new checkpoint to add or remove brokers"
        )
    return found


def _position(entry: Mapping[str, Any]) -> PartitionPosition:
    reads, since = entry.get("reads"), entry.get("since")
    return PartitionPosition(
        int(entry["next"]),
        str(entry["epoch"]),
        None if reads is None else TopicSelection.from_json(reads),
        tuple(
            Behind(int(each["next"]), frozenset(each["topics"]), each.get("shared"))
            for each in entry.get("behind", ())
        ),
        bool(entry.get("initial")),
        None if since is None else _position(since),
        entry.get("shared"),
    )
