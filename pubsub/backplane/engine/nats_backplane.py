"""``NatsBackplane``: brokers share messages through NATS with JetStream."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import implementer

from pubsub.backplane.engine.nats_connection import PING, NatsConnection
from pubsub.backplane.engine.nats_history import HistoryStream, NatsStream
from pubsub.backplane.engine.nats_state import NatsState
from pubsub.backplane.engine.nats_work import Change, Outbound
from pubsub.backplane.identities.identity_entry import MAX_VALUE
from pubsub.backplane.messages.coverage import Coverage
from pubsub.backplane.messages.subjects import subject_of, subject_of_prefix
from pubsub.backplane.state.shared_state import HEADER_BYTES
from pubsub.broker.publishing.publisher_gates import Gate
from pubsub.errors import StartError
from pubsub.interfaces import IBackplane

if TYPE_CHECKING:
    from pubsub.backplane.engine.engine_url import EngineOptions
    from pubsub.backplane.engine.nats_history import StreamOptions
    from pubsub.interfaces import Envelopes

log = Logger()
# Seconds that the start waits for an engine that does not answer, that publishers are held for one
# that takes nothing, and between two lines about errors.
_START, _STALLED, _COMPLAINTS, _STILL_AWAY = 5.0, 5.0, 10.0, 30.0
# Bytes that are taken over in one reactor tick.
_TAKEN = 512 * 1024
# Bytes of the largest message that the brokers send: the largest value of the shared state.
_NEEDED = MAX_VALUE + HEADER_BYTES
# The engine's default, until it is known.
_LIMIT = 1024**2
_AT_START = "the broker is starting"


@implementer(IBackplane)
class NatsBackplane:
    """Connects one broker. ``drop`` counts messages by client, topic and reason.

    ``later`` runs a call after the events of this tick. ``make_connection`` is for tests.
    """

    def __init__(
        self,
        options: EngineOptions,
        reactor: Any,
        later: Callable[[Callable[[], None]], object],
        drop: Callable[[str, str, str, int], object],
        make_connection: Callable[..., NatsConnection] = NatsConnection,
        history: StreamOptions | None = None,
    ) -> None:
        self._options = options
        self._reactor = reactor
        self._later = later
        self._drop = drop
        self._connection = make_connection(options, self, reactor)
        self.history: NatsStream | None = None
        """The stream of shared histories, if there is one."""
        if history is not None:
            stream = self._connection.history = HistoryStream(history)
            self.history = NatsStream(stream, self._connection.run, lambda: self.limit)
        self.state = NatsState(self._connection, lambda: self.limit)
        self._receive: Callable[[Envelopes], object] = lambda envelopes: None
        self._coverage = Coverage()
        self._changes: list[Change] = []
        self._messages: list[Outbound] = []
        self._scheduled = self._taking = self._is_open = False
        # Several prefixes can have one subject.
        self._prefixes: Counter[str] = Counter()
        self._stalled = False
        self._stall_timer: Any = None
        self._complained = self._logged_at = float("-inf")
        self._logged, self._small = "", 0
        # Why it could not be used, since the last connection.
        self._unusable: set[str] = set()
        self._queued = 0
        self._connections = 0
        self._away_since: float | None = None
        self._cut_off_at: float | None = None
        self.gate = Gate()
        self.trouble: str | None = _AT_START
        self._server = ""
        self.complaint = ""
        self.limit = _LIMIT
        self.link = secrets.randbits(64)
        self.summary = f"shares live messages with other brokers through {options.servers}; "
        self.summary += (
            "each broker keeps a history of its own"
            if history is None
            else "all brokers keep the same history"
        )

    # IBackplane

    def open(self, receive: Callable[[Envelopes], object]) -> None:
        """See ``IBackplane``."""
        self._receive = receive
        self._is_open = True
        self._hand_over()
        self._connection.start(_START)
        if self.trouble == _AT_START:
            self.away("it does not answer")
        if self._connection.problem is not None:
            self._connection.stop()
            raise StartError(f"backplane {self._options.servers}: {self._connection.problem}")

    def close(self) -> Deferred[None]:
        """See ``IBackplane``."""
        self._is_open = False
        self._stop_stall_timer()
        self.gate.open()
        self._hand_over()
        return self._connection.stop()

    def send(self, topic: str, data: bytes, count: int) -> str:
        """See ``IBackplane``."""
        if self.trouble is not None:
            return "backplane-away"
        if self._queued + len(data) > self._options.max_bytes:
            return "backplane-full"
        if self._stalled:
            return "backplane-slow"
        self._queued += len(data)
        self._messages.append(Outbound(topic, subject_of(topic), data, count))
        self._schedule()
        if not self.gate.shut and self._queued > self._options.max_bytes // 2:
            self.gate.close()
            self._stall_timer = self._reactor.callLater(_STALLED, self._stall)
        return ""

    def want(self, topic: str) -> None:
        """See ``IBackplane``."""
        self._change(*self._coverage.add(subject_of(topic)))

    def unwant(self, topic: str) -> None:
        """See ``IBackplane``."""
        self._change(*self._coverage.discard(subject_of(topic)))

    def want_prefix(self, prefix: bytes) -> None:
        """See ``IBackplane``."""
        subject = subject_of_prefix(prefix)
        self._prefixes[subject] += 1
        self._change(*self._coverage.add(subject))

    def unwant_prefix(self, prefix: bytes) -> None:
        """See ``IBackplane``."""
        subject = subject_of_prefix(prefix)
        self._prefixes[subject] -= 1
        if self._prefixes[subject] <= 0:
            del self._prefixes[subject]
            self._change(*self._coverage.discard(subject))

    def figures(self) -> Mapping[str, float]:
        """See ``IBackplane``."""
        return {
            "subscriptions": len(self._coverage),
            "queued_bytes": self._queued,
            "reconnects": max(self._connections - 1, 0),
            "cut_off": self._cut_off_at is not None,
        }

    # Once a reactor tick

    def _change(self, beginning: list[str], ending: list[str]) -> None:
        if not beginning and not ending:
            return
        self._changes += [Change(subject, True) for subject in beginning]
        self._changes += [Change(subject, False, bool(beginning)) for subject in ending]
        self._schedule()

    def _schedule(self) -> None:
        if self._is_open and not self._scheduled:
            self._scheduled = True
            self._later(self._hand_over)

    def _hand_over(self) -> None:
        self._scheduled = False
        changes, self._changes = self._changes, []
        messages, self._messages = self._messages, []
        if changes or messages:
            self._connection.hand_over(changes, messages)

    def _take(self) -> None:
        self._taking = False
        self._receive(self._connection.take(_TAKEN))

    # A slow engine

    def _stall(self) -> None:
        self._stall_timer = None
        self._stalled = True
        log.warn(
            "backplane: the engine has been too slow for {seconds:g} s; publishers are no "
            "longer held, and messages for other brokers are dropped until it has caught up",
            seconds=_STALLED,
        )
        self.gate.open()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    # Watcher

    def connected(self, server: str, limit: int) -> None:
        """See ``Watcher``."""
        self._connections += 1
        self.trouble, self.complaint, self._server = None, "", server
        self._unusable.clear()
        self.limit = limit
        self.link = secrets.randbits(64)
        log.info("backplane: connected to {server}", server=server)
        self._report_missed()
        if limit < _NEEDED:
            self._warn_of_limit(limit)
        if self.history is not None and self.history.watcher is not None:
            self.history.watcher.joined()

    def _report_missed(self) -> None:
        """The engine keeps nothing for subscriptions that it does not have."""
        since, self._away_since = self._away_since, None
        if since is not None and len(self._coverage):
            log.warn(
                "backplane: subscribers here may have missed live messages of other brokers in the "
                "{seconds:.1f} s before, except those of a shared history",
                seconds=self._reactor.seconds() - since,
            )

    def _warn_of_limit(self, limit: int) -> None:
        self.complaint = f"max_payload of nats-server is {limit} bytes; set it to {_NEEDED} or more"
        if limit != self._small:
            self._small = limit
            log.warn(
                "backplane: max_payload of nats-server is {limit} bytes: identities of nsd that "
                "need more are refused further channels, and such sessions are not shared; set it "
                "to {needed} or more",
                limit=limit,
                needed=_NEEDED,
            )

    def away(self, reason: str, silence: float = 0.0) -> None:
        """See ``Watcher``."""
        now = self._reactor.seconds()
        if self.trouble in (None, _AT_START):
            log.warn(
                "backplane: the engine is away: {reason}; clients of this broker are served, "
                "messages for those of other brokers are dropped, or wait in a shared history",
                reason=reason,
            )
            self._logged, self._logged_at = reason, now
        elif reason != self._logged and now - self._logged_at >= _STILL_AWAY:
            # The first reason is often that the server stops; a later one is what to mend.
            log.warn("backplane: the engine is still away: {reason}", reason=reason)
            self._logged, self._logged_at = reason, now
        self._leave(reason, silence)

    def _leave(self, reason: str, silence: float = 0.0) -> None:
        self.trouble = reason
        if self._away_since is None:
            # An engine that is silent for longer than between two pings forwards nothing either,
            # and neither does a server that is cut off.
            since, self._cut_off_at = self._cut_off_at, None
            silent = self._reactor.seconds() - silence * (silence > PING)
            self._away_since = silent if since is None else min(since, silent)
        if self.history is not None and self.history.watcher is not None:
            self.history.watcher.left()

    def unusable(self, reason: str) -> None:
        """See ``Watcher``."""
        # One of several servers may be away and another one unusable, in turn.
        if reason not in self._unusable:
            self._unusable.add(reason)
            log.error("backplane: the engine cannot be used: {reason}", reason=reason)
        self._leave(reason)

    def complained(self, reason: str, lasting: bool = False) -> None:
        """See ``Watcher``."""
        if lasting:
            self.complaint = reason
        now = self._reactor.seconds()
        if now - self._complained >= _COMPLAINTS:
            self._complained = now
            log.warn("backplane: the engine reports: {reason}", reason=reason)

    def cut_off(self, is_cut_off: bool) -> None:
        """See ``Watcher``."""
        since, now = self._cut_off_at, self._reactor.seconds()
        if is_cut_off and since is None:
            self._cut_off_at = now
            log.warn(
                "backplane: most servers of the engine's cluster are away, or {server} is cut off "
                "from them: live messages reach only the brokers at this server",
                server=self._server,
            )
        elif not is_cut_off and since is not None:
            self._cut_off_at = None
            log.warn(
                "backplane: most servers of the engine's cluster are there again; subscribers here "
                "may have missed live messages of other brokers in the {seconds:.0f} s before, "
                "except those of a shared history",
                seconds=now - since,
            )

    def arrived(self) -> None:
        """See ``Watcher``."""
        if not self._taking:
            self._take()

    def more(self) -> None:
        """See ``Watcher``."""
        if not self._taking:
            self._taking = True
            # Others have their turn.
            self._reactor.callLater(0, self._take)

    def sent(self, nbytes: int) -> None:
        """See ``Watcher``."""
        self._queued -= nbytes
        if self._queued <= self._options.max_bytes // 4:
            self._stalled = False
            self._stop_stall_timer()
            if self.gate.shut:
                self.gate.open()

    def lost(self, counts: Counter[str]) -> None:
        """See ``Watcher``."""
        for topic, count in counts.items():
            self._drop("backplane", topic, "backplane-away", count)

    def overflowed(self, counts: Counter[str]) -> None:
        """See ``Watcher``."""
        for topic, count in counts.items():
            self._drop("backplane", topic, "backplane-overflow", count)
