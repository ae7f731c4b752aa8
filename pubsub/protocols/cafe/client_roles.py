"""cafe's connections that publish and that subscribe, sans-IO (see ``client_connection.py``)."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from pubsub.kernel import Columns, FrameEncoder, Head, HeadTable, LengthField
from pubsub.protocols.cafe.client_connection import (
    CafeClientConnection,
    CafeSession,
    Naming,
    Waiting,
)
from pubsub.protocols.cafe.codec import (
    HEADER,
    MAGIC,
    MAX_MESSAGE,
    MESSAGE_OVERHEAD,
    OPCODES,
    ErrorCode,
    HandshakePub,
    HandshakeSub,
    Message,
    Subscribe,
    Unsubscribe,
    encode,
)
from pubsub.protocols.cafe.message_heads import publish_head
from pubsub.wire.client_columns import messages_of
from pubsub.wire.client_events import (
    Confirmed,
    Interest,
    Level,
    Messages,
    NotSubscribed,
    Subscribed,
    SubscriptionEnded,
    Unsubscribed,
    WireEvent,
)
from pubsub.wire.client_wire import Headers, Sender, WireError
from pubsub.wire.error_names import error_name

_MESSAGE = Struct("<HBIBQ")
_MESSAGE_OPCODE = OPCODES[Message]
# Each batch of the broker has a timestamp, which is part of the head of its messages.
_MAX_HEADS = 64


class CafePublisher(CafeClientConnection):
    """Publishes on the channels of the wire."""

    def __init__(self, naming: Naming, resume: CafeSession | None) -> None:
        super().__init__(naming, resume)
        self._published = 0

    def open(self, topic: str | None = None) -> list[WireEvent]:
        """See ``WireConnection``. The handshake announces the channel of ``topic``."""
        channels = self.naming.channels
        channel = min(channels.values(), default=0) if topic is None else channels[topic]
        self.send(encode(HandshakePub(channel, self.client_id())))
        return []

    def publish(
        self, topic: str, columns: Columns, sender: Sender = None, headers: Headers | None = None
    ) -> None:
        """See ``WireConnection``."""
        frames, count = _encoder(self.naming.channels[topic]).encode(columns)
        assert count == columns.count
        self.send(frames)
        self._published += count

    def publish_alike(self, topic: str, payloads: list[bytes]) -> bool:
        """See ``WireConnection``."""
        frames = _encoder(self.naming.channels[topic]).encode_alike(payloads)
        if not frames:
            return False
        self.send(frames)
        self._published += len(payloads)
        return True

    def confirm(self) -> None:
        """See ``WireConnection``."""
        published, self._published = self._published, 0
        self.await_pong(Waiting(published))

    def answered(self, waiting: Waiting, events: list[WireEvent]) -> None:
        """See ``CafeClientConnection``."""
        if waiting.published is None:
            super().answered(waiting, events)
            return
        errors, self.errors = self.errors, []
        reason = error_name(ErrorCode, errors[0]) if errors else ""
        events.append(Confirmed(waiting.published, Level.HANDLED, len(errors), reason))


class CafeSubscriber(CafeClientConnection):
    """Subscribes to the channels of the wire."""

    def __init__(self, naming: Naming, resume: CafeSession | None) -> None:
        super().__init__(naming, resume)
        self._heads = HeadTable(_learn)

    def open(self, topic: str | None = None) -> list[WireEvent]:
        """See ``WireConnection``. The channels are named later, so that each has its own reply."""
        self.send(encode(HandshakeSub(b"", self.client_id())))
        return []

    def subscribe(self, interest: Interest) -> None:
        """See ``WireConnection``."""
        channel = self.naming.channels[interest.name]
        self.await_pong(Waiting(interest=interest), encode(Subscribe(channel)))

    def unsubscribe(self, interest: Interest) -> bool:
        """See ``WireConnection``."""
        channel = self.naming.channels[interest.name]
        self.await_pong(Waiting(interest=interest, wanted=False), encode(Unsubscribe(channel)))
        return True

    def answered(self, waiting: Waiting, events: list[WireEvent]) -> None:
        """See ``CafeClientConnection``."""
        interest, errors = waiting.interest, self.errors
        if interest is None:
            super().answered(waiting, events)
            return
        self.errors = []
        if not waiting.wanted:
            events.append(Unsubscribed(interest))
        elif errors:
            passing = errors[0] == ErrorCode.RATE_LIMIT_EXCEEDED
            events.append(NotSubscribed(interest, error_name(ErrorCode, errors[0]), passing))
        else:
            events.append(Subscribed(interest))

    def error(self, code: int, events: list[WireEvent]) -> None:
        """See ``CafeClientConnection``. Without a request it ends a subscription (cafe §5.4)."""
        if any(waiting.interest is not None for waiting in self.waiting):
            super().error(code, events)
        else:
            events.append(SubscriptionEnded(None, error_name(ErrorCode, code)))

    def scan(self, data: bytes, at: int, events: list[WireEvent]) -> int:
        """See ``CafeClientConnection``."""
        size = len(data) - at - MESSAGE_OVERHEAD
        if size < 0 or data[at + 2] != _MESSAGE_OPCODE:
            return at
        magic, _opcode, length, channel, milliseconds = _MESSAGE.unpack_from(data, at)
        if magic != MAGIC:
            return at
        if length == size + 9:
            # One message in a read, as most that come slowly are.
            columns = Columns.one(data[at + MESSAGE_OVERHEAD :])
            events.append(self._messages((channel, milliseconds), columns))
            return len(data)
        if len(self._heads) > _MAX_HEADS:
            self._heads = HeadTable(_learn)
        columns = self._heads.scan(data, at)
        if len(columns.addresses) == 1:
            events.append(self._messages(columns.addresses[0], columns))
        elif columns.count:
            addresses = columns.addresses
            topics = [self._topic(channel) for channel, _milliseconds in addresses]
            for event in messages_of(columns, topics):
                times = [milliseconds * 1000 for _channel, milliseconds in addresses]
                event.timestamps = list(map(times.__getitem__, columns.indexes()))
                events.append(event)
        return columns.end

    def _topic(self, channel: int) -> str:
        topic = self.naming.topics.get(channel)
        if topic is None:
            raise WireError(f"a message of channel {channel}, which has no topic")
        return topic

    def _messages(self, address: tuple[int, int], columns: Columns) -> Messages:
        channel, milliseconds = address
        return Messages(self._topic(channel), columns, timestamp=milliseconds * 1000)


def _learn(data: bytes, at: int) -> tuple[Head, tuple[int, int]] | None:
    """Return the head of the MESSAGE at ``at``, with its channel and timestamp."""
    if len(data) - at < MESSAGE_OVERHEAD:
        return None
    magic, opcode, _length, channel, milliseconds = _MESSAGE.unpack_from(data, at)
    if magic != MAGIC or opcode != _MESSAGE_OPCODE:
        return None
    head = HEADER.pack(MAGIC, opcode, 0) + data[at + HEADER.size : at + MESSAGE_OVERHEAD]
    return Head(head, (LengthField(3, 4, add=9),), MAX_MESSAGE), (channel, milliseconds)


@lru_cache(maxsize=256)
def _encoder(channel: int) -> FrameEncoder:
    return FrameEncoder([(publish_head(channel),)])
