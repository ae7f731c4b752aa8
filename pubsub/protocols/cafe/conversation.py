"""cafe's state machine: what a client may send when, and what it is answered.

A connection is NEW until its handshake makes it a PUBLISHER or a SUBSCRIBER. What may come in
each state, everything else being an error (cafe §4.2, §4.4, §5, in the order of §6.3):

    state       handled                              refused
    NEW         HANDSHAKE_*, PING, DISCONNECT        anything else: ERROR 0x01, close
    PUBLISHER   PUBLISH, PING, PONG, DISCONNECT      SUBSCRIBE, UNSUBSCRIBE: ERROR 0x08
    SUBSCRIBER  SUBSCRIBE, UNSUBSCRIBE, PING, PONG,  PUBLISH: ERROR 0x08
                DISCONNECT
    both                                             HANDSHAKE_*: ERROR 0x01, close
                                                     others: ERROR 0x06

The stream's and the datagram server's clients are one each, over what ``Link`` says of both.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pubsub.broker.catch_up import CatchUp, shut_and_get_offsets
from pubsub.broker.compact_map import EMPTY_MAP
from pubsub.broker.message_run import MessageRun
from pubsub.errors import MessageTooLarge, RateLimited, Refused, TopicNotFound
from pubsub.protocols.cafe.channels import Channels
from pubsub.protocols.cafe.client_id import split_client_id
from pubsub.protocols.cafe.codec import (
    FROM_BROKER,
    HEADER,
    MAX_MESSAGE,
    OPCODES,
    CafeError,
    Disconnect,
    ErrorCode,
    Frame,
    HandshakeAck,
    HandshakePub,
    HandshakeSub,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
    decode,
    encode,
    needed,
)
from pubsub.protocols.cafe.error_codes import code_of, error
from pubsub.protocols.cafe.scan import HEAD, publish_length, scan
from pubsub.wire.read_buffer import PayloadHandler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pubsub.broker.publisher import Publisher
    from pubsub.broker.sessions import Session
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import Encoding
    from pubsub.protocols.cafe.link import Link
else:
    Link = object

# Clients read the acknowledgment with one recv and would lose what came with it (cafe §4.3).
ACK_GAP = 0.02

_PONG = encode(Pong())


class State(Enum):
    """What a connection is."""

    NEW = "new"
    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"


_WELCOME = frozenset({HandshakePub, HandshakeSub, Ping, Disconnect})
_BROKERS_OPCODES = frozenset(OPCODES[frame] for frame in FROM_BROKER)
_WELCOME_OPCODES = frozenset(OPCODES[frame] for frame in _WELCOME)


class Conversation(Link):
    """One client's side of the protocol, mixed into what is under it.

    The attributes start as class attributes, so that an idle connection costs little.
    """

    state = State.NEW
    client = b""
    _channels: Channels
    _session: Session | None = None
    _publisher: Publisher | None = None
    _catching_up: CatchUp | None = None

    @property
    def label(self) -> str:
        """The client's name for counters and logs."""
        name = self.client.decode(errors="replace")
        return f"{name}@{self.peer}" if name else self.peer

    # Input

    def consume(self, data: bytes, at: int = 0) -> tuple[int, int]:
        """Handle the whole frames from ``at`` on; see ``Connection.consume``."""
        while not self.closing:
            if self.state is State.PUBLISHER:
                at, runs = scan(data, at)
                for channel, run in runs:
                    self._publish(channel, run)
                if at == len(data):
                    break
            try:
                need = needed(data, at)
                if len(data) - at < need or not self._welcome(data, at):
                    return at, need
                if data[at + 2] in _BROKERS_OPCODES:
                    self._refuse(
                        ErrorCode.INVALID_OPCODE, "invalid-opcode", frame=data[at : at + need]
                    )
                    at += need
                    continue
                decoded = decode(data, at)
                if decoded is None:
                    return at, need
                frame, at = decoded
                self._handle(frame)
            except CafeError as problem:
                at = self._faulty(problem, data, at)
        return at, HEADER.size

    def large_payload(self, head: bytes, need: int) -> tuple[int, PayloadHandler] | None:
        """See ``Connection.large_payload``: a PUBLISH."""
        if self.state is not State.PUBLISHER or publish_length(head) != need:
            return None
        return HEAD, lambda payload: self._publish(head[7], MessageRun([payload], len(payload)))

    def _welcome(self, data: bytes, at: int) -> bool:
        """Before the handshake, only some frames may come at all, well-formed or not."""
        if self.state is not State.NEW or len(data) - at < HEADER.size:
            return True
        if data[at + 2] in _WELCOME_OPCODES:
            return True
        self.fail("no-handshake", error(ErrorCode.INVALID_HANDSHAKE), data[at:])
        return False

    def _faulty(self, problem: CafeError, data: bytes, at: int) -> int:
        """Answer bytes that are no frame; returns where to go on."""
        code, frame = problem.code, data[at : problem.end]
        if problem.end is not None and self.state is State.NEW:
            if code is ErrorCode.INVALID_HANDSHAKE:
                self._reject(code, "malformed-handshake", frame)
            else:
                self.fail("malformed", error(ErrorCode.INVALID_HANDSHAKE), frame)
        elif code is ErrorCode.INVALID_OPCODE and problem.end is not None:
            self._refuse(code, "invalid-opcode", frame=frame)
            return problem.end
        else:
            self.fail(code.name.lower().replace("_", "-"), error(code), frame)
        return at

    def _handle(self, frame: Frame) -> None:
        match frame:
            case Ping():
                self.reply(_PONG)
            case Disconnect():
                self._leave()
            case HandshakePub() | HandshakeSub():
                self._handshake(frame)
            case Publish():
                self._publish_one(frame)
            case Subscribe() | Unsubscribe():
                self._change_subscription(frame)
            case _:
                # PONG: nobody asked, and nobody minds.
                pass

    # Handshake

    def _handshake(self, frame: HandshakePub | HandshakeSub) -> None:
        if self.state is not State.NEW:
            self.fail("second-handshake", error(ErrorCode.INVALID_HANDSHAKE))
            return
        try:
            self._open(frame)
        except Refused as refused:
            self._reject(code_of(refused), refused.reason)

    def _open(self, frame: HandshakePub | HandshakeSub) -> None:
        """Open or resume the session and acknowledge; raises Refused (cafe §4.1)."""
        listener = self.listener
        sessions = listener.sessions
        state = State.PUBLISHER if isinstance(frame, HandshakePub) else State.SUBSCRIBER
        name, number = split_client_id(frame.client_id)
        kind = listener.session_kind(state)
        session = None if number is None else sessions.find(number, kind, name)
        if isinstance(frame, HandshakePub):
            listener.access.check_publish(self._topic(frame.channel).name)
            wanted: Mapping[Topic, Encoding] = {}
        else:
            wanted = self._subscribable(frame.channels)
        if session is None:
            session = sessions.open(kind, name, self)
        else:
            sessions.resume(session, self)
        self._session, self.state, self.client = session, state, name
        self.reply(encode(HandshakeAck(0, session.id)))
        if state is State.PUBLISHER:
            self._publisher = listener.publisher(self.publishing, name)
        else:
            self._start_receiving(session, wanted)

    def _subscribable(self, channels: bytes) -> Mapping[Topic, Encoding]:
        """The topics of ``channels``; raises TopicNotFound before NotAuthorized."""
        topics = [self._topic(channel) for channel in channels]
        for topic in topics:
            self.listener.access.check_subscribe(topic.name)
        return {topic: self._channels.encoding(topic) for topic in topics}

    def _start_receiving(self, session: Session, wanted: Mapping[Topic, Encoding]) -> None:
        listener = self.listener
        outbox = self.open_outbox()
        outbox.hold()
        listener.clock.callLater(ACK_GAP, outbox.release)
        # What has been closed to the client meanwhile is left out.
        may_read = listener.access.may_subscribe
        missed = {t: at for t, at in session.subscriptions.items() if may_read(t.name)}
        session.subscriptions = EMPTY_MAP
        for topic, encoding in wanted.items():
            if topic not in missed:
                listener.router.subscribe(outbox, topic, encoding)
        if missed:
            # Encoded anew: the session may come from UDP to TCP, where more fits a frame.
            encodings = {topic: self._channels.encoding(topic) for topic in missed}
            self._catching_up = listener.catch_up(outbox, missed, encodings)
            self._catching_up.start()

    def _reject(self, code: ErrorCode, reason: str, frame: bytes | None = None) -> None:
        self.fail(reason, encode(HandshakeAck(code, 0)), frame)

    # Publishing and subscribing

    def _publish_one(self, frame: Publish) -> None:
        """A PUBLISH that ``scan`` left aside: from a subscriber, or too long to deliver."""
        if self.state is not State.PUBLISHER:
            self._refuse(ErrorCode.UNAUTHORIZED, "not-a-publisher")
        elif frame.channel not in self._channels.topics:
            self._refuse(ErrorCode.CHANNEL_NOT_FOUND, TopicNotFound.reason)
        elif len(frame.payload) > MAX_MESSAGE:
            self._refuse(
                ErrorCode.MESSAGE_TOO_LARGE, MessageTooLarge.reason, topic=self._name(frame.channel)
            )
        else:
            self._publish(frame.channel, MessageRun([frame.payload], len(frame.payload)))

    def _publish(self, channel: int, run: MessageRun) -> None:
        """Publish a run; each message refused gets an ERROR of its own (cafe §5.1)."""
        assert self._publisher is not None
        count = len(run.payloads)
        try:
            batch = self._publisher.publish(self._topic(channel), run)
        except Refused as refused:
            self._refuse(code_of(refused), refused.reason, count, self._name(channel))
        else:
            if len(batch.payloads) < count:
                late = count - len(batch.payloads)
                self._refuse(ErrorCode.RATE_LIMIT_EXCEEDED, RateLimited.reason, late, batch.topic)

    def _change_subscription(self, frame: Subscribe | Unsubscribe) -> None:
        if self.state is not State.SUBSCRIBER:
            self._refuse(ErrorCode.UNAUTHORIZED, "not-a-subscriber")
            return
        try:
            topic = self._topic(frame.channel)
            if isinstance(frame, Subscribe):
                self._subscribe(topic)
            else:
                self._unsubscribe(topic)
        except Refused as refused:
            self._refuse(code_of(refused), refused.reason, topic=self._name(frame.channel))

    def _subscribe(self, topic: Topic) -> None:
        listener = self.listener
        listener.access.check_subscribe(topic.name)
        if self._catching_up is None or topic not in self._catching_up.positions:
            outbox = self.open_outbox()
            listener.router.subscribe(outbox, topic, self._channels.encoding(topic))

    def _unsubscribe(self, topic: Topic) -> None:
        if self._catching_up is not None:
            self._catching_up.discard(topic)
        self.listener.router.unsubscribe(self.open_outbox(), topic)

    def _topic(self, channel: int) -> Topic:
        topic = self._channels.topics.get(channel)
        if topic is None:
            raise TopicNotFound(f"channel {channel}")
        return topic

    def _name(self, channel: int) -> str | None:
        topic = self._channels.topics.get(channel)
        return None if topic is None else topic.name

    def _refuse(
        self,
        code: ErrorCode,
        reason: str,
        count: int = 1,
        topic: str | None = None,
        frame: bytes | None = None,
    ) -> None:
        self.refuse(reason, count, topic, frame)
        self.reply(error(code) * count)

    # The end

    @property
    def published(self) -> tuple[int, int]:
        """The messages it has published, and their bytes."""
        publisher = self._publisher
        return (0, 0) if publisher is None else (publisher.messages, publisher.nbytes)

    def _leave(self) -> None:
        """The client said goodbye: its session ends with it (cafe §4.5)."""
        session, self._session = self._session, None
        if session is not None:
            self.listener.sessions.close(session)
        self.close()

    def displaced(self) -> None:
        """See ``Owner``."""
        self.abort("its session was resumed by another connection")

    def ended(self, keep: bool = True) -> None:
        """The connection is gone: end the session, or leave it to be resumed if it may be."""
        sessions = self.listener.sessions
        session, self._session = self._session, None
        outbox = self.outbox
        if session is None or not keep or not sessions.keeps(session):
            if outbox is not None:
                outbox.shut("disconnected")
            if session is not None:
                sessions.close(session)
            return
        replayed = {} if self._catching_up is None else self._catching_up.positions
        end = self.listener.store.next_offset
        missed = {} if outbox is None else shut_and_get_offsets(outbox, replayed, end)
        sessions.detach(session, missed)
