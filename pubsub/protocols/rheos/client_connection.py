"""rheos's client, sans-IO: see ``ClientWire`` and ``WireConnection``.

Each request has one acknowledgment, in order, so those without one are in a queue. FAILED has no
reason. A topic is created before its first use on a connection; FAILED then most often means that
it exists, so it counts for nothing. Publishers and subscribers have different client ids: an id
does not receive its own messages (rheos §5.3).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pubsub.kernel import Columns, Head
from pubsub.protocols.rheos.client_answers import (
    UNCONFIRMED,
    ResponseFields,
    learn_response,
    response_table,
    scan_acks,
)
from pubsub.protocols.rheos.codec import (
    ACK_MAGIC,
    ACK_SIZE,
    CHECKSUM_SIZE,
    FAILED,
    PROBE,
    RESPONSE_SIZE,
    Codec,
    Opcode,
    Request,
    RheosError,
)
from pubsub.protocols.rheos.message_heads import learn_publish
from pubsub.protocols.rheos.response_encoding import client_name
from pubsub.wire.client_columns import FrameWriter, messages_of
from pubsub.wire.client_events import (
    Alive,
    Confirmed,
    Interest,
    Level,
    NotSubscribed,
    Opened,
    Rejected,
    Subscribed,
    WireEvent,
)
from pubsub.wire.client_wire import Headers, Sender, WireConnection, WireError
from pubsub.wire.confirm_groups import NOT_KNOWN

REFUSED = "FAILED; pubsub status has the newest refusals and their reasons"
# Topics that were created on a connection; creating one again does no harm.
_MAX_CREATED = 65_536
# Senders and topics whose responses are recognized at once; then the table begins again.
_MAX_HEADS = 4096


@dataclass(frozen=True, slots=True)
class ListenerLayout:
    """The configuration of the listener, which decides the layout of frames (rheos §7)."""

    codec: Codec
    envelope: bool


@dataclass(slots=True)
class Awaited:
    """Requests that wait for ``left`` acknowledgments: those of CREATE, unless a field is set.

    With ``confirmed`` no acknowledgment is awaited, but those before it are.
    """

    left: int = 1
    publishes: bool = False
    confirmed: int | None = None
    interest: Interest | None = None
    event: Opened | Alive | None = None


class RheosClientConnection(WireConnection):
    """The base of the connections of publishers and subscribers."""

    def __init__(self, layout: ListenerLayout, client_id: bytes) -> None:
        super().__init__()
        self.layout = layout
        self.client_id = client_id
        self.awaited: deque[Awaited] = deque()
        self._created: set[str] = set()
        self._table = response_table(layout.codec, layout.envelope)

    # Requests

    def open(self, topic: str | None = None) -> list[WireEvent]:
        """See ``WireConnection``: there is no handshake, but the first CREATE has a reply."""
        if topic is None:
            return [Opened()]
        self._created.add(topic)
        self.request(Awaited(event=Opened()), Opcode.CREATE, topic.encode())
        return []

    def request(self, awaited: Awaited, opcode: int, topic: bytes) -> None:
        """Send a request that does not publish."""
        self.awaited.append(awaited)
        self.send(self.layout.codec.encode(Request(opcode, self.client_id, topic)))

    def create(self, topic: str) -> None:
        """Create ``topic``, unless this connection has done so."""
        if topic not in self._created:
            if len(self._created) >= _MAX_CREATED:
                self._created.clear()
            self._created.add(topic)
            self.request(Awaited(), Opcode.CREATE, topic.encode())

    def ping(self) -> None:
        """See ``WireConnection``."""
        self.request(Awaited(event=Alive()), PROBE, b"")

    def close(self) -> None:
        """See ``WireConnection``; the protocol has no goodbye."""

    # Input

    def consume(self, data: bytes, at: int, events: list[WireEvent]) -> tuple[int, int]:
        """See ``WireConnection``."""
        end = len(data)
        try:
            while at < end:
                start = at
                if data[at] == ACK_MAGIC:
                    codes, at = scan_acks(data, at, self.layout.codec.checksum)
                    if self._acknowledged(codes, events):
                        return end, 1
                elif data[at] == RESPONSE_SIZE:
                    at = self._scan(data, at, events)
                else:
                    raise WireError(f"a packet that begins with 0x{data[at]:02x}")
                if at == start:
                    return at, self._needed(data, at)
        except RheosError as error:
            raise WireError(f"not a packet of rheos ({error}); check the layout") from None
        return at, 1

    def _needed(self, data: bytes, at: int) -> int:
        """Return the length of the incomplete packet at ``at``, or a step towards it."""
        layout = self.layout
        if data[at] == ACK_MAGIC:
            return ACK_SIZE + CHECKSUM_SIZE * layout.codec.checksum
        try:
            head, _delivery = learn_response(data, at, layout.codec, layout.envelope)
        except LookupError:
            return len(data) - at + 1
        return head.frame_length(data, at)

    def _scan(self, data: bytes, at: int, events: list[WireEvent]) -> int:
        if len(self._table) > _MAX_HEADS:
            self._table = response_table(self.layout.codec, self.layout.envelope)
        columns = self._table.scan(data, at)
        if columns.count:
            self.delivered(columns, columns.addresses, events)
        return columns.end

    def delivered(
        self, columns: Columns, addresses: list[ResponseFields], events: list[WireEvent]
    ) -> None:
        """Handle responses."""
        raise WireError("a response, but there is no subscription")

    def _acknowledged(self, codes: bytes, events: list[WireEvent]) -> bool:
        """Handle acknowledgments; return whether the connection has ended."""
        at, awaited = 0, self.awaited
        while at < len(codes):
            if not awaited:
                if codes[at] != FAILED:
                    raise WireError("an acknowledgment without a request")
                events.append(Rejected("over a quota of connections", permanent=False))
                return True
            first = awaited[0]
            stop = min(at + first.left, len(codes))
            failed, unknown = codes.count(FAILED, at, stop), codes.count(UNCONFIRMED, at, stop)
            first.left -= stop - at
            at = stop
            self.acknowledged(first, failed, unknown, events)
            if not first.left:
                awaited.popleft()
            self.confirm_acknowledged(events)
        return False

    def acknowledged(
        self, awaited: Awaited, failed: int, unknown: int, events: list[WireEvent]
    ) -> None:
        """Handle acknowledgments of ``awaited``: as many were FAILED, and UNCONFIRMED."""
        if awaited.event is not None:
            events.append(awaited.event)

    def confirm_acknowledged(self, events: list[WireEvent]) -> None:
        """Confirm the requests that have been acknowledged."""


class PublisherConnection(RheosClientConnection):
    """Publishes."""

    def __init__(self, layout: ListenerLayout, client_id: bytes) -> None:
        super().__init__(layout, client_id)
        self._writer = FrameWriter(self._heads)
        self._published = self._refused = self._unknown = 0

    def _heads(self, topic: str) -> tuple[Head, ...]:
        codec = self.layout.codec
        sample = codec.encode(Request(Opcode.PUBLISH, self.client_id, topic.encode()))
        learnt = learn_publish(sample, 0, codec)
        assert learnt is not None
        return (learnt[0],)

    def publish(
        self, topic: str, columns: Columns, sender: Sender = None, headers: Headers | None = None
    ) -> None:
        """See ``WireConnection``."""
        self.create(topic)
        self._published += columns.count
        last = self.awaited[-1] if self.awaited else None
        if last is not None and last.publishes:
            last.left += columns.count
        else:
            self.awaited.append(Awaited(columns.count, publishes=True))
        self.send(self._encode(topic, columns))

    def _encode(self, topic: str, columns: Columns) -> bytes:
        codec = self.layout.codec
        if not codec.checksum:
            return self._writer.write(topic, columns)
        name = topic.encode()
        requests = [
            Request(Opcode.PUBLISH, self.client_id, name, payload) for payload in columns.payloads()
        ]
        return b"".join(map(codec.encode, requests))

    def confirm(self) -> None:
        """See ``WireConnection``."""
        published, self._published = self._published, 0
        self.awaited.append(Awaited(0, confirmed=published))
        if len(self.awaited) == 1:
            events: list[WireEvent] = []
            self.confirm_acknowledged(events)
            self.report(events[0])

    def acknowledged(
        self, awaited: Awaited, failed: int, unknown: int, events: list[WireEvent]
    ) -> None:
        """See ``RheosClientConnection``."""
        super().acknowledged(awaited, failed, unknown, events)
        if awaited.publishes:
            self.replies += 1
            self._refused += failed
            self._unknown += unknown

    def confirm_acknowledged(self, events: list[WireEvent]) -> None:
        """See ``RheosClientConnection``."""
        awaited = self.awaited
        while awaited and (published := awaited[0].confirmed) is not None:
            awaited.popleft()
            refused, unknown = self._refused, self._unknown
            self._refused = self._unknown = 0
            reason = REFUSED if refused else NOT_KNOWN if unknown else ""
            events.append(Confirmed(published, Level.STORED, refused, reason, unknown))


class SubscriberConnection(RheosClientConnection):
    """Subscribes. A response names its topic only in an envelope (rheos §7.3).

    Without envelopes a connection has one topic. As there is no request to unsubscribe, messages
    that are not wanted any more are ignored.
    """

    def __init__(self, layout: ListenerLayout, client_id: bytes) -> None:
        super().__init__(layout, client_id)
        self._wanted: set[bytes] = set()
        # The topic of all responses, without envelopes.
        self._only = b""

    def subscribe(self, interest: Interest) -> None:
        """See ``WireConnection``."""
        name = interest.name.encode()
        if interest.prefix:
            self.report(NotSubscribed(interest, "rheos has no subscriptions to prefixes"))
        elif not self.layout.envelope and self._only not in (b"", name):
            reason = "without envelope=topic a connection of rheos carries one topic"
            self.report(NotSubscribed(interest, reason))
        else:
            self._only = name
            self._wanted.add(name)
            self.create(interest.name)
            self.request(Awaited(interest=interest), Opcode.SUBSCRIBE, name)

    def unsubscribe(self, interest: Interest) -> bool:
        """See ``WireConnection``."""
        self._wanted.discard(interest.name.encode())
        return False

    def acknowledged(
        self, awaited: Awaited, failed: int, unknown: int, events: list[WireEvent]
    ) -> None:
        """See ``RheosClientConnection``."""
        super().acknowledged(awaited, failed, unknown, events)
        interest = awaited.interest
        if interest is not None and failed:
            self._wanted.discard(interest.name.encode())
            self._only = b""
            # Perhaps the topic does not exist, as its creation was refused too.
            self._created.discard(interest.name)
            events.append(NotSubscribed(interest, REFUSED, passing=True))
        elif interest is not None:
            events.append(Subscribed(interest))

    def delivered(
        self, columns: Columns, addresses: list[ResponseFields], events: list[WireEvent]
    ) -> None:
        """See ``RheosClientConnection``."""
        names = [one.topic or self._only for one in addresses]
        wanted = [name in self._wanted for name in names]
        if not all(wanted):
            columns = columns.remap([i if want else -1 for i, want in enumerate(wanted)])
        try:
            topics = [name.decode() for name in names]
        except UnicodeDecodeError:
            raise WireError("a topic name that is not UTF-8") from None
        senders = [client_name(one.sender_id).encode() for one in addresses]
        events.extend(messages_of(columns, topics, senders))
