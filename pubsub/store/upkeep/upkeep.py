"""Housekeeping of the log: expiry, rewriting of segments, the check after a crash, disk space.

Once a second, and in steps while there is more to do. Each step runs in a thread and takes some
milliseconds; neither commits nor readers wait for it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.store.catalog.catalog import Catalog, set_horizons
from pubsub.store.commits.log_writer import LogWriter
from pubsub.store.metadata.metadata import Metadata
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.segments.segment import Segment, index_name
from pubsub.store.segments.segment_index import Grain
from pubsub.store.upkeep.crash_check import CrashCheck, report_damaged
from pubsub.store.upkeep.ended_topics import EndedTopics
from pubsub.store.upkeep.expired_messages import ExpiredMessages, grain_of, horizons_of
from pubsub.store.upkeep.retention_limits import RetentionLimits
from pubsub.store.upkeep.rewrite import Damaged, Rewrite, RewritePlan
from pubsub.store.worker import Worker

log = Logger()
ROUND_SECONDS = 1.0
# Seconds between two steps of a round, so that the thread does not take the interpreter for long.
_STEP_SECONDS = 0.02
_RETRY_SECONDS = 10.0
_USAGE_SECONDS = 5
# Below this part of the file system, and this many bytes, messages expire early.
_LOW_PART = 20
_LOW_BYTES = 1024**3
# Below this, removing a file may need the reserve.
_FULL_BYTES = 1024**2


class Upkeep:
    """The steps; all are called in one thread. ``check_before`` is that of ``CrashCheck``."""

    def __init__(
        self,
        directory: LogDirectory,
        catalog: Catalog,
        metadata: Metadata,
        writer: LogWriter,
        expiry: ExpiredMessages,
        check_before: int,
        grain: Grain,
        compress: bool = False,
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._metadata = metadata
        self._writer = writer
        self._expiry = expiry
        self._horizons = metadata.horizons()
        self._rewrite: Rewrite | None = None
        self._rewrite_steps: Generator[None, None, None]
        self._grain = grain
        self._compress = compress
        self._plan = RewritePlan(catalog, compress)
        self._ended = EndedTopics(catalog, metadata, writer)
        self._check = CrashCheck(catalog, check_before)
        self._low = False
        self.usage = directory.usage()
        """The disk that the log takes, at most _USAGE_SECONDS old."""
        self._measured = 0
        self._wanted: tuple[Sequence[RetentionLimits], bool] | None = None

    def reconfigure(self, retention: Sequence[RetentionLimits], compress: bool) -> None:
        """Use these limits from the next step on; may be called in another thread."""
        self._wanted = retention, compress

    def close(self) -> None:
        """Do no more steps: leave no file of a rewrite that is not complete. Raises OSError."""
        self._abandon_rewrite()

    def _apply_wanted(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return
        retention, compress = wanted
        known = {one.pattern: one.offset for one in self._catalog.horizons}
        set_horizons(self._catalog, horizons_of(retention), known)
        self._expiry.begin(retention)
        self._grain = grain_of(retention)
        self._writer.use_grain(self._grain)
        if compress is not self._compress:
            self._compress = compress
            self._plan = RewritePlan(self._catalog, compress)

    def step(self, now: int) -> bool:
        """Do one step at the time ``now`` (µs); return whether there is more to do.

        Raises OSError or sqlite3.Error.
        """
        self._measure(now)
        self._apply_wanted()
        expiring = self._expiry.step(now)
        # First, as a full disk does not take the horizons.
        freed = self._free_space()
        self._store_horizons()
        removed = self._remove_expired()
        rewriting = not expiring and self._rewrite_step()
        forgetting = not expiring and self._ended.step()
        checking = self._check.step()
        return expiring or freed or removed or rewriting or forgetting or checking

    def _measure(self, now: int) -> None:
        # Either direction: the clock may have been set back.
        if abs(now - self._measured) >= _USAGE_SECONDS * 1_000_000:
            self._measured = now
            self.usage = self._directory.usage()

    def _store_horizons(self) -> None:
        horizons = {one.pattern: one.offset for one in self._catalog.horizons}
        if horizons != self._horizons:
            self._metadata.set_horizons(horizons.items())
            self._horizons = horizons

    # Removal

    def _removable(self) -> list[Segment]:
        """Return the segments that get no more records and whose operations were applied."""
        unapplied = self._writer.unapplied
        return [one for one in self._catalog.segments[:-1] if one.sealed and one.place < unapplied]

    def _remove_expired(self) -> bool:
        """Remove segments without offsets, and the first ones if all of them has expired."""
        catalog = self._catalog
        empty = [one for one in self._removable() if one.base == one.stop]
        expired: list[Segment] = []
        for segment in self._removable():
            if segment.base == segment.stop:
                continue
            if segment.stop > catalog.low:
                catalog.use(segment)
                topics = segment.index_or_damage().topics
                if any(catalog.hidden_before(name) < segment.stop for name in topics):
                    break
            # Otherwise a crash has left the file.
            expired.append(segment)
        if empty or expired:
            low = self._remove([*empty, *expired])
            self._metadata.remove_ended(low)
            catalog.forget_ended(low)
        return bool(expired)

    def _remove(self, removed: Sequence[Segment]) -> int:
        """Remove segments from the metadata, from the catalog and from the disk.

        Returns the offset at which the log begins now: behind all segments that had offsets.
        """
        # Segments that a crash has left may end before it.
        low = max([self._catalog.low, *[one.stop for one in removed if one.stop > one.base]])
        self._metadata.replace_segments([one.place for one in removed], [], low)
        self._catalog.low = low
        self._replace(removed, [])
        return low

    def _replace(self, removed: Sequence[Segment], added: Sequence[Segment]) -> None:
        """Replace segments, as the metadata have it, in the catalog and on disk."""
        self._catalog.replace(removed, added)
        for segment in removed:
            self._directory.remove(segment.name)
            self._directory.remove(index_name(segment.name))

    def _free_space(self) -> bool:
        """Let the oldest segment expire early if the disk is filling up."""
        free, total = self._directory.free_bytes()
        mark = min(total // _LOW_PART, _LOW_BYTES)
        if free >= mark:
            if self._low:
                log.info("history: the disk has {free} bytes free again", free=free)
                self._low = False
            self._directory.keep_reserve()
            return False
        if not self._low:
            log.warn(
                "history: the disk has {free} bytes free, fewer than {mark}; the oldest messages "
                "expire early",
                free=free,
                mark=mark,
            )
            self._low = True
            self._abandon_rewrite()
        removable = [one for one in self._removable() if one.stop > one.base]
        if not removable:
            # The reserve is kept for the next start.
            return False
        if free < _FULL_BYTES:
            self._directory.use_reserve()
        oldest = removable[0]
        log.warn(
            "history: offsets {first} to {last} expire early, as the disk is filling up",
            first=oldest.base,
            last=oldest.stop - 1,
        )
        self._expiry.drop(oldest)
        self._remove([oldest])
        self._directory.keep_reserve()
        return True

    # Rewriting

    def _abandon_rewrite(self) -> None:
        """Remove the new file: it takes space, and would bring back what is removed."""
        rewrite, self._rewrite = self._rewrite, None
        if rewrite is not None:
            self._rewrite_steps.close()
            rewrite.discard()

    def _rewrite_step(self) -> bool:
        if self._rewrite is None:
            writer = self._writer
            sources = [] if self._low else self._plan.next(writer.unapplied, writer.part)
            for one in self._plan.take_unreadable():
                self._catalog.read_errors.lose(one)
                report_damaged(self._catalog, one.base, one.stop)
            if not sources:
                return False
            number = self._writer.take_sequence()
            self._rewrite = Rewrite(
                self._directory, self._catalog, sources, number, self._grain, self._compress
            )
            self._rewrite_steps = self._rewrite.steps()
        rewrite = self._rewrite
        try:
            for _ in self._rewrite_steps:
                return True
            segment, row = rewrite.finish()
        except Damaged as damaged:
            # Its neighbours can be rewritten without it.
            self._plan.leave(damaged.segment)
            self._rewrite = None
            return True
        except BaseException:
            self._rewrite = None
            raise
        self._plan.keep(segment)
        # While the metadata cannot be written, the next steps repeat this: to rewrite again would
        # leave one more file each time.
        places = [one.place for one in rewrite.sources]
        self._metadata.replace_segments(places, [row], self._catalog.low)
        self._rewrite = None
        self._replace(rewrite.sources, [segment])
        return True


class Rounds:
    """Runs the steps of ``upkeep`` in a thread. ``now`` returns the time in µs."""

    def __init__(self, reactor: Any, upkeep: Upkeep, now: Callable[[], int]) -> None:
        self._reactor = reactor
        self._upkeep = upkeep
        self._now = now
        self._thread = Worker("history-upkeep", 1, reactor)
        self._stopped = False
        self._next: IDelayedCall | None = None
        self._schedule(ROUND_SECONDS)

    def _schedule(self, seconds: float) -> None:
        if not self._stopped:
            self._next = self._reactor.callLater(seconds, self._begin)

    def _begin(self) -> None:
        self._next = None
        ensureDeferred(self._step()).addErrback(_log_failure)

    async def _step(self) -> None:
        pause = _RETRY_SECONDS
        try:
            more = await self._thread.run(partial(self._upkeep.step, self._now()))
            pause = _STEP_SECONDS if more else ROUND_SECONDS
        finally:
            self._schedule(pause)

    def stop(self) -> None:
        """Start no more steps, and wait for one that runs."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._thread.stop()
        # What it cannot remove is removed at the next start.
        with suppress(OSError):
            self._upkeep.close()


def _log_failure(failure: Failure) -> None:
    if not failure.check(sqlite3.Error, OSError):
        log.failure("history: maintenance failed", failure)
    log.error(
        "history: maintenance failed and is tried again: {reason}", reason=failure.getErrorMessage()
    )
