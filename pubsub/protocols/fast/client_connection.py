"""fast's client, sans-IO: see ``ClientWire`` and ``WireConnection``.

Requests that succeed have no reply, refusals are reported, and packets are handled in order. So a
barrier follows the packets that have to be confirmed: an UNSUBSCRIBE of no topic, which is refused
in any case. Its ERROR shows that everything before it was handled; the ERRORs come in the order of
the barriers:

    request              sent                                     event at the barrier
    open                                                          Opened; Rejected for a bad token
    confirm                                                       Confirmed
    subscribe            SUBSCRIBE; then CREATE, SUBSCRIBE        Subscribed, NotSubscribed
    unsubscribe          UNSUBSCRIBE                              Unsubscribed
    ping                                                          Alive
    first use of a topic UNSUBSCRIBE of the topic; then CREATE    none (``client_publisher.py``)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pubsub.broker.topic_space.topic_names import fnv1a32
from pubsub.kernel import Head, HeadTable, LengthField
from pubsub.protocols.fast.codec import (
    TYPES,
    Create,
    Error,
    ErrorCode,
    FastError,
    KeyUpdate,
    Message,
    Packet,
    Subscribe,
    Unsubscribe,
    decode,
    encode,
)
from pubsub.wire.client_columns import messages_of
from pubsub.wire.client_events import (
    Alive,
    Interest,
    NotSubscribed,
    Opened,
    Rejected,
    Subscribed,
    SubscriptionEnded,
    Unsubscribed,
    WireEvent,
)
from pubsub.wire.client_wire import WireConnection, WireError
from pubsub.wire.error_names import error_name

NO_TOPIC = 0
"""A topic id that no topic has."""
SUBSCRIBE, UNSUBSCRIBE, CREATE = TYPES[Subscribe], TYPES[Unsubscribe], TYPES[Create]
_MESSAGE = TYPES[Message]
# Seconds for the reply to the first barrier.
_OPEN_SECONDS = 10.0
# A message of another protocol may be longer than those that the listener accepts.
_MAX_MESSAGE = 64 * 1024 * 1024
_MESSAGE_HEAD, _ERROR_SIZE, _KEY_HEAD = 9, 7, 6
_SILENT = "no reply to the first request; the listener may have errors=off"

# The causes of an ERROR 9, which does not tell them apart.
_ENDED = (
    f"{ErrorCode.SUBSCRIPTION_ENDED.name}: the token has expired or is denied, the topic was "
    "deleted or has another queue key, or the rules do not permit it any more"
)


@dataclass(slots=True)
class Barrier:
    """A barrier without its ERROR. ``errors`` are those of the requests that it follows."""

    event: Opened | Alive | Unsubscribed | None = None
    errors: list[Error] = field(default_factory=list)

    def code(self, offending: int) -> int:
        """Return the first code that a packet of this type was refused with; 0 if none was."""
        return next((error.code for error in self.errors if error.offending == offending), 0)


@dataclass(slots=True)
class InterestBarrier(Barrier):
    """The barrier behind a SUBSCRIBE; ``created`` if it also follows a CREATE."""

    interest: Interest = field(kw_only=True)
    created: bool = False


class FastClientConnection(WireConnection):
    """The base of the connections of publishers and subscribers."""

    def __init__(self, token: bytes) -> None:
        super().__init__()
        self.token = token
        self._request = encode(Unsubscribe(token, NO_TOPIC))
        self.barriers: deque[Barrier] = deque()
        self._opened = False

    # Requests

    def open(self, topic: str | None = None) -> list[WireEvent]:
        """See ``WireConnection``."""
        self.barrier(Barrier(event=Opened()))
        self.delay = _OPEN_SECONDS
        return []

    def wake(self) -> list[WireEvent]:
        """See ``WireConnection``."""
        if self._opened or self.ended:
            return super().wake()
        self.delay = None
        self.ended = True
        return [Rejected(_SILENT, permanent=False)]

    def barrier(self, barrier: Barrier) -> None:
        """Have an ERROR show that everything that was sent has been handled."""
        self.barriers.append(barrier)
        self.send(self._request)

    def ping(self) -> None:
        """See ``WireConnection``."""
        self.barrier(Barrier(event=Alive()))

    def close(self) -> None:
        """See ``WireConnection``; the protocol has no goodbye."""

    # Input

    def consume(self, data: bytes, at: int, events: list[WireEvent]) -> tuple[int, int]:
        """See ``WireConnection``."""
        end = len(data)
        while at < end:
            start, at = at, self.scan(data, at, events)
            if at == end:
                break
            need = _needed(data, at)
            if need > end - at:
                return at, need
            if data[at] == _MESSAGE and at > start:
                # The scan ended early.
                continue
            packet, at = _decode(data, at)
            if self._handle(packet, events):
                return end, 1
        return at, 1

    def scan(self, data: bytes, at: int, events: list[WireEvent]) -> int:
        """Handle the messages that begin at ``at``; return where they end."""
        return at

    def _handle(self, packet: Packet, events: list[WireEvent]) -> bool:
        """Handle a packet; return whether the connection has ended."""
        if isinstance(packet, KeyUpdate):
            # The subscription stays; the application has to get a token with the new key.
            return False
        if not isinstance(packet, Error):
            raise WireError(f"{type(packet).__name__} is not expected")
        if _ends_connection(packet):
            self.ending(packet, events)
            permanent = packet.code == ErrorCode.INVALID_REQUEST
            events.append(Rejected(error_name(ErrorCode, packet.code), permanent))
            return True
        if (packet.offending, packet.topic_id) != (UNSUBSCRIBE, NO_TOPIC):
            self.refused(packet, events)
            return False
        if not self.barriers:
            raise WireError("an ERROR without a request")
        return self._reached(self.barriers.popleft(), packet.code, events)

    def ending(self, error: Error, events: list[WireEvent]) -> None:
        """Report the requests that ``error`` concerns, after which the broker closes."""

    def refused(self, error: Error, events: list[WireEvent]) -> None:
        """Handle the refusal of a request."""
        if self.barriers:
            self.barriers[0].errors.append(error)

    def _reached(self, barrier: Barrier, code: int, events: list[WireEvent]) -> bool:
        if isinstance(barrier.event, Opened):
            self._opened = True
            self.delay = None
            if code == ErrorCode.BAD_TOKEN:
                events.append(Rejected(error_name(ErrorCode, code), permanent=True))
                return True
        if barrier.event is not None:
            events.append(barrier.event)
        else:
            self.reached(barrier, events)
        return False

    def reached(self, barrier: Barrier, events: list[WireEvent]) -> None:
        """Handle the end of the requests before ``barrier``."""


class SubscriberConnection(FastClientConnection):
    """Subscribes; a topic that does not exist is created."""

    def __init__(self, token: bytes) -> None:
        super().__init__(token)
        self._interests: dict[int, Interest] = {}
        self._table = HeadTable(_learn)

    def subscribe(self, interest: Interest) -> None:
        """See ``WireConnection``."""
        number = fnv1a32(interest.name.encode())
        known = self._interests.setdefault(number, interest)
        if interest.prefix:
            self.report(NotSubscribed(interest, "fast has no subscriptions to prefixes"))
        elif known.name != interest.name:
            self.report(NotSubscribed(interest, error_name(ErrorCode, ErrorCode.ID_COLLISION)))
        else:
            self._interests[number] = interest
            self.send(encode(Subscribe(self.token, number)))
            self.barrier(InterestBarrier(interest=interest))

    def unsubscribe(self, interest: Interest) -> bool:
        """See ``WireConnection``."""
        self.send(encode(Unsubscribe(self.token, fnv1a32(interest.name.encode()))))
        self.barrier(Barrier(event=Unsubscribed(interest)))
        return True

    def refused(self, error: Error, events: list[WireEvent]) -> None:
        """See ``FastClientConnection``."""
        if error.code == ErrorCode.SUBSCRIPTION_ENDED:
            interest = self._interests.get(error.topic_id)
            events.append(SubscriptionEnded(interest, _ENDED))
        else:
            super().refused(error, events)

    def reached(self, barrier: Barrier, events: list[WireEvent]) -> None:
        """See ``FastClientConnection``."""
        assert isinstance(barrier, InterestBarrier)
        interest = barrier.interest
        code = barrier.code(SUBSCRIBE)
        if not code:
            events.append(Subscribed(interest))
        elif code == ErrorCode.NO_SUCH_TOPIC and not barrier.created:
            name = interest.name.encode()
            self.send(encode(Create(self.token, name, 0)))
            self.send(encode(Subscribe(self.token, fnv1a32(name))))
            self.barrier(InterestBarrier(interest=interest, created=True))
        else:
            code = barrier.code(CREATE) or code
            passing = code == ErrorCode.RATE_LIMITED
            events.append(NotSubscribed(interest, error_name(ErrorCode, code), passing))

    def scan(self, data: bytes, at: int, events: list[WireEvent]) -> int:
        """See ``FastClientConnection``."""
        columns = self._table.scan(data, at)
        if columns.count:
            try:
                topics = [self._interests[number].name for number in columns.addresses]
            except KeyError:
                raise WireError("a message of a topic without a subscription") from None
            events.extend(messages_of(columns, topics))
        return columns.end


def _ends_connection(error: Error) -> bool:
    """Return whether the broker closes after ``error`` (fast §6.2)."""
    if error.code == ErrorCode.INVALID_REQUEST:
        return error.offending != CREATE
    return not error.offending or error.code == ErrorCode.TOO_LARGE


def _needed(data: bytes, at: int) -> int:
    """Return the length of the packet at ``at``, or a step towards it; raises WireError."""
    kind, available = data[at], len(data) - at
    if kind == _MESSAGE:
        if available < _MESSAGE_HEAD:
            return _MESSAGE_HEAD
        length = int.from_bytes(data[at + _MESSAGE_HEAD - 4 : at + _MESSAGE_HEAD], "big")
        if length > _MAX_MESSAGE:
            raise WireError(f"a message of {length} bytes; the limit is {_MAX_MESSAGE}")
        return _MESSAGE_HEAD + length
    if kind == TYPES[Error]:
        return _ERROR_SIZE
    if kind == TYPES[KeyUpdate]:
        return _KEY_HEAD if available < _KEY_HEAD else _KEY_HEAD + data[at + _KEY_HEAD - 1]
    raise WireError(f"a packet of type 0x{kind:02x}")


def _decode(data: bytes, at: int) -> tuple[Packet, int]:
    try:
        found = decode(data, at)
    except FastError as error:
        raise WireError(f"not a packet of fast ({error})") from None
    assert found is not None
    return found


def _learn(data: bytes, at: int) -> tuple[Head, int] | None:
    """Return the head and the topic id of the MESSAGE at ``at``; None for any other packet."""
    if data[at] != _MESSAGE or len(data) - at < _MESSAGE_HEAD:
        return None
    before = data[at : at + _MESSAGE_HEAD - 4]
    head = Head(before + bytes(4), (LengthField(5, 4, big=True),), _MAX_MESSAGE)
    return head, int.from_bytes(before[1:], "big")
