"""``ReplicaSender``: one term in which this broker's messages are appended to the stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.backplane.history.replica_record import (
    MAX_PARTS,
    RecordPart,
    cut,
    encode_batches,
    nbytes_of,
    parts_of,
)

if TYPE_CHECKING:
    from pubsub.backplane.history.replica_stream import ReplicaStream
    from pubsub.broker.routing.batch import Batch
    from pubsub.store.shared_store import SharedStore

log = Logger()
WINDOW = 4 * 1024**2
"""About how many bytes are sent and not read back."""
# Bytes of a page of the history, of a record, and of a head with its columns' sizes.
_PAGE, _RECORD, _HEADS = 512 * 1024, 256 * 1024, 128


class Sent(NamedTuple):
    """A record under way: its last part, and the offset and the message after it."""

    number: int
    end: int
    run: int
    following: int
    nbytes: int
    messages: int


class ReplicaSender:
    """Sends the messages that ``choose`` returns for each batch of ``store``, from ``cursor`` on.

    ``choose`` returns the batches to be sent, each with its run, ``keyed`` those of some topics
    that have a queue key. ``failed`` is called once if the term has to end, ``idle`` when the
    stream has everything.
    """

    def __init__(
        self,
        store: SharedStore,
        stream: ReplicaStream,
        origin: str,
        term: int,
        run: int,
        cursor: int,
        choose: Callable[[Batch], Sequence[Batch]],
        keyed: Callable[[Sequence[str]], list[str]],
        failed: Callable[[str], object],
        idle: Callable[[], object],
    ) -> None:
        self._store = store
        self._stream = stream
        self._origin = origin
        self.term = term
        self._run = run
        self._choose = choose
        self._keyed = keyed
        self._failed = failed
        self._idle = idle
        self.cursor = cursor
        self.removed = 0
        """Offsets that retention has removed before they were sent."""
        self._number = 0
        self._sent: deque[Sent] = deque()
        self._under_way = 0
        self._is_open = self._pumping = self._ended = False

    def begin(self) -> None:
        """Begin the term. Nothing else is sent until that was read back."""
        self._publish([b""], self._run)

    def opened(self) -> None:
        """The beginning of the term was read back."""
        self._is_open = True
        self.pump()

    def end(self) -> None:
        """Send nothing more."""
        self._ended = True

    @property
    def is_idle(self) -> bool:
        """Whether everything was read back that the history has."""
        return self._is_open and not self._sent and self.cursor >= self._store.next_offset

    def read_back(self, number: int) -> Sent | None:
        """The part ``number`` was read back; return the record that it has completed."""
        if not self._sent or self._sent[0].number > number:
            return None
        sent = self._sent.popleft()
        self._under_way -= sent.nbytes
        self.pump()
        return sent

    def pump(self) -> None:
        """Send messages of the history, as far as the window allows."""
        if self._is_open and not self._pumping and not self._ended:
            self._pumping = True
            ensureDeferred(self._pump()).addErrback(self._broken)

    def _broken(self, failure: Failure) -> None:
        log.failure("backplane: sending the history has failed", failure)
        self._fail(failure.getErrorMessage())

    def _fail(self, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._failed(reason)

    async def _pump(self) -> None:
        try:
            while (
                not self._ended and self._under_way < WINDOW and self.cursor < self._store.sendable
            ):
                page = await self._store.read_sendable(self.cursor, _PAGE)
                if self._ended or page.next_offset <= self.cursor:
                    break
                first = page.batches[0].offset if page.batches else page.next_offset
                self._note_removed(max(min(self._store.first_offset, first) - self.cursor, 0))
                for batches in self._records(page.batches):
                    self._send(batches)
                self.cursor = page.next_offset
        finally:
            self._pumping = False
        if self.is_idle and not self._ended:
            self._idle()

    def _note_removed(self, count: int) -> None:
        if count and not self.removed:
            log.error(
                "backplane: retention has removed messages before the stream had them: {count} "
                "from offset {offset} on; raise retention",
                count=count,
                offset=self.cursor,
            )
        self.removed += count

    def _records(self, batches: Sequence[Batch]) -> Iterator[list[Batch]]:
        """Yield the batches of each record: of one run, and small enough if they are several."""
        room = min(_RECORD, self._stream.limit) - _HEADS
        chosen = [one for batch in batches for whole in self._choose(batch)
                  for one in cut(whole, room)]  # fmt: skip
        for _, own in groupby(chosen, lambda batch: batch.run):
            record: list[Batch] = []
            left = room
            for batch in own:
                nbytes = nbytes_of(batch)
                if record and nbytes > left:
                    yield record
                    record, left = [], room
                record.append(batch)
                left -= nbytes
            if record:
                yield record

    def _send(self, batches: Sequence[Batch]) -> None:
        names = sorted({name for batch in batches for name in batch.topics})
        record = encode_batches(batches, self._keyed(names))
        parts = parts_of(record, self._stream.limit)
        if len(parts) > MAX_PARTS:
            log.error(
                "backplane: a message of topic {topic!r} is too large for the engine and is not "
                "shared; its sequence is {sequence}",
                topic=batches[0].topic,
                sequence=batches[0].sequence,
            )
            return
        last = batches[-1]
        self._publish(parts, last.run)
        self._sent.append(
            Sent(
                self._number,
                last.offset + last.count,
                last.run,
                last.sequence + last.count,
                len(record),
                sum([batch.count for batch in batches]),
            )
        )
        self._under_way += len(record)

    def _publish(self, parts: Sequence[bytes], run: int) -> None:
        for place, piece in enumerate(parts):
            self._number += 1
            part = RecordPart(self.term, self._number, run, place, len(parts), piece)
            done: Deferred[None] = self._stream.publish(self._origin, part.encode())
            done.addErrback(lambda failure: self._fail(failure.getErrorMessage()))
