"""The WebSocket connections that publish and that subscribe, sans-IO."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

from pubsub.client.http_batches import RowRun, messages_of_batch, value_of
from pubsub.client.http_connection import TEMPORARY, HttpConnection, encode
from pubsub.client.http_requests import (
    SIZE_BYTES,
    GatheredRequest,
    HeaderRows,
    bytes_of_rows,
    bytes_of_text,
    header_rows,
)
from pubsub.client.http_session import HttpSession
from pubsub.kernel import Columns
from pubsub.wire.client_events import (
    Interest,
    Level,
    Messages,
    Missed,
    NotSubscribed,
    Subscribed,
    SubscriptionEnded,
    WireEvent,
)
from pubsub.wire.client_wire import Headers, Sender, WireOptions
from pubsub.wire.confirm_groups import ConfirmGroup, ConfirmGroups

_LEVELS = {"stored": Level.STORED}
# Bytes of a request with several messages, at most, and of members that are not counted.
_REQUEST_BYTES, _AROUND = 64 * 1024, 128


class _HttpPing(NamedTuple):
    """The request whose reply ends a group that was answered before its confirm."""

    group: ConfirmGroup


class _HttpMessages(NamedTuple):
    """The request that publishes some messages of a group."""

    group: ConfirmGroup
    messages: int


class HttpPublisher(HttpConnection):
    """Publishes.

    Consecutive messages of one sender are sent in one request. They may have several topics, and
    headers of their own, unless the broker is of an earlier version.
    """

    def __init__(self, options: WireOptions) -> None:
        super().__init__(options)
        self._groups = ConfirmGroups()
        # The next request, and its bytes without messages.
        self._next = GatheredRequest({}, 0)
        self._around = 0
        self._max_bytes = 0
        # Of any request; 0 if the broker does not say.
        self._limit = 0

    def welcomed(self, ok: Any) -> None:
        """See ``HttpConnection``."""
        super().welcomed(ok)
        self._limit = int(ok.get("max_bytes", 0))
        self._max_bytes = min(self._limit, _REQUEST_BYTES)

    def publish(
        self, topic: str, columns: Columns, sender: Sender = None, headers: Headers | None = None
    ) -> None:
        """See ``WireConnection``."""
        members: dict[str, object] = {"op": "publish"}
        if sender is not None:
            members["sender"] = sender.decode(errors="replace")
        rows = header_rows(headers) if headers else []
        if rows and not self.mixes:
            # A broker of an earlier version takes those of all messages only.
            members["headers"], rows = rows, []
        self._add(members, topic, columns.payloads(), rows)

    def publish_alike(self, topic: str, payloads: list[bytes]) -> bool:
        """See ``WireConnection``."""
        size = len(payloads[0])
        # Two passes in C: a payload of another type would be found out when some are sent.
        if set(map(type, payloads)) != {bytes} or set(map(len, payloads)) != {size}:
            return False
        if size > self._max_bytes:
            return False
        self._add({"op": "publish"}, topic, payloads, [])
        return True

    def _add(
        self, members: dict[str, object], topic: str, payloads: list[bytes], rows: HeaderRows
    ) -> None:
        request = self._next
        if members != request.members or not (self.mixes or topic in request.topics):
            self._request_all()
            self._around = len(encode(members).encode()) + _AROUND
            request = self._next = GatheredRequest(members, self._around)
        own = SIZE_BYTES + (bytes_of_rows(rows) if rows else 0)
        name = 0 if topic in request.topics else bytes_of_text(topic)
        for payload in payloads:
            more = len(payload) + own
            full = request.nbytes + more + name > self._max_bytes
            if full or len(request.payloads) >= self.max_messages:
                self._request_all()
                request, name = self._next, bytes_of_text(topic)
            request.indexes.append(request.topics.setdefault(topic, len(request.topics)))
            request.headers.append(rows)
            request.payloads.append(payload)
            request.nbytes += more + name
            name = 0
        group = self._groups.current
        group.published += len(payloads)
        group.left += len(payloads)

    def _request_all(self) -> None:
        """Send the messages that wait for others."""
        request, payloads = self._next, self._next.payloads
        if not payloads:
            return
        self._next = GatheredRequest(request.members, self._around)
        waiting = _HttpMessages(self._groups.current, len(payloads))
        if len(payloads) == 1 and 0 < self._limit < request.nbytes - SIZE_BYTES:
            # The broker would end the connection, with all that is on its way.
            message = f"a message of {len(payloads[0])} bytes is more than the broker takes"
            _count(waiting, None, {"message": message})
            return
        self.request_binary(waiting, b"".join(payloads), request.all_members())

    def take_output(self) -> bytes:
        """See ``WireConnection``."""
        self._request_all()
        self.push()
        return super().take_output()

    def confirm(self) -> None:
        """See ``WireConnection``."""
        self._request_all()
        group = self._groups.confirm()
        if not group.left:
            group.left = 1
            self.request(_HttpPing(group), "ping")
        self.push()

    def answered(self, waiting: Any, ok: Any, error: Any, events: list[WireEvent]) -> None:
        """See ``HttpConnection``."""
        if isinstance(waiting, _HttpPing):
            waiting.group.left = 0
        else:
            self.replies += 1
            _count(waiting, ok, error)
        self._groups.report(events)


def _count(waiting: _HttpMessages, ok: Any, error: Any) -> None:
    """Count the reply to a request."""
    group, count = waiting
    group.left -= count
    if error is not None:
        if error.get("outcome") == "unknown" or error.get("code") == "internal":
            group.unknown += count
        else:
            group.refused += count
        group.reason = group.reason or str(error["message"])
        return
    group.level = min(group.level, _LEVELS.get(str(ok.get("level")), Level.HANDLED))
    refused = int(ok.get("refused", 0))
    if 0 < refused < count:
        group.refused += refused
        found = ok.get("error", {"message": "the rate limit is exceeded"})
        group.reason = group.reason or str(found["message"])


class _HttpSubscribe(NamedTuple):
    interest: Interest


class _HttpUnsubscribe(NamedTuple):
    interest: Interest


class HttpSubscriber(HttpConnection):
    """Subscribes, from the positions of ``session`` on."""

    session: HttpSession

    def __init__(self, options: WireOptions, session: HttpSession | None) -> None:
        super().__init__(options)
        self._address = options.host, options.port
        self.session = session or HttpSession()
        self.resumed = session is not None and session.belongs_to(self._address)
        self._interests: dict[str, Interest] = {}
        self._prefixes: dict[str, Interest] = {}
        self._run = RowRun()

    def welcomed(self, ok: Any) -> None:
        """See ``HttpConnection``."""
        super().welcomed(ok)
        self.session.move(self._address, str(ok.get("shared", "")))

    def subscribe(self, interest: Interest) -> None:
        """See ``WireConnection``."""
        if self._known(interest).get(interest.name) == interest:
            # The broker would count a refusal.
            self.report(Subscribed(interest))
            return
        members: dict[str, object] = {**_named(interest), "binary": True, "headers": True}
        if self.max_messages > 1:
            members["batches"] = True
        if self.mixes:
            members["mixed"] = True
        if not interest.prefix:
            members.update(self.session.members(interest))
        self.request(_HttpSubscribe(interest), "subscribe", **members)
        self.push()

    def unsubscribe(self, interest: Interest) -> bool:
        """See ``WireConnection``."""
        self.session.forget(interest)
        self._known(interest).pop(interest.name, None)
        self.request(_HttpUnsubscribe(interest), "unsubscribe", **_named(interest))
        self.push()
        return False

    def _known(self, interest: Interest) -> dict[str, Interest]:
        return self._prefixes if interest.prefix else self._interests

    def answered(self, waiting: Any, ok: Any, error: Any, events: list[WireEvent]) -> None:
        """See ``HttpConnection``."""
        if isinstance(waiting, _HttpUnsubscribe):
            return
        interest = waiting.interest
        if error is None:
            self._known(interest)[interest.name] = interest
            if "gap" in ok:
                events.append(Missed(interest.name, _gap(ok["gap"])))
            if interest.prefix and self.resumed and interest in self.session.positions:
                # It has begun anew, with new messages.
                events.append(Missed(interest.name, "the connection was interrupted"))
            self.session.positions[interest] = f"{ok['epoch']}:{ok['start']}"
        elif error["code"] != "already-subscribed":
            passing = error["code"] in TEMPORARY
            events.append(NotSubscribed(interest, str(error["message"]), passing))
            return
        events.append(Subscribed(interest))

    def pushed(self, found: Any, payload: bytes | None, events: list[WireEvent]) -> None:
        """See ``HttpConnection``."""
        if "message" in found:
            self._add(found["message"], payload, events)
        elif "batch" in found:
            self._take_batch(found["batch"], payload or b"", events)
        elif "gap" in found:
            self.flush(events)
            events.append(Missed(None, _gap(found["gap"])))
        elif "revoked" in found:
            self.flush(events)
            topic = found["revoked"]["topic"]
            interest, why = self._interests.pop(topic, None), "it may not be read any more"
            if interest is None and self._covers(topic):
                why = f"{topic!r} may not be read any more"
            events.append(SubscriptionEnded(interest, why))

    def _add(self, row: Any, payload: bytes | None, events: list[WireEvent]) -> None:
        # All members are read before the first is kept, so a malformed row does not change the run.
        topic, timestamp, offset = str(row["topic"]), int(row["timestamp"]), row["offset"]
        stored, offsets = offset is not None, [] if offset is None else [int(offset)]
        sender = base64.b64decode(row["key"])
        headers = {str(one["key"]): value_of(one) for one in row.get("headers", ())}
        value = value_of(row) if payload is None else payload
        run = self._run
        if run.topic != topic or run.stored != stored:
            self.flush(events)
            run = self._run = RowRun(topic, stored)
        run.payloads.append(value)
        run.timestamps.append(timestamp)
        run.offsets += offsets
        run.senders.append(sender)
        run.headers.append(headers)

    def _take_batch(self, batch: Any, payload: bytes, events: list[WireEvent]) -> None:
        found = messages_of_batch(batch, payload)
        self.flush(events)
        if isinstance(found, Messages):
            self._append(found, events)
            return
        indexes = found.columns.indexes()
        ends: dict[int, int | None] = dict.fromkeys(indexes)
        if found.offsets is not None:
            ends.update(zip(indexes, found.offsets, strict=True))
        names = [found.topics[index] for index in ends]
        if not all(name in self._interests or self._covers(name) for name in names):
            # Some may not be delivered any more.
            for run in found.runs():
                self._append(run, events)
            return
        for name, offset in zip(names, ends.values(), strict=True):
            self._passed(name, offset, found.timestamps)
        events.append(found)

    def _covers(self, name: str) -> bool:
        return any(map(name.startswith, self._prefixes))

    def _append(self, messages: Messages, events: list[WireEvent]) -> None:
        """Append messages of one topic, unless it is not subscribed to any more."""
        name = messages.topic
        if name in self._interests or self._covers(name):
            offset = None if messages.offsets is None else messages.offsets[-1]
            self._passed(name, offset, messages.timestamps)
            messages.epoch = self.epoch
            events.append(messages)

    def _passed(self, name: str, offset: int | None, timestamps: Sequence[int] | None) -> None:
        """Continue behind the message at ``offset``; None is one that is not stored."""
        interest = self._interests.get(name)
        if interest is not None and offset is not None:
            last = timestamps[-1] if timestamps else None
            self.session.passed(interest, f"{self.epoch}:{offset + 1}", last)

    def flush(self, events: list[WireEvent]) -> None:
        """See ``HttpConnection``."""
        run = self._run
        if not run.payloads:
            return
        self._run = RowRun()
        self._append(run.messages(), events)


def _named(interest: Interest) -> dict[str, object]:
    return {"prefix" if interest.prefix else "topic": interest.name}


def _gap(gap: Any) -> str:
    return f"offsets {gap['start']} to {gap['stop']}: {gap['reason']}"
