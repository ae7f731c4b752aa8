"""nsd's client, sans-IO: the connection that polls.

A message of nsd does not name its channel. So each topic has an identity of its own, which is
subscribed to nothing else, and is polled with Get. The list in a response may be longer than
memory: its messages are decoded as they arrive.

The client keeps the number of the last message that it has, for each topic, and continues there on
the next connection. ``position`` in a Subscribe asks for the number of the broker's last message
(nsd §3.3), with which a subscription without a start begins.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pubsub.kernel import Columns
from pubsub.protocols.nsd.client_connection import MISSING, PASSING, NsdClientConnection, line
from pubsub.protocols.nsd.codec import LIST_END, LIST_START
from pubsub.protocols.nsd.reading_session import NsdAddress, NsdSession, ReadPosition
from pubsub.wire.client_events import (
    Interest,
    Messages,
    Missed,
    NotSubscribed,
    Opened,
    Rejected,
    Subscribed,
    SubscriptionEnded,
    WireEvent,
)
from pubsub.wire.client_wire import UserLogin, WireError

_BETWEEN = b'},{"_class":"Message","from":'
_OWN = frozenset({"_class", "from", "when", "body"})
# The errors of a list that is not JSON, or has other values than those of messages.
_NO_MESSAGES = (
    ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
_SHORTEST_POLL, _LONGEST_POLL = 0.01, 0.25
_DECODER = json.JSONDecoder()


@dataclass(slots=True)
class _PolledTopic:
    """A topic that is polled, under its identity."""

    interest: Interest
    identity: str
    polling: bool = False


@dataclass(slots=True)
class _GetRequest:
    topic: _PolledTopic


@dataclass(slots=True)
class _SubscribeRequest:
    interest: Interest
    created: bool = False
    wanted: bool = True


@dataclass(slots=True)
class _Other:
    """A request whose response does not matter."""


class NsdSubscriber(NsdClientConnection):
    """Polls the topics of the broker at ``address``.

    ``identity`` returns the identity for a topic and the mark of a session, if any.
    """

    session: NsdSession

    def __init__(
        self,
        identity: Callable[[str, str], str],
        session: NsdSession | None,
        keep: bool,
        address: NsdAddress,
        login: UserLogin | None = None,
    ) -> None:
        super().__init__(login)
        self._identity = identity
        self._keep = keep
        self._address = address
        self._resumed = session is not None
        self.session = session or NsdSession()
        self._topics: dict[Interest, _PolledTopic] = {}
        # The wanted requests without a response.
        self._requested: dict[Interest, _SubscribeRequest] = {}
        # The topic whose list is arriving.
        self._list: _PolledTopic | None = None
        self._pause = _SHORTEST_POLL

    def _is_kept(self, interest: Interest) -> bool:
        return self._keep and interest.start is None

    def _reader(self, interest: Interest) -> str:
        """Return the identity for ``interest``.

        A client has a connection for each subscription with a start: none ends that of another.
        """
        return self._identity(interest.name, "" if self._is_kept(interest) else self.session.own)

    # Requests

    def opened(self) -> Opened:
        """See ``NsdClientConnection``."""
        return Opened(self._resumed)

    def subscribe(self, interest: Interest) -> None:
        """See ``WireConnection``."""
        if interest in self._topics:
            # Another request would begin at a position before messages that are on their way.
            self.report(Subscribed(interest))
        elif interest not in self._requested:
            self._subscribe(_SubscribeRequest(interest))

    def _subscribe(self, request: _SubscribeRequest) -> None:
        name = request.interest.name
        fields = {"identity": self._reader(request.interest), "channel": name, "position": True}
        known = self.session.positions.get(request.interest)
        if known is not None:
            fields |= {"epoch": known.epoch, "after": known.after}
        self._requested[request.interest] = request
        self.waiting.append(request)
        self.send(line(_class="SubscribeRequest", **fields))

    def unsubscribe(self, interest: Interest) -> bool:
        """See ``WireConnection``."""
        self._topics.pop(interest, None)
        self.session.positions.pop(interest, None)
        if (request := self._requested.pop(interest, None)) is not None:
            request.wanted = False
        shared = interest.name, self._is_kept(interest)
        # Subscriptions to one topic with different starts may share an identity.
        others = (*self._topics, *self._requested)
        if all((other.name, self._is_kept(other)) != shared for other in others):
            self._forget(interest)
        return False

    def _forget(self, interest: Interest) -> None:
        self.waiting.append(_Other())
        identity, name = self._reader(interest), interest.name
        self.send(line(_class="UnsubscribeRequest", identity=identity, channel=name))

    def close(self) -> None:
        """See ``WireConnection``. Identities that are made up are not left behind."""
        for interest in self._topics:
            if not self._is_kept(interest):
                self._forget(interest)

    def wake(self) -> list[WireEvent]:
        """See ``WireConnection``: poll again."""
        events = super().wake()
        for topic in self._topics.values():
            if not topic.polling:
                self._poll(topic)
        return events

    def _poll(self, topic: _PolledTopic) -> None:
        topic.polling = True
        self.waiting.append(_GetRequest(topic))
        after = self.session.positions[topic.interest].after
        self.send(line(_class="GetRequest", identity=topic.identity, after=after))

    # Input

    def consume(self, data: bytes, at: int, events: list[WireEvent]) -> tuple[int, int]:
        """See ``WireConnection``."""
        while True:
            if self._list is None and self._begins_list(data, at):
                self._list = self.waiting.popleft().topic
                at += len(LIST_START)
            if self._list is not None:
                at, done = self._take(self._list, data, at, events)
                if not done:
                    return self.unfinished(data, at)
                continue
            end = data.find(b"\n", at)
            if end < 0:
                return self.unfinished(data, at)
            super().consume(data[at : end + 1], 0, events)
            if events and isinstance(events[-1], Rejected):
                return len(data), 1
            at = end + 1

    def _expects_list(self) -> bool:
        return bool(self.waiting) and isinstance(self.waiting[0], _GetRequest)

    def _begins_list(self, data: bytes, at: int) -> bool:
        return self._expects_list() and data.startswith(LIST_START, at)

    def _take(
        self, topic: _PolledTopic, data: bytes, at: int, events: list[WireEvent]
    ) -> tuple[int, bool]:
        """Handle the messages that are complete; return where they end, and if the list does."""
        # There is no line feed within JSON that is written on one line.
        end = data.find(b"\n", at)
        if end >= 0:
            if data[max(at, end - len(LIST_END)) : end] != LIST_END:
                raise WireError("a list of nsd ends without its brackets")
            self._deliver(topic, data[at : end - len(LIST_END)], events)
            self._end_list(topic)
            return end + 1, True
        # The end of a message, and the comma behind it.
        comma = data.rfind(_BETWEEN, at) + 1
        if not comma:
            return at, False
        if not self._deliver(topic, data[at:comma], events, partial=True):
            # The text is also within a further field of a message, and there perhaps often.
            comma = _last_comma(data, at, comma)
            if comma < at or not self._deliver(topic, data[at:comma], events, partial=True):
                return at, False
        return comma + 1, False

    def _deliver(
        self, topic: _PolledTopic, text: bytes, events: list[WireEvent], partial: bool = False
    ) -> bool:
        try:
            messages = json.loads(b"[%b]" % text)
            whens = [int(one["when"]) for one in messages]
            payloads = [_payload(one) for one in messages]
            senders = [str(one["from"]).encode() for one in messages]
            headers = _headers(messages)
        except _NO_MESSAGES:
            if partial:
                return False
            raise WireError("a list has an item that is not a message of nsd") from None
        if messages and topic.interest in self.session.positions:
            self.session.positions[topic.interest].after = whens[-1]
            self._pause = _SHORTEST_POLL
            events.append(
                Messages(
                    topic.interest.name,
                    Columns.of(payloads),
                    offsets=[when - 1 for when in whens],
                    senders=senders,
                    headers=headers,
                )
            )
        return True

    def _end_list(self, topic: _PolledTopic) -> None:
        self._list = None
        topic.polling = False
        self._pause = min(2 * self._pause, _LONGEST_POLL)
        self.delay = self._pause

    def answered(
        self, waiting: Any, fields: dict[str, Any], error: str, events: list[WireEvent]
    ) -> None:
        """See ``NsdClientConnection``."""
        if isinstance(waiting, _GetRequest):
            waiting.topic.polling = False
            if self._topics.pop(waiting.topic.interest, None) is not None:
                why = error or "no list of messages"
                events.append(SubscriptionEnded(waiting.topic.interest, why))
        elif isinstance(waiting, _SubscribeRequest) and waiting.wanted:
            del self._requested[waiting.interest]
            if error.startswith(MISSING) and not waiting.created:
                # The channel of the identity with the topic's name is the topic.
                self.waiting.append(_Other())
                self.send(line(_class="OpenRequest", identity=waiting.interest.name))
                self._subscribe(_SubscribeRequest(waiting.interest, created=True))
            elif error:
                events.append(NotSubscribed(waiting.interest, error, error.startswith(PASSING)))
            else:
                self._begin(waiting.interest, fields, events)

    def _begin(self, interest: Interest, fields: dict[str, Any], events: list[WireEvent]) -> None:
        when, epoch = fields.get("when"), fields.get("epoch")
        # It is sent back: a lone surrogate cannot be.
        epoch = epoch.encode(errors="replace").decode() if isinstance(epoch, str) else ""
        known = self.session.positions.get(interest)
        if not isinstance(when, int) and (known is not None or interest.start is None):
            events.append(NotSubscribed(interest, "the broker does not tell its position"))
            return
        after = when if isinstance(when, int) else 0
        if isinstance(when, int) and known is None and (interest.start or 0) > when:
            # Nothing would come until the history, perhaps a new one, has grown so far.
            self.unsubscribe(interest)
            events.append(NotSubscribed(interest, f"the history ends at offset {when}"))
            return
        if known is None and interest.start is not None:
            after = interest.start
        elif known is not None and fields.get("continues") is not True:
            why = "the broker has another history now"
            moved = known.home != self._address
            if moved:
                # Its messages are others, except for a client that waits for the first one.
                why = "this broker has another history than the one before"
            if not moved or (interest.start == 0 and known.after == 0):
                after = 0
            events.append(Missed(interest.name, why))
        elif known is not None and after < known.after:
            events.append(Missed(interest.name, "a crash of the broker has lost messages"))
        self.session.positions[interest] = ReadPosition(after, epoch, self._address)
        topic = self._topics[interest] = _PolledTopic(interest, self._reader(interest))
        events.append(Subscribed(interest))
        self._poll(topic)


def _last_comma(data: bytes, at: int, end: int) -> int:
    """Return where the comma behind the last whole message before ``end`` is; -1 without one."""
    comma = -1
    try:
        text = data[at:end].decode()
        while text.startswith(",", stop := _DECODER.raw_decode(text, comma + 1)[1]):
            comma = stop
    except (ValueError, RecursionError):
        pass
    return at + len(text[:comma].encode()) if comma > 0 else -1


def _payload(message: Mapping[str, Any]) -> bytes:
    body = message["body"].encode()
    if not body and isinstance(message.get("data"), str):
        # Text would be in the body: a field of this name that holds text is the publisher's own.
        try:
            payload = base64.b64decode(message["data"], validate=True)
            payload.decode()
        except UnicodeDecodeError:
            return payload
        except binascii.Error:
            pass
    result: bytes = body
    return result


def _headers(messages: list[dict[str, Any]]) -> list[Mapping[str, bytes]] | None:
    """Return the further fields of each message, as JSON; None if there are none."""
    found: list[Mapping[str, bytes]] = [
        {name: json.dumps(one[name]).encode() for name in one.keys() - _OWN} for one in messages
    ]
    return found if any(found) else None
