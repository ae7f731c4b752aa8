"""spot's client, sans-IO, as a DEALER (spot §2.3, §3): see ``ClientWire``, ``WireConnection``.

Commands have no reply and take effect in order. So a PING follows the commands that have to be
confirmed, and its PONG shows that the commands before it were handled. A broker that announces it
reports refusals before that PONG (§5.3). Of another one, only QUERY shows that a topic was refused
as a whole, because a topic is listed once a message could be published on it; the first messages on
a topic are therefore confirmed by the reply to a QUERY.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pubsub.kernel import Columns, Head, HeadTable
from pubsub.protocols.spot.commands import (
    Publish,
    Query,
    QueryResponse,
    SpotError,
    decode_request,
    encode_request,
)
from pubsub.protocols.spot.mechanisms import PLAIN, Login, PlainClient
from pubsub.protocols.spot.message_heads import long_head, short_head
from pubsub.protocols.spot.refusal_reports import REFUSALS, REFUSED, RefusalReport, decode_report
from pubsub.protocols.spot.zmtp import (
    GREETING,
    LONG,
    Command,
    FrameLimits,
    Partial,
    Unit,
    ZmtpError,
    decode,
    encode_metadata,
    ping,
    pong,
    ready,
)
from pubsub.protocols.spot.zmtp_handshake import Handshake
from pubsub.wire.client_events import (
    Alive,
    Interest,
    Opened,
    Rejected,
    WireEvent,
)
from pubsub.wire.client_wire import WireConnection, WireError

# A list of topics is one message with a frame for each topic; a message of another protocol may be
# longer than those that the listener accepts.
_LIMITS = FrameLimits(frame=64 * 1024 * 1024, frames=1_000_000)
# The beginning of the broker's messages: the delimiter, PUBLISH, and the flags of the topic.
_PUBLICATION = b"\x01\x00\x01\x01\x01\x01"
# Topics whose messages are recognized at once.
_MAX_HEADS = 4096
_NODE = b"x-node"
# Refusals that are kept one by one until the next reply.
_MAX_REFUSALS = 1000


@dataclass(frozen=True, slots=True)
class SpotSession:
    """The session that a subscriber resumes: the run of the broker that keeps its subscriptions."""

    node: bytes


@dataclass(slots=True)
class Waiting:
    """A request that waits for the PONG with ``context``, or for the reply to a QUERY if None.

    It is a ping, unless a field is set. ``unlisted`` has the number of messages of each topic that
    the reply must list. ``interest`` is subscribed to if ``wanted``, and unsubscribed otherwise.
    """

    context: bytes | None
    published: int | None = None
    interest: Interest | None = None
    unlisted: Mapping[bytes, int] = field(default_factory=dict)
    wanted: bool = True


class SpotClientConnection(WireConnection):
    """The base of the connections of publishers and subscribers."""

    def __init__(
        self, identity: bytes, resume: SpotSession | None = None, login: Login | None = None
    ) -> None:
        super().__init__()
        self._identity = identity
        self._resume = resume
        self._login = login
        self._handshake = Handshake()
        self._partial: Partial | None = None
        self._pings = 0
        self._waiting: deque[Waiting] = deque()
        self._refusals: list[RefusalReport] = []
        self._table = HeadTable(_learn)

    # Requests

    def open(self, topic: str | None = None) -> list[WireEvent]:
        """See ``WireConnection``."""
        properties = {REFUSALS: b"1"}
        if self._identity:
            properties[b"Identity"] = self._identity
        login = self._login
        if login is None:
            self.send(GREETING + ready(b"DEALER", properties))
        else:
            metadata = encode_metadata(b"DEALER", properties)
            self._handshake = Handshake({PLAIN: lambda: PlainClient(login, metadata)})
            self.send(self._handshake.greet())
        return []

    def await_handled(
        self, published: int | None = None, interest: Interest | None = None, wanted: bool = True
    ) -> None:
        """Have a PONG answer for the commands so far; a peer with ZMTP 3.0 knows only QUERY."""
        if not self._handshake.has_commands:
            self._query(Waiting(None, published, interest, wanted=wanted))
            return
        self._pings += 1
        context = self._pings.to_bytes(8, "big")
        self._waiting.append(Waiting(context, published, interest, wanted=wanted))
        self.send(ping(context))

    def await_list(self, published: int, unlisted: Mapping[bytes, int]) -> None:
        """Have the list of topics answer for the messages so far."""
        self._query(Waiting(None, published, unlisted=unlisted))

    def _query(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)
        self.send(encode_request(Query()))

    def ping(self) -> None:
        """See ``WireConnection``."""
        self.await_handled()

    def close(self) -> None:
        """See ``WireConnection``."""

    # Input

    def consume(self, data: bytes, at: int, events: list[WireEvent]) -> tuple[int, int]:
        """See ``WireConnection``."""
        try:
            while not self._handshake.done:
                after, need = self._handshake.consume(data, at)
                self.send(self._handshake.take_output())
                if after == at:
                    return at, need
                at = after
                if self._handshake.done:
                    self._opened(events)
            return self._consume_messages(data, at, events)
        except ZmtpError as error:
            events.append(Rejected(self._refusal(error), permanent=True))
            return len(data), 1

    def _refusal(self, error: ZmtpError) -> str:
        """Return why the broker does not admit this client; raises WireError for other errors."""
        if error.reason == "refused-by-peer":
            return "the broker has refused the handshake"
        if error.reason != "mechanism":
            raise WireError(f"not ZMTP as spot uses it ({error.reason})") from None
        if self._login is not None:
            # Another user or password would not help.
            raise WireError("the port takes no passwords (PLAIN)") from None
        return "it demands a password (PLAIN) or a key (CURVE)"

    def _opened(self, events: list[WireEvent]) -> None:
        if self._handshake.socket_type != b"ROUTER":
            raise WireError("the other side is not a ROUTER socket")
        node = self._handshake.metadata.get(_NODE, b"")
        resumed = self._resume is not None and self._resume.node == node
        self.session = self.next_session(node)
        events.append(Opened(resumed))

    def next_session(self, node: bytes) -> SpotSession | None:
        """Return the session that the next connection may resume at the broker ``node``."""
        return None

    def _consume_messages(self, data: bytes, at: int, events: list[WireEvent]) -> tuple[int, int]:
        while at < len(data):
            start, at = at, self._scan(data, at, events)
            if at == len(data):
                break
            unit = decode(data, at, _LIMITS, self._partial if at == start == 0 else None)
            if isinstance(unit, Partial):
                self._partial = unit if unit.length else None
                return at, unit.need
            self._partial = None
            self._handle(unit, events)
            at = unit.end
        self._partial = None
        return at, 1

    def _scan(self, data: bytes, at: int, events: list[WireEvent]) -> int:
        if len(self._table) > _MAX_HEADS:
            self._table = HeadTable(_learn)
        columns = self._table.scan(data, at)
        if columns.count:
            self.delivered(columns, columns.addresses, None, events)
        return columns.end

    def _handle(self, unit: Unit, events: list[WireEvent]) -> None:
        for command in unit.commands:
            if command.name == b"PING":
                self.send(pong(command))
            elif command.name == b"PONG":
                self._answered(command, events)
            elif command.name == REFUSED:
                self._add_refusal(decode_report(command.data))
        if not unit.frames:
            return
        try:
            message = decode_request(unit.frames)
        except SpotError:
            raise WireError("a message that is not a command of spot") from None
        match message:
            case Publish(topic, data, origin):
                self.delivered(Columns.one(data), [topic], origin, events)
            case QueryResponse(topics):
                self._listed(topics, events)
            case _:
                raise WireError("a command that only clients send")

    @property
    def reports_refusals(self) -> bool:
        """Whether the broker reports refused commands."""
        return REFUSALS.lower() in self._handshake.metadata

    def _add_refusal(self, refusal: RefusalReport) -> None:
        if len(self._refusals) < _MAX_REFUSALS:
            self._refusals.append(refusal)
        else:
            last = self._refusals[-1]
            self._refusals[-1] = last._replace(commands=last.commands + refusal.commands)

    def take_refusals(self) -> list[RefusalReport]:
        """Return the refusals of the commands that were answered."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def _answered(self, command: Command, events: list[WireEvent]) -> None:
        if self._waiting and self._waiting[0].context == command.data:
            self.answered(self._waiting.popleft(), (), events)

    def _listed(self, topics: Sequence[bytes], events: list[WireEvent]) -> None:
        if self._waiting and self._waiting[0].context is None:
            self.answered(self._waiting.popleft(), topics, events)

    def answered(self, waiting: Waiting, topics: Sequence[bytes], events: list[WireEvent]) -> None:
        """Handle the reply to ``waiting``, of which ``topics`` are the topics listed."""
        self.take_refusals()
        events.append(Alive())

    def delivered(
        self,
        columns: Columns,
        topics: Sequence[bytes],
        origin: bytes | None,
        events: list[WireEvent],
    ) -> None:
        """Handle messages; ``topics`` has the topic of each address of ``columns``."""
        raise WireError("a message, but there is no subscription")


def _learn(data: bytes, at: int) -> tuple[Head, bytes] | None:
    """Return the head and the topic of the publication at ``at``; None for any other unit."""
    if not data.startswith(_PUBLICATION, at) or len(data) - at <= len(_PUBLICATION):
        return None
    start = at + len(_PUBLICATION) + 1
    stop = start + data[start - 1]
    flags = data[stop : stop + 1]
    prefix, topic = data[at:stop], data[start:stop]
    if flags == b"\0" and len(data) >= stop + 2:
        return short_head(prefix), topic
    if flags == bytes((LONG,)) and len(data) >= stop + 9:
        return long_head(prefix, _LIMITS.frame), topic
    return None
