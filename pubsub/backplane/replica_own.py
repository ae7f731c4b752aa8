"""The messages of a broker's history that are its own, and those of them that the stream has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pubsub.broker.access import RESERVED
from pubsub.broker.limits import Gate

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.broker.queue_keys import QueueKeys
    from pubsub.interfaces import IStore

RUNS = "replica-runs"
"""The table of the metadata with the runs of this broker whose messages are shared. A run has the
sequence after the last message that the stream had when a session began."""
# Bytes of a page, and seconds that publishers are held for a slow engine.
_PAGE, _STALLED = 256 * 1024, 5.0


class OwnMessages:
    """The messages of this broker; ``run`` is its present run."""

    def __init__(self, store: IStore, queue_keys: QueueKeys, run: int) -> None:
        self._store = store
        self._queue_keys = queue_keys
        self._run = run
        # By run: what the stream has, and what the log had when it was opened.
        self._in_stream: dict[int, int] = {}
        self._in_log: dict[int, int] = {}

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
            self._store.put(RUNS, f"{run:015x}", value)

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
        return stop, messages, nbytes

    def lost(self, run: int, batches: Sequence[Batch]) -> list[Batch]:
        """Return what the log does not have of the stream's ``batches``."""
        if run == self._run:
            return []
        known = max(self._in_log.get(run, 0), self._in_stream.get(run, 0))
        return [rest for one in batches if (rest := one.since(known)) is not None]

    def chosen(self, batch: Batch) -> list[Batch]:
        """Return what of ``batch`` the stream is to have, with its run."""
        run = batch.run or self._run
        if run not in self._in_stream:
            return []
        rest = batch.since(self._in_stream[run])
        if rest is None:
            return []
        rest = replace(rest, run=run)
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


class SpoolGate:
    """Holds publishers for an engine that is there and slower than they, but not for long."""

    def __init__(self, clock: Any, limit: int) -> None:
        self.gate = Gate()
        self._clock = clock
        self._limit = limit
        self._timer: Any = None
        self._stalled = False

    def update(self, nbytes: int) -> None:
        """So many bytes wait for the stream."""
        if nbytes <= self._limit // 2:
            self.release()
        elif nbytes > self._limit and not self.gate.shut and not self._stalled:
            self.gate.close()
            self._timer = self._clock.callLater(_STALLED, self._stall)

    def _stall(self) -> None:
        self._timer, self._stalled = None, True
        self.gate.open()

    def release(self) -> None:
        """Release all publishers: there is room, or no engine."""
        self._stalled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.gate.shut:
            self.gate.open()
