"""Events: what happens to connections, topics and frames, as messages on ``$SYS/events``.

Whoever counts or logs something tells it here too. What a reactor turn brings is gathered and
published as one batch when the turn ends; what is alike in it (the same refusal of one client, the
same drop) is one event with the number of messages. More than ``RATE`` a second are not published
but counted, and the count is an event in its own right.

No token, key, secret or session id is ever in one, see ``shown``.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Hashable
from typing import Protocol

from pubsub.broker.limits import TokenBucket

TOPIC = "$SYS/events"
PROTOCOL = "pubsub"
"""What the broker's own messages name as the protocol they came by."""
RATE = 1000.0
"""Events a second; as many may come at once."""
FRAME_BYTES = 1024
"""What is shown of a malformed frame, at the most."""

# How a JSON Web Token and a cafe session id begin: a client may send its frames to the wrong port.
_SECRET = re.compile(rb"eyJ|;resume=")

Fields = dict[str, str | int | None]


def shown(frame: bytes) -> str | None:
    """The beginning of a malformed frame in base64, up to what may be a secret; None if empty."""
    start = frame[:FRAME_BYTES]
    found = _SECRET.search(frame, 0, FRAME_BYTES + 8)
    if found is not None:
        start = start[: found.start()]
    return b64encode(start).decode() if start else None


class EventSource(Protocol):
    """The listener that an event is about. ``event_protocol`` is its protocol's name in events."""

    endpoint: str
    event_protocol: str


class ConnectionEvents:
    """The events of one connection; all have the same ``session``, which identifies it."""

    __slots__ = ("_events", "_listener", "session")

    def __init__(self, events: Events, listener: EventSource, session: str, client: str) -> None:
        self._events = events
        self._listener = listener
        self.session = session
        events.add("connect", listener, client, session=session)

    def end(self, client: str, reason: str, messages: int, nbytes: int) -> None:
        """Report the disconnect of a client that published ``messages`` of ``nbytes`` in total."""
        self._events.add(
            "disconnect",
            self._listener,
            client,
            session=self.session,
            reason=reason,
            messages=messages,
            bytes=nbytes,
        )


class Events:
    """Collects events and publishes them once a tick.

    ``publish`` takes the payloads of one batch; ``draw`` returns random bits. ``suppressed`` counts
    the events that were not published and not reported yet.
    """

    def __init__(
        self,
        seconds: Callable[[], float],
        at_tick_end: Callable[[Callable[[], None]], object],
        publish: Callable[[list[bytes]], None],
        draw: Callable[[int], int],
    ) -> None:
        self._at_tick_end = at_tick_end
        self._publish = publish
        self._draw = draw
        self._bucket = TokenBucket(RATE, seconds)
        self._pending: list[Fields] = []
        self._countable: dict[Hashable, Fields] = {}
        self._scheduled = False
        self.suppressed = 0

    # What happens

    def connected(self, listener: EventSource, client: str) -> ConnectionEvents:
        """Report that a connection was accepted; the result reports its further events."""
        return ConnectionEvents(self, listener, f"{self._draw(64):016x}", client)

    def add(
        self, event: str, listener: EventSource | None, client: str, **fields: str | int | None
    ) -> None:
        """Report an event that is not combined with equal ones."""
        if self._admit():
            self._pending.append(_event(event, listener, client, fields))

    def refused(
        self,
        listener: EventSource,
        client: str,
        reason: str,
        count: int,
        topic: str | None,
        session: str | None,
    ) -> None:
        """Report ``count`` requests of ``client`` that were answered with an error."""
        key = ("refused", listener, client, reason, topic, session)
        self._count(key, count, listener, client, reason=reason, topic=topic, session=session)

    def malformed(
        self, listener: EventSource, client: str, reason: str, frame: bytes, session: str | None
    ) -> None:
        """Report a malformed frame; ``frame`` begins with it."""
        if self._admit():
            fields: Fields = {"reason": reason, "session": session, "frame": shown(frame)}
            self._pending.append(_event("malformed", listener, client, fields))

    def dropped(self, client: str, topic: str, reason: str, count: int) -> None:
        """Report ``count`` messages on ``topic`` that were dropped for ``client``."""
        # Drops of events must not cause more events.
        if topic != TOPIC:
            key = ("dropped", client, reason, topic)
            self._count(key, count, None, client, reason=reason, topic=topic)

    def audited(self, event: str, fields: dict[str, object]) -> None:
        """Report a record of the audit log (see ``AuditLog.watcher``)."""
        if event == "rotate":
            self.add(
                "rotated",
                None,
                str(fields["client"]),
                topic=str(fields["topic"]),
                reason=f"{fields['kept']} subscriptions stay, {fields['removed']} end",
            )

    # Publishing

    def flush(self) -> None:
        """Publish the pending events, and the number of suppressed ones if the rate allows."""
        self._scheduled = False
        if self.suppressed and self._bucket.available() >= 1:
            self._bucket.take(1)
            self._add_suppressed()
        if self._pending:
            pending, self._pending = self._pending, []
            self._countable.clear()
            self._publish([json.dumps(e, separators=(",", ":")).encode() for e in pending])

    def close(self) -> None:
        """Publish everything that is pending."""
        if self.suppressed:
            self._add_suppressed()
        self.flush()

    def _add_suppressed(self) -> None:
        self._pending.append({"event": "suppressed", "messages": self.suppressed})
        self.suppressed = 0

    def _count(
        self,
        key: tuple[str, *tuple[object, ...]],
        count: int,
        listener: EventSource | None,
        client: str,
        **fields: str | int | None,
    ) -> None:
        known = self._countable.get(key)
        if known is not None:
            known["messages"] = int(known["messages"] or 0) + count
        elif self._admit():
            fields["messages"] = count
            self._countable[key] = event = _event(key[0], listener, client, fields)
            self._pending.append(event)

    def _admit(self) -> bool:
        """Return whether the rate allows another event; count it as suppressed if not."""
        if self._bucket.available() < 1:
            self.suppressed += 1
            return False
        self._bucket.take(1)
        if not self._scheduled:
            self._scheduled = True
            self._at_tick_end(self.flush)
        return True


def _event(event: str, listener: EventSource | None, client: str, fields: Fields) -> Fields:
    """Return the event without fields that are None."""
    made: Fields = {"event": event}
    if listener is not None:
        made |= {"protocol": listener.event_protocol, "listener": listener.endpoint}
    made["client"] = client
    return made | {name: value for name, value in fields.items() if value is not None}
