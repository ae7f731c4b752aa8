"""Events: messages on ``$SYS/events`` about connections, topics and frames.

The events of a reactor tick are published as one batch at its end. Equal refusals and equal drops
within a tick are one event with the number of messages. At most ``RATE`` events a second are
published; the others are counted, and their number is published as an event.

No token, key, secret or session id is ever in an event (see ``redacted_frame``).
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from pubsub.broker.clients.connection_marks import mark_text
from pubsub.broker.credentials.tokens import TOKEN_START
from pubsub.broker.publishing.rate_limits import TokenBucket

TOPIC = "$SYS/events"
PROTOCOL = "pubsub"
"""The protocol of the broker's own messages."""
RATE = 1000.0
"""Events a second; the burst is as large."""
FRAME_BYTES = 1024
"""Bytes of a malformed frame that an event contains, at most."""

# Matches of patterns that begin before FRAME_BYTES are found if they end this soon after.
_LOOKAHEAD = 64
# A token is JSON in base64, and nsd sends whole requests so. Both may begin with white space.
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{8,}")
_OBJECT = re.compile(rb"\{\s*\"[\w\\]")
# The fields of a request of HTTP that are credentials; any wire may get one by mistake.
_HTTP = rb"(?i:authorization|cookie) *:"
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")

Fields = dict[str, str | int | None]


def secret_pattern(patterns: Sequence[bytes]) -> re.Pattern[bytes]:
    """Return a pattern for the start of a token, or of a secret that ``patterns`` describe."""
    every = (re.escape(TOKEN_START), _HTTP, *patterns)
    return re.compile(b"|".join(b"(?:%s)" % each for each in every))


def redacted_frame(frame: bytes, secret: re.Pattern[bytes]) -> str | None:
    """Return the beginning of a malformed frame in base64, up to ``secret``; None if empty."""
    start = frame[: _start_of_secret(frame[: FRAME_BYTES + _LOOKAHEAD], secret)]
    return b64encode(start).decode() if start else None


def _start_of_secret(frame: bytes, secret: re.Pattern[bytes]) -> int:
    """Return where a secret begins, perhaps in base64; at most FRAME_BYTES."""
    found = secret.search(frame)
    end = FRAME_BYTES if found is None else min(found.start(), FRAME_BYTES)
    for text in _BASE64.finditer(frame):
        if text.start() >= end:
            break
        if _hides(text[0], secret):
            return text.start()
    return end


def _hides(text: bytes, secret: re.Pattern[bytes], levels: int = 2) -> bool:
    """Return whether a secret, or an object in JSON, is in ``text`` in base64, perhaps twice."""
    standard = text.translate(_TO_STANDARD)
    for start in range(4):
        data = b64decode(standard[start : len(text) - (len(text) - start) % 4])
        if secret.search(data) is not None or _OBJECT.search(data) is not None:
            return True
        if levels > 1 and any(_hides(t, secret, levels - 1) for t in _BASE64.findall(data)):
            return True
    return False


class EventSource(Protocol):
    """The listener that an event is about. ``event_protocol`` is its protocol's name in events."""

    endpoint: str
    event_protocol: str


class ConnectionEvents:
    """The events of one connection; all have its mark as their ``session``."""

    __slots__ = ("_events", "_listener", "session")

    def __init__(self, events: Events, listener: EventSource, session: str, client: str) -> None:
        self._events = events
        self._listener = listener
        self.session = session
        events.add("connect", listener, client, session=session)

    def end(
        self, client: str, reason: str, messages: int, nbytes: int, identity: str | None = None
    ) -> None:
        """Report the disconnect of a client that published ``messages`` of ``nbytes`` in total.

        ``identity`` is the name that it has proved, if any.
        """
        self._events.add(
            "disconnect",
            self._listener,
            client,
            identity=identity,
            session=self.session,
            reason=reason,
            messages=messages,
            bytes=nbytes,
        )


class Events:
    """Collects events and publishes them once a tick.

    ``publish`` takes the payloads of one batch. ``suppressed`` counts the events that were not
    published and not reported yet. ``redacted`` has the patterns of all
    protocols (see ``IWireProtocol``).
    """

    def __init__(
        self,
        seconds: Callable[[], float],
        at_tick_end: Callable[[Callable[[], None]], object],
        publish: Callable[[list[bytes]], None],
        redacted: Sequence[bytes] = (),
    ) -> None:
        self._at_tick_end = at_tick_end
        self._publish = publish
        self._secret = secret_pattern(redacted)
        self._bucket = TokenBucket(RATE, seconds)
        self._pending: list[Fields] = []
        self._countable: dict[Hashable, Fields] = {}
        self._scheduled = False
        self.suppressed = 0
        self.enabled = True
        """False once events were turned off: connections that began before report no end."""

    # Events

    def connected(self, listener: EventSource, client: str, mark: int) -> ConnectionEvents:
        """Report that a connection was accepted; the result reports its end."""
        return ConnectionEvents(self, listener, mark_text(mark), client)

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
            fields: Fields = {
                "reason": reason,
                "session": session,
                "frame": redacted_frame(frame, self._secret),
            }
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
                reason=f"subscriptions kept: {fields['kept']}, ended: {fields['removed']}",
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
        if not self.enabled:
            return False
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
