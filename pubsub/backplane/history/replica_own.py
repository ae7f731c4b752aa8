"""The messages of a broker's history that are its own, and those of them that the stream has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pubsub.broker.access_rules.access import RESERVED

if TYPE_CHECKING:
    from pubsub.broker.credentials.queue_keys import QueueKeys
    from pubsub.broker.routing.batch import Batch
    from pubsub.interfaces import IStore

RUNS = "replica-runs"
"""The table of the metadata with the runs of this broker whose messages are shared. A run has the
sequence after the last message that the stream had when a session began."""
# Bytes of a page.
_PAGE = 256 * 1024


class OwnMessages:
    """The messages of this broker; ``run`` is its present run."""

    def __init__(self, store: IStore, queue_keys: QueueKeys, run: int) -> None:
        self._store = store
        self._queue_keys = queue_keys
        self._run = run
        # By run: the messages of the stream, and those of the log from the offset of the survey on.
        self._in_stream: dict[int, int] = {}
        self._in_log: dict[int, int] = {}
        self._is_surveyed = False

    def open(self) -> None:
        """Begin; the store is open."""
        for run, value in self._store.items(RUNS):
            self._in_stream[int(run, 16)] = int.from_bytes(value, "little")
        self.shared(self._run, 0, keep=True)

    def shared(self, run: int, following: int, keep: bool = False) -> None:
        """The stream has the messages of ``run`` before the sequence ``following``.

        That is stored if it is to be kept.
        """
        self._in_stream[run] = max(self._in_stream.get(run, 0), following)
        if keep:
            value = self._in_stream[run].to_bytes(8, "little")
            self._store.put(RUNS, _key(run), value)

    async def survey(self, offset: int) -> tuple[int, int, int]:
        """Look for messages from ``offset`` on that former runs have stored and not sent.

        Returns the offset after them, their number and their bytes.
        """
        at, stop = offset, self._store.committed
        messages = nbytes = 0
        while at < stop:
            page = await self._store.read(at, None, _PAGE)
            if page.next_offset <= at:
                break
            at = page.next_offset
            for batch in page.batches:
                if batch.run in (0, self._run):
                    continue
                for one in self.chosen(batch):
                    messages += one.count
                    nbytes += one.nbytes
                following = batch.sequence + batch.count
                self._in_log[batch.run] = max(self._in_log.get(batch.run, 0), following)
        self._is_surveyed = at >= stop
        return stop, messages, nbytes

    def prune(self) -> None:
        """Forget the runs that are not needed any more; a term of this broker has begun.

        All that the stream had before was read, and parts of earlier terms are left out from now
        on. So ``lost`` is asked only about runs that are sent again, and those have messages from
        the offset of the survey on. ``chosen`` is asked about these, too. For a run without a row
        it returns nothing, which is right for messages before that offset: the stream has them.
        Rows of runs that the survey has found stay until the next start.
        """
        if not self._is_surveyed:
            return
        for run in [one for one in self._in_stream if one != self._run and one not in self._in_log]:
            del self._in_stream[run]
            self._store.delete(RUNS, _key(run))

    def lost(self, run: int, batches: Sequence[Batch]) -> list[Batch]:
        """Return the messages of the stream's ``batches`` that the log does not have."""
        if run == self._run:
            return []
        known = max(self._in_log.get(run, 0), self._in_stream.get(run, 0))
        return [rest for one in batches if (rest := one.since(known)) is not None]

    def chosen(self, batch: Batch) -> list[Batch]:
        """Return the messages of ``batch`` that belong into the stream, with their run."""
        run = batch.run or self._run
        if run not in self._in_stream:
            return []
        rest = batch.since(self._in_stream[run])
        if rest is None:
            return []
        # Other brokers create the topics of a record, and wait for the keys of these. A read of
        # many topics is stored with the names of others, too (see `WideRead.to_store`).
        rest = replace(rest.compact(), run=run)
        if all(map(self.is_shared, rest.topics)):
            return [rest]
        return [one for _, one in rest.runs() if self.is_shared(one.topic)]

    def is_shared(self, topic: str) -> bool:
        """Return whether other brokers get the messages of ``topic``."""
        return not topic.startswith(RESERVED) and topic not in self._queue_keys.exclusive

    def keyed(self, names: Sequence[str]) -> list[str]:
        """Return the topics that have a queue key."""
        # There is no proof of a key of which only the hash is known.
        return [name for name in names if self._queue_keys.proof(name) != b""]


def _key(run: int) -> str:
    return f"{run:015x}"
