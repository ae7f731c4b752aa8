"""nsd's client, sans-IO: responses in the order of the requests, and the connection that publishes.

Every request has one response. ``waiting`` has the requests without a response, the oldest first.
A message is published on the channel of an identity: that of each topic has the topic's name and is
opened before its first message.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import Any

from pubsub.kernel import Columns
from pubsub.protocols.nsd.codec import SUCCESS
from pubsub.wire.client_events import Alive, Opened, Rejected, WireEvent
from pubsub.wire.client_wire import Headers, Sender, UserLogin, WireConnection, WireError
from pubsub.wire.confirm_groups import NOT_KNOWN, ConfirmGroup, ConfirmGroups

_SUCCESS_LINE = SUCCESS + b"\n"
_SHOWN = 200
MOST_LINE = 64 * 1024 * 1024
"""Bytes of a line, or of a message in a list, at the most: more than that of the longest body, of
which each character is an escape."""
# The requests that wait for the first reply, with and without a password.
_LOGIN, _HELLO = object(), object()
# Refusals of a connection that may be admitted the next time.
_LATER = ("BROKER BUSY", "RATE LIMIT EXCEEDED", "TOO MANY CONNECTIONS")
# An identity that is not proved. If passwords are required, that is each of a client without one.
_WRONG_PASSWORD = "WRONG PASSWORD"
# No message has such a number.
_NO_MESSAGES = 10**17
MISSING = "NO SUCH CHANNEL"
"""The beginning of the refusal for a channel that does not exist (nsd §6.1)."""
PASSING = ("BROKER BUSY", "HISTORY UNAVAILABLE", "LIMIT REACHED", "RATE LIMIT EXCEEDED", MISSING)
"""The beginnings of refusals that may pass; a channel is missing if it could not be opened."""
# The error of a message that may be published nevertheless (nsd §6.1).
_UNCONFIRMED = "UNCONFIRMED"
# The identity of pings, which has no subscriptions.
_NOBODY = "pubsub-ping"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def line(**fields: object) -> bytes:
    """Return a request."""
    return _encode(fields).encode() + b"\n"


_PING = line(_class="GetRequest", identity=_NOBODY, after=0)


class NsdClientConnection(WireConnection):
    """The base of publishers' and subscribers' connections, which have ``Request`` objects."""

    def __init__(self, login: UserLogin | None = None) -> None:
        super().__init__()
        self.waiting: deque[Any] = deque()
        self._login = login

    def open(self, topic: str | None = None) -> list[WireEvent]:
        """See ``WireConnection``. nsd has no handshake, but perhaps a password (nsd §1.4).

        Any response shows that the other side speaks nsd. Without it, a client of another port
        would wait for messages forever.
        """
        login = self._login
        if login is None:
            self.waiting.append(_HELLO)
            self.send(_PING)
            return []
        self.waiting.append(_LOGIN)
        # A Get without messages.
        fields = {"identity": login.user, "after": _NO_MESSAGES, "password": login.password}
        self.send(line(_class="GetRequest", **fields))
        return []

    def opened(self) -> Opened:
        """Return the event for the time when requests can be sent."""
        return Opened()

    def ping(self) -> None:
        """See ``WireConnection``: a Get without messages."""
        self.waiting.append(None)
        self.send(_PING)

    def close(self) -> None:
        """See ``WireConnection``. nsd has no goodbye."""

    def consume(self, data: bytes, at: int, events: list[WireEvent]) -> tuple[int, int]:
        """See ``WireConnection``."""
        while (end := data.find(b"\n", at)) >= 0:
            fields = {} if data.startswith(_SUCCESS_LINE, at) else _parse(data[at:end])
            error = _error(fields)
            at = end + 1
            if not self.waiting:
                events.append(Rejected(error or "an unexpected response", permanent=False))
                return len(data), 1
            waiting = self.waiting.popleft()
            if waiting is None:
                events.append(Alive())
            elif waiting is _LOGIN or waiting is _HELLO:
                if error and (waiting is _LOGIN or error in _LATER or error == _WRONG_PASSWORD):
                    events.append(Rejected(error, permanent=error not in _LATER))
                    return len(data), 1
                events.append(self.opened())
            else:
                self.answered(waiting, fields, error, events)
        return self.unfinished(data, at)

    def unfinished(self, data: bytes, at: int) -> tuple[int, int]:
        """Return the result of ``consume`` for the beginning of a line, or of a message of a list.

        Raises WireError if it is longer than any of a broker: it would fill the memory.
        """
        left = len(data) - at
        if left > MOST_LINE:
            raise WireError(f"a line of nsd with more than {MOST_LINE} bytes")
        return at, left + 1

    def answered(
        self, waiting: Any, fields: dict[str, Any], error: str, events: list[WireEvent]
    ) -> None:
        """Handle the response to ``waiting``; ``error`` is empty unless it was refused."""
        raise NotImplementedError


def _parse(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("a line is not a response of nsd") from None
    if not isinstance(fields, dict) or "_class" not in fields:
        raise WireError("a line is not a response of nsd")
    return fields


def _error(fields: dict[str, Any]) -> str:
    if fields.get("_class") != "ErrorResponse":
        return ""
    error = fields.get("error")
    return error[:_SHOWN] if isinstance(error, str) and error else "refused"


@dataclass(slots=True)
class _Request:
    """A publish to ``topic``, its open, or the ping of a confirm, of a group."""

    group: ConfirmGroup
    publishes: bool
    topic: str = ""


class NsdPublisher(NsdClientConnection):
    """Publishes as ``name``, unless a message has a sender of its own."""

    def __init__(self, name: str, login: UserLogin | None = None) -> None:
        super().__init__(login)
        self._name = name
        self._opened: set[str] = set()
        self._groups = ConfirmGroups()

    def publish(
        self, topic: str, columns: Columns, sender: Sender = None, headers: Headers | None = None
    ) -> None:
        """See ``WireConnection``."""
        group = self._groups.current
        if topic not in self._opened:
            self._opened.add(topic)
            self.send(line(_class="OpenRequest", identity=topic))
            group.left += 1
            self.waiting.append(_Request(group, publishes=False, topic=topic))
        name = self._name if sender is None else sender.decode(errors="replace")
        before = (
            f'{{"_class":"PublishRequest","identity":{_encode(topic)},"message":'
            f'{{"_class":"Message","from":{_encode(name)},"when":0,"body":'
        ).encode()
        lines = [b"%b%b}}\n" % (before, json_text(one)) for one in columns.payloads()]
        self.send(b"".join(lines))
        group.published += len(lines)
        group.left += len(lines)
        request = _Request(group, publishes=True, topic=topic)
        self.waiting.extend([request] * len(lines))

    def confirm(self) -> None:
        """See ``WireConnection``. A confirm without messages is answered by a ping."""
        group = self._groups.confirm()
        if not group.left:
            group.left = 1
            self.waiting.append(_Request(group, publishes=False))
            self.send(_PING)

    def answered(
        self, waiting: Any, fields: dict[str, Any], error: str, events: list[WireEvent]
    ) -> None:
        """See ``NsdClientConnection``."""
        group: ConfirmGroup = waiting.group
        group.left -= 1
        self.replies += 1
        if error:
            # Without its channel, a message is refused for a reason that says less.
            is_unknown = error == _UNCONFIRMED
            group.reason = group.reason or _reason(error, waiting.topic)
            if is_unknown:
                group.unknown += waiting.publishes
            else:
                group.refused += waiting.publishes
            if not waiting.publishes or error.startswith(MISSING):
                # The next message opens the channel again: the cause may be gone.
                self._opened.discard(waiting.topic)
        self._groups.report(events)


def _reason(error: str, topic: str) -> str:
    if error == _UNCONFIRMED:
        return NOT_KNOWN
    if error == _WRONG_PASSWORD:
        # Whatever the client has proved: the identity of the topic's name is another user's.
        return f"{error}: {topic!r} is a user of the broker, which alone may publish there"
    return error


def json_text(payload: bytes) -> bytes:
    """Return a payload, which is UTF-8, as a JSON string."""
    return _encode(payload.decode()).encode()
