"""cafe's state machine: the frames that a client may send in each state, and the replies to them.

A client is NEW until its handshake makes it a PUBLISHER or a SUBSCRIBER. The frames that are
handled in each state, all others being errors (cafe §4.2, §4.4, §5, in the order of §6.3):

    state       handled                              refused
    NEW         HANDSHAKE_*, PING, DISCONNECT        anything else: ERROR 0x01, close
    PUBLISHER   PUBLISH, PING, PONG, DISCONNECT      SUBSCRIBE, UNSUBSCRIBE: ERROR 0x08
    SUBSCRIBER  SUBSCRIBE, UNSUBSCRIBE, PING, PONG,  PUBLISH: ERROR 0x08
                DISCONNECT
    both                                             HANDSHAKE_*: ERROR 0x01, close
                                                     others: ERROR 0x06

One ``Conversations`` serves all stream clients of a listener, another all of its UDP clients. The
state of a conversation is kept in attributes of the connection (see ``ServedClient``): an object
for each would cost 57 bytes, 7 % of an idle connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.clients.frame_turns import publish_runs
from pubsub.broker.publishing.address_mixes import AddressMixes
from pubsub.errors import MessageTooLarge, RateLimited, Refused, TopicNotFound
from pubsub.kernel import Columns, HeadTable
from pubsub.protocols.cafe.codec import (
    FROM_BROKER,
    HEADER,
    OPCODES,
    CafeError,
    Disconnect,
    ErrorCode,
    Frame,
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
from pubsub.protocols.cafe.handshake import CafeHandshakes, reject, shown
from pubsub.protocols.cafe.message_heads import PUBLISH_HEAD, learn_publish
from pubsub.protocols.cafe.refusals import code_of, error
from pubsub.protocols.cafe.served_client import ClientState

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.protocols.cafe.channels import Channels
    from pubsub.protocols.cafe.served_client import ServedClient

_HEADER_SIZE = HEADER.size
_PING, _PONG = encode(Ping()), encode(Pong())

_BROKER_OPCODES = frozenset(OPCODES[frame] for frame in FROM_BROKER)
_PUBLISHER = ClientState.PUBLISHER
_NEW_OPCODES = frozenset(OPCODES[frame] for frame in (HandshakePub, HandshakeSub, Ping, Disconnect))


class Conversations:
    """The broker's side of the conversations with the clients of ``listener``.

    ``channels`` are those that it offers.
    """

    def __init__(self, listener: Listener, channels: Channels) -> None:
        self._listener = listener
        self._channels = channels
        self._topic = channels.topic
        self._topics = channels.topics
        self._router = listener.router
        self._handshakes = CafeHandshakes(listener, channels)
        self._mixes = AddressMixes(listener, channels.topic)
        self.heads = HeadTable(learn_publish)
        """Those of PUBLISH: at most 256, one for each channel."""

    # Input

    def consume(self, client: ServedClient, data: bytes) -> tuple[int, int]:
        """Handle the whole frames at the start of ``data``; see ``Connection.consume``.

        The client is not closing.
        """
        at = 0
        # A publisher has no password that is being verified.
        if client.state is not _PUBLISHER and client.password_check is not None:
            return 0, _HEADER_SIZE
        while True:
            if client.state is _PUBLISHER:
                columns = self.heads.scan(data, at)
                before, at, channels = at, columns.end, columns.addresses
                if len(channels) == 1:
                    self._publish(client, channels[0], columns)
                elif channels:
                    done = self._publish_mixed(client, columns)
                    if done is not None:
                        return before + done, _HEADER_SIZE
                if at == len(data):
                    return at, _HEADER_SIZE
            if data.startswith(_PING, at):
                # The end of most reads of a client that wants its messages to be confirmed.
                client.pong(_PONG)
                at += _HEADER_SIZE
            else:
                before, at, need = at, *self._next_frame(client, data, at)
                if at == before:
                    return at, need
            if client.closing or client.password_check is not None or client.turn_over():
                return at, _HEADER_SIZE
            if at == len(data):
                return at, _HEADER_SIZE

    def _next_frame(self, client: ServedClient, data: bytes, at: int) -> tuple[int, int]:
        """Handle the frame at ``at`` if it is whole.

        Returns where it ends, or ``at`` if nothing more can be handled, and the bytes that the next
        call needs from there on.
        """
        try:
            need = needed(data, at)
            if len(data) - at < need or not self._check_new(client, data, at):
                return at, need
            if data[at + 2] in _BROKER_OPCODES:
                frame_bytes = shown(self._listener.settings, data[at : at + need])
                self._refuse(client, ErrorCode.INVALID_OPCODE, "invalid-opcode", frame=frame_bytes)
                return at + need, _HEADER_SIZE
            decoded = decode(data, at)
            if decoded is None:
                return at, need
            frame, end = decoded
            self._handle(client, frame)
        except CafeError as problem:
            end = self._malformed(client, problem, data, at)
        return end, _HEADER_SIZE

    def _check_new(self, client: ServedClient, data: bytes, at: int) -> bool:
        """Fail a NEW client that sends another frame than it may, even a malformed one."""
        if client.state is not ClientState.NEW or len(data) - at < HEADER.size:
            return True
        if data[at + 2] in _NEW_OPCODES:
            return True
        frame = shown(self._listener.settings, data[at:])
        client.fail("no-handshake", error(ErrorCode.INVALID_HANDSHAKE), frame)
        return False

    def _malformed(self, client: ServedClient, problem: CafeError, data: bytes, at: int) -> int:
        """Answer bytes that are not a frame; return where to continue."""
        code, frame = problem.code, shown(self._listener.settings, data[at : problem.end])
        if problem.end is not None and client.state is ClientState.NEW:
            if code is ErrorCode.INVALID_HANDSHAKE:
                reject(client, code, "malformed-handshake", frame)
            else:
                client.fail("malformed", error(ErrorCode.INVALID_HANDSHAKE), frame)
        elif code is ErrorCode.INVALID_OPCODE and problem.end is not None:
            self._refuse(client, code, "invalid-opcode", frame=frame)
            return problem.end
        else:
            client.fail(code.name.lower().replace("_", "-"), error(code), frame)
        return at

    def _handle(self, client: ServedClient, frame: Frame) -> None:
        match frame:
            case Ping():
                client.pong(_PONG)
            case Disconnect():
                self._disconnect(client)
            case HandshakePub() | HandshakeSub():
                self._handshakes.receive(client, frame)
            case Publish():
                self._publish_one(client, frame)
            case Subscribe() | Unsubscribe():
                self._change_subscription(client, frame)
            case _:
                # PONG: the broker sends no PING, so that it means nothing here.
                pass

    # Publishing and subscribing

    def _publish_one(self, client: ServedClient, frame: Publish) -> None:
        """A PUBLISH that no head fits: from a subscriber, or too long to deliver."""
        channel = frame.channel
        if client.state is not ClientState.PUBLISHER:
            self._refuse(client, ErrorCode.UNAUTHORIZED, "not-a-publisher")
        elif channel not in self._channels.topics:
            self._refuse(client, ErrorCode.CHANNEL_NOT_FOUND, TopicNotFound.reason)
        else:
            topic = self._channels.topic_name(channel)
            self._refuse(client, ErrorCode.MESSAGE_TOO_LARGE, MessageTooLarge.reason, topic=topic)

    def _publish_mixed(self, client: ServedClient, columns: Columns) -> int | None:
        """Publish messages of several channels in their order.

        Returns the bytes of those that were published if others are to be served before the rest,
        and None if all were.
        """
        publisher = client.publisher
        assert publisher is not None
        if self._mixes.publish_soon(columns, publisher):
            return None
        mixed = self._mixes.find(columns, access=publisher.access)
        if mixed is not None and publisher.publish_mixed(*mixed) is not None:
            return None
        done = publish_runs(
            columns, lambda run: self._publish(client, run.addresses[0], run), client.turn_over
        )
        if done == columns.count:
            return None
        return done * PUBLISH_HEAD + columns.slice(0, done).nbytes

    def _publish(self, client: ServedClient, channel: int, columns: Columns) -> None:
        """Publish messages of a channel; each one refused gets an ERROR (cafe §5.1)."""
        publisher = client.publisher
        assert publisher is not None
        try:
            # Looked up here, as a call for it is noticeable where messages come one by one.
            topic = self._topics[channel] if channel in self._topics else self._topic(channel)
            if self._router.gathers and publisher.publish_soon(topic, columns):
                return
            batch = publisher.publish(topic, columns)
        except Refused as refused:
            name = self._channels.topic_name(channel)
            self._refuse(client, code_of(refused), refused.reason, columns.count, name)
        else:
            if batch.columns is not columns:
                code, over_limit = ErrorCode.RATE_LIMIT_EXCEEDED, columns.count - batch.count
                self._refuse(client, code, RateLimited.reason, over_limit, batch.topic)

    def _change_subscription(self, client: ServedClient, frame: Subscribe | Unsubscribe) -> None:
        if client.state is not ClientState.SUBSCRIBER:
            self._refuse(client, ErrorCode.UNAUTHORIZED, "not-a-subscriber")
            return
        try:
            topic = self._topic(frame.channel)
            if isinstance(frame, Subscribe):
                self._subscribe(client, topic)
            else:
                self._unsubscribe(client, topic)
            if client.session is not None:
                self._listener.sessions.changed(client.session)
        except Refused as refused:
            name = self._channels.topic_name(frame.channel)
            self._refuse(client, code_of(refused), refused.reason, topic=name)

    def _subscribe(self, client: ServedClient, topic: Topic) -> None:
        listener = self._listener
        client.access.check_subscribe(topic.name)
        listener.router.subscribe(client.open_outbox(), topic, self._channels.encoding(topic))

    def _unsubscribe(self, client: ServedClient, topic: Topic) -> None:
        self._listener.router.unsubscribe(client.open_outbox(), topic)

    def _refuse(
        self,
        client: ServedClient,
        code: ErrorCode,
        reason: str,
        count: int = 1,
        topic: str | None = None,
        frame: bytes | None = None,
    ) -> None:
        client.refuse(reason, count, topic, frame)
        client.reply(error(code) * count)

    # Closing

    def _disconnect(self, client: ServedClient) -> None:
        """The client sent DISCONNECT: its session ends with the connection (cafe §4.5)."""
        session, client.session = client.session, None
        if session is not None:
            self._listener.sessions.close(session)
        client.close()

    def ended(self, client: ServedClient, keep: bool = True) -> None:
        """The connection has ended: end the session, or keep it if it can be resumed."""
        if client.password_check is not None:
            client.password_check.cancel()
        self._handshakes.ended(client)
        listener = self._listener
        session, client.session = client.session, None
        outbox = client.outbox
        if session is None or not keep or not listener.sessions.keeps(session):
            if outbox is not None:
                outbox.shut("disconnected")
            if session is not None:
                listener.sessions.close(session)
            return
        pending = None if outbox is None else outbox.pending()
        missed = {} if outbox is None else outbox.shut_and_get_offsets()
        listener.sessions.detach(session, missed, pending)
