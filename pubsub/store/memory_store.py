"""The history in memory, bounded by messages and bytes. It ends with the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, groupby
from typing import Any

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from pubsub.broker.figures.histogram import Histogram
from pubsub.broker.publishing.publisher_gates import Gate
from pubsub.broker.routing.batch import Batch, Page
from pubsub.interfaces import CommitWatcher, IStore, Value
from pubsub.kernel import Senders
from pubsub.store.reading.run_log import RunLog
from pubsub.store.records.block import encode_block
from pubsub.store.records.parcel import Parcel
from pubsub.store.records.stored_runs import first_offset_of, last_offset_of, names_of, run_of
from pubsub.store.records.topic_counts import TopicCounts


def parcel_of(
    log: RunLog, run: int, start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
) -> Parcel:
    """As ``IStore.read_parcel``, for messages in memory; ``run`` is the broker run."""
    records, reached = log.records_from(start, stop, topics, max_bytes)
    pieces = []
    for numbered_by, group in groupby(records, run_of):
        own = list(group)
        base, after = first_offset_of(own[0]), last_offset_of(own[-1]) + 1
        found = frozenset(chain.from_iterable(map(names_of, own)))
        names = found if topics is None else found & topics
        if names:
            pieces.append((encode_block(own, numbered_by or run, base, after), names))
    return Parcel(start, reached, log.first_offset, tuple(pieces))


@implementer(IStore)
class MemoryStore:
    """At most ``messages`` messages in ``nbytes`` bytes; see ``RunLog``."""

    durable = False
    epoch = ""
    last_timestamp = 0

    def __init__(self, messages: int, nbytes: int) -> None:
        self._log = RunLog(messages, nbytes)
        self._tables: dict[str, dict[str, Value]] = {}
        self._run = 0
        self.gate = Gate()
        self.commit_times = self.sync_times = Histogram()

    def watch_commits(self, watcher: CommitWatcher) -> None:
        """See ``IStore``."""

    def open(self, run: int) -> None:
        """See ``IStore``. Positions of other processes are not valid here."""
        self._run = run
        self.epoch = f"memory-{run:015x}"

    def close(self) -> Deferred[None]:
        """See ``IStore``."""
        return succeed(None)

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """See ``IStore``: nothing of it can change."""

    @property
    def summary(self) -> str:
        """See ``IStore``."""
        if not self._log.max_messages:
            return "history: none"
        return (
            f"history: in memory, the last {self._log.max_messages} messages within "
            f"{self._log.max_bytes} bytes; it ends with this process"
        )

    @property
    def trouble(self) -> None:
        """See ``IStore``: there is none."""

    @property
    def next_offset(self) -> int:
        """See ``IStore``."""
        return self._log.next_offset

    @property
    def committed(self) -> int:
        """See ``IStore``. There is no later commit."""
        return self._log.next_offset

    @property
    def first_offset(self) -> int:
        """See ``IStore``."""
        return self._log.first_offset

    def figures(self) -> dict[str, float]:
        """See ``IStore``: there is neither a disk nor a commit."""
        return {"bytes": self._log.nbytes}

    def damaged(self) -> list[tuple[int, int]]:
        """See ``IStore``: memory has no damage."""
        return []

    def append(self, batch: Batch, senders: Senders | None = None) -> None:
        """See ``IStore``."""
        self._log.append(batch, senders)

    def together(self) -> AbstractContextManager[None]:
        """See ``IStore``."""
        return nullcontext()

    def begin_commit(self, finish: Callable[[], None]) -> None:
        """See ``IStore``."""

    def continuing(self) -> AbstractContextManager[None]:
        """See ``IStore``."""
        return nullcontext()

    def end_commit(self) -> None:
        """See ``IStore``."""

    def when_written(self, call: Callable[[bool], None]) -> None:
        """See ``IStore``."""
        call(True)

    def when_stored(self, call: Callable[[bool], None]) -> None:
        """See ``IStore``."""
        call(True)

    def when_synced(self, call: Callable[[bool], None]) -> None:
        """See ``IStore``."""
        self.when_stored(call)

    def read(
        self,
        offset: int,
        topics: frozenset[str] | None,
        max_bytes: int,
        fresh: bool = False,
        joined: bool = False,
    ) -> Deferred[Page]:
        """See ``IStore``. The Deferred has already fired."""
        return succeed(self._log.read(offset, topics, max_bytes, joined=joined))

    def read_parcel(
        self, start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
    ) -> Deferred[Parcel]:
        """See ``IStore``."""
        stop = min(stop, self.next_offset)
        return succeed(parcel_of(self._log, self._run, start, stop, topics, max_bytes))

    def offset_at(self, timestamp: int) -> Deferred[int]:
        """See ``IStore``."""
        return succeed(self._log.offset_at(timestamp))

    def topics_in(self, start: int, stop: int) -> Deferred[TopicCounts]:
        """See ``IStore``."""
        return succeed(self._log.totals(start, stop))

    def continues(self, epoch: str, offset: int) -> bool:
        """See ``IStore``."""
        return epoch == self.epoch

    def continuation(self, epoch: str, offset: int) -> int | None:
        """See ``IStore``."""
        return offset if epoch == self.epoch else None

    def forget(self, topic: str) -> None:
        """See ``IStore``."""
        self._log.forget(topic)

    def put(self, table: str, key: str, value: Value) -> None:
        """See ``IStore``."""
        self._tables.setdefault(table, {})[key] = value

    def delete(self, table: str, key: str) -> None:
        """See ``IStore``."""
        self._tables.get(table, {}).pop(key, None)

    def items(self, table: str) -> Iterable[tuple[str, bytes]]:
        """See ``IStore``."""
        values = self._tables.get(table, {})
        return tuple((key, value() if callable(value) else value) for key, value in values.items())
