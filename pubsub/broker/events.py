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
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from pubsub.broker.limits import TokenBucket
from pubsub.broker.tokens import TOKEN_START

if TYPE_CHECKING:
    from pubsub.broker.listener import Listener

TOPIC = "$SYS/events"
PROTOCOL = "pubsub"
"""What the broker's own messages name as the protocol they came by."""
RATE = 1000.0
"""Events a second; as many may come at once."""
FRAME_BYTES = 1024
"""What is shown of a malformed frame, at the most."""

# Matches of patterns that begin before FRAME_BYTES are found if they end this soon after.
_LOOKAHEAD = 64

Fields = dict[str, str | int | None]


def redaction(patterns: Sequence[bytes]) -> re.Pattern[bytes]:
    """Return what matches the start of a token or of a secret that ``patterns`` describe."""
    return re.compile(b"|".join(b"(?:%s)" % each for each in (re.escape(TOKEN_START), *patterns)))


def shown(frame: bytes, secret: re.Pattern[bytes]) -> str | None:
    """Return the beginning of a malformed frame in base64, up to ``secret``; None if empty."""
    start = frame[:FRAME_BYTES]
    found = secret.search(frame, 0, FRAME_BYTES + _LOOKAHEAD)
    if found is not None:
        start = start[: found.start()]
    return b64encode(start).decode() if start else None


class ConnectionEvents:
    """One connection, from ``connect`` to ``disconnect``; ``session`` is its mark in events."""

    __slots__ = ("_events", "_listener", "session")

    def __init__(self, events: Events, listener: Listener, session: str, client: str) -> None:
        self._events = events
        self._listener = listener
        self.session = session
        events.tell("connect", listener, client, session=session)

    def end(self, client: str, reason: str, messages: int, nbytes: int) -> None:
        """The connection is gone; it has published ``messages`` messages of ``nbytes`` bytes."""
        self._events.tell(
            "disconnect",
            self._listener,
            client,
            session=self.session,
            reason=reason,
            messages=messages,
            bytes=nbytes,
        )


class Events:
    """Gathers and publishes. ``publish`` takes the messages of one batch; ``draw`` random bits.

    ``redacted`` has the patterns of all protocols (see ``IWireProtocol``).
    """

    def __init__(
        self,
        seconds: Callable[[], float],
        at_tick_end: Callable[[Callable[[], None]], object],
        publish: Callable[[list[bytes]], None],
        draw: Callable[[int], int],
        redacted: Sequence[bytes] = (),
    ) -> None:
        self._at_turn_end = at_tick_end
        self._publish = publish
        self._draw = draw
        self._secret = redaction(redacted)
        self._bucket = TokenBucket(RATE, seconds)
        self._gathered: list[Fields] = []
        self._alike: dict[Hashable, Fields] = {}
        self._scheduled = False
        self.suppressed = 0
        """Events that were not published and not told of yet."""

    # What happens

    def connected(self, listener: Listener, client: str) -> ConnectionEvents:
        """A connection has been accepted."""
        return ConnectionEvents(self, listener, f"{self._draw(64):016x}", client)

    def tell(
        self, event: str, listener: Listener | None, client: str, **fields: str | int | None
    ) -> None:
        """Something has happened that is told each time."""
        if self._admit():
            self._gathered.append(_event(event, listener, client, fields))

    def refused(
        self,
        listener: Listener,
        client: str,
        reason: str,
        count: int,
        topic: str | None,
        session: str | None,
    ) -> None:
        """``count`` requests of ``client`` were answered with an error."""
        key = ("refused", listener, client, reason, topic, session)
        self._count(key, count, listener, client, reason=reason, topic=topic, session=session)

    def malformed(
        self, listener: Listener, client: str, reason: str, frame: bytes, session: str | None
    ) -> None:
        """``client`` sent what is none of the protocol; ``frame`` begins with it."""
        if self._admit():
            fields: Fields = {
                "reason": reason,
                "session": session,
                "frame": shown(frame, self._secret),
            }
            self._gathered.append(_event("malformed", listener, client, fields))

    def dropped(self, client: str, topic: str, reason: str, count: int) -> None:
        """``count`` messages on ``topic`` did not reach ``client``."""
        # A reader of the events that is too slow must not cause ever more of them.
        if topic != TOPIC:
            key = ("dropped", client, reason, topic)
            self._count(key, count, None, client, reason=reason, topic=topic)

    def audited(self, event: str, fields: dict[str, object]) -> None:
        """Something was written to the audit log (see ``AuditLog.watcher``)."""
        if event == "rotate":
            self.tell(
                "rotated",
                None,
                str(fields["client"]),
                topic=str(fields["topic"]),
                reason=f"{fields['kept']} subscriptions stay, {fields['removed']} end",
            )

    # Publishing

    def flush(self) -> None:
        """Publish what was gathered, and how much was not if there is room for it again."""
        self._scheduled = False
        if self.suppressed and self._bucket.available() >= 1:
            self._bucket.take(1)
            self._tell_suppressed()
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._alike.clear()
            self._publish([json.dumps(e, separators=(",", ":")).encode() for e in gathered])

    def close(self) -> None:
        """Publish all that is left."""
        if self.suppressed:
            self._tell_suppressed()
        self.flush()

    def _tell_suppressed(self) -> None:
        self._gathered.append({"event": "suppressed", "messages": self.suppressed})
        self.suppressed = 0

    def _count(
        self,
        key: tuple[str, *tuple[object, ...]],
        count: int,
        listener: Listener | None,
        client: str,
        **fields: str | int | None,
    ) -> None:
        known = self._alike.get(key)
        if known is not None:
            known["messages"] = int(known["messages"] or 0) + count
        elif self._admit():
            fields["messages"] = count
            self._alike[key] = event = _event(key[0], listener, client, fields)
            self._gathered.append(event)

    def _admit(self) -> bool:
        """May there be another event now? Else it is counted."""
        if self._bucket.available() < 1:
            self.suppressed += 1
            return False
        self._bucket.take(1)
        if not self._scheduled:
            self._scheduled = True
            self._at_turn_end(self.flush)
        return True


def _event(event: str, listener: Listener | None, client: str, fields: Fields) -> Fields:
    """The event without what is not known."""
    made: Fields = {"event": event}
    if listener is not None:
        made |= {"protocol": listener.called, "listener": listener.endpoint}
    made["client"] = client
    return made | {name: value for name, value in fields.items() if value is not None}
