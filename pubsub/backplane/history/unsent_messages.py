"""``UnsentMessages``: a broker's messages that the shared stream lacks, and calls that wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from pubsub.backplane.history.spool import SharedLimits, Spool, Waiters
from pubsub.broker.publishing.publisher_gates import Gate

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch

log = Logger()
# Seconds that publishers are held for a slow engine.
_STALLED = 5.0


class UnsentMessages:
    """Accounts for such messages, and bounds them; implements ``Replication``.

    ``is_shared`` returns whether other brokers get the messages of a topic. ``pump`` is called when
    there are more messages to send. ``clock`` is the reactor.
    """

    def __init__(
        self,
        clock: Any,
        limits: SharedLimits,
        is_shared: Callable[[str], bool],
        pump: Callable[[], object],
    ) -> None:
        self._limits = limits
        self._is_shared = is_shared
        self._pump = pump
        self._spool, self._waiters = Spool(), Waiters(clock)
        self._spool_gate = SpoolGate(clock, limits.held)
        self.gate = self._spool_gate.gate
        # Whether a message was refused, and the spool is not half empty since.
        self._is_full = False

    def found(self, offset: int, messages: int, nbytes: int) -> None:
        """The log has had messages before ``offset`` since before it was opened."""
        self._spool.add_older(offset, messages, nbytes)

    def reached(self, offset: int) -> None:
        """The stream has all of this broker's messages before ``offset``."""
        self._spool.free(offset)
        self._waiters.reached(offset)
        if self._is_full and self._spool.nbytes <= self._limits.spool // 2:
            self._is_full = False
            log.info("backplane: half of backplane-spool-bytes is free again")
        self.hold()

    def hold(self) -> None:
        """Hold publishers if too much waits for the engine, which is there; else release them."""
        self._spool_gate.update(self._spool.nbytes)

    def release(self) -> None:
        """Release all publishers: the engine is away."""
        self._spool_gate.release()

    @property
    def settled(self) -> int:
        """The offset before which the stream has everything."""
        return self._waiters.settled

    def end(self) -> None:
        """End all waiting: the broker ends."""
        self._waiters.end()

    # Replication

    def trouble(self) -> str | None:
        """See ``Replication``."""
        if self._spool.nbytes < self._limits.spool:
            return None
        if not self._is_full:
            self._is_full = True
            log.error(
                "backplane: backplane-spool-bytes are waiting for NATS; publishes to stored topics "
                "are refused until it has taken some messages; raise the setting, or see why NATS "
                "takes none"
            )
        return (
            "the shared history has not taken the messages of this broker for too long, and "
            "backplane-spool-bytes are waiting"
        )

    def appended(self, batch: Batch) -> None:
        """See ``Replication``."""
        if any(map(self._is_shared, batch.topics)):
            self._spool.add(batch.offset + batch.count, batch.count, batch.nbytes)
            self._pump()

    def commit_on_disk(self) -> None:
        """See ``Replication``."""
        self._pump()

    def after_stored(self, call: Callable[[bool], None]) -> Callable[[bool], None]:
        """See ``Replication``."""
        return self._waiters.after(self._spool.end, call)

    def figures(self) -> Mapping[str, float]:
        """Return the figures of waiting messages; see ``Statistics.snapshot``."""
        return {
            "history_unreplicated": self._spool.messages,
            "history_unreplicated_bytes": self._spool.nbytes,
            "history_full": self._is_full,
        }


class SpoolGate:
    """Holds publishers for an engine that is there and slower than they, but not for long."""

    def __init__(self, clock: Any, limit: int) -> None:
        self.gate = Gate()
        self._clock = clock
        self._limit = limit
        self._timer: Any = None
        self._stalled = False

    def update(self, nbytes: int) -> None:
        """This number of bytes waits for the stream."""
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
