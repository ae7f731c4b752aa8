"""A stream in memory: the histories of the brokers of one process are shared, in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from twisted.internet.defer import Deferred, fail, succeed

from pubsub.backplane.history.replica_stream import StreamAway, StreamMessage

if TYPE_CHECKING:
    from pubsub.backplane.history.replica_stream import StreamWatcher

_AWAY = "the engine is away"


class MemoryLog:
    """The stream of the engine. Of the next messages, it reports ``lose`` as stored without storing
    them, refuses ``refuse``, and stores ``doubt`` but reports that it has not."""

    def __init__(self, limit: int = 1024**2) -> None:
        self.limit = limit
        self.messages: list[StreamMessage] = []
        self.identity = uuid4().hex
        self.last = 0
        self.lose = self.refuse = self.doubt = 0
        self.readers: list[MemoryStream] = []
        self.is_away = False

    def append(self, origin: str, data: bytes) -> Deferred[None]:
        """Store a message."""
        if self.is_away:
            return fail(StreamAway(_AWAY))
        if self.refuse:
            self.refuse -= 1
            return fail(StreamAway("no acknowledgment"))
        if self.lose:
            self.lose -= 1
            return succeed(None)
        self.last += 1
        self.messages.append(StreamMessage(self.last, origin, data))
        for reader in self.readers:
            reader.wake()
        if self.doubt:
            self.doubt -= 1
            return fail(StreamAway("no acknowledgment"))
        return succeed(None)

    def remove(self, count: int) -> None:
        """Remove the oldest messages, as retention does."""
        del self.messages[:count]

    def clear(self) -> None:
        """Begin again, as an engine that has lost its disk does."""
        self.messages, self.last = [], 0
        self.identity = uuid4().hex

    def forget(self, count: int) -> None:
        """Lose the newest messages, as an engine whose computer has lost its power does."""
        del self.messages[-count:]
        self.last -= count

    def leave(self) -> None:
        """Be away from now on."""
        self.is_away = True
        for reader in self.readers:
            reader.leave()

    def come_back(self) -> None:
        """Be there again."""
        self.is_away = False
        for reader in self.readers:
            reader.join()


class MemoryStream:
    """See ``ReplicaStream``: one broker's; ``later`` runs a call after this tick's events."""

    def __init__(self, log: MemoryLog, later: Callable[[Callable[[], None]], object]) -> None:
        self._log = log
        self._later = later
        self._watcher: StreamWatcher | None = None
        self._at = 0
        self._waiting: Deferred[Sequence[StreamMessage]] | None = None

    @property
    def limit(self) -> int:
        """See ``ReplicaStream``."""
        return self._log.limit

    @property
    def identity(self) -> str:
        """See ``ReplicaStream``."""
        return self._log.identity

    def watch(self, watcher: StreamWatcher) -> None:
        """See ``ReplicaStream``."""
        self._watcher = watcher

    def open(self) -> None:
        """Connect."""
        self._log.readers.append(self)
        if not self._log.is_away:
            self.join()

    def close(self) -> None:
        """Disconnect without notice, as a process that is killed."""
        self._log.readers.remove(self)
        self._waiting = None

    def join(self) -> None:
        """The engine is there."""
        if self._watcher is not None:
            self._watcher.joined()

    def leave(self) -> None:
        """The engine is away."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.errback(StreamAway(_AWAY))
        if self._watcher is not None:
            self._watcher.left()

    def begin(self, after: int) -> Deferred[int]:
        """See ``ReplicaStream``."""
        if self._log.is_away:
            return fail(StreamAway(_AWAY))
        self._at = after
        last = self._log.last
        return succeed(last if self._log.messages else min(last, after))

    def fetch(self) -> Deferred[Sequence[StreamMessage]]:
        """See ``ReplicaStream``."""
        waiting: Deferred[Sequence[StreamMessage]] = Deferred(self._cancel)
        self._waiting = waiting
        self.wake()
        return waiting

    def _cancel(self, waiting: Deferred[Sequence[StreamMessage]]) -> None:
        self._waiting = None

    def wake(self) -> None:
        """There may be something to read."""
        self._later(self._deliver)

    def _deliver(self) -> None:
        found = [one for one in self._log.messages if one.sequence > self._at]
        if found and self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._at = found[-1].sequence
            waiting.callback(found)

    def publish(self, origin: str, data: bytes) -> Deferred[None]:
        """See ``ReplicaStream``."""
        return self._log.append(origin, data)
