"""The handshakes of cafe's clients: passwords, sessions, and the acknowledgment (cafe §4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pubsub.broker.clients.session_sharing import SessionContent, known_topics
from pubsub.broker.compact_map import EMPTY_MAP
from pubsub.broker.credentials.identity import PASSWORD, Identity
from pubsub.broker.credentials.passwords import PasswordCheck
from pubsub.errors import Refused, SessionUnknown, WrongPassword
from pubsub.protocols.cafe.client_id import split_client_id, split_login
from pubsub.protocols.cafe.codec import (
    ErrorCode,
    HandshakeAck,
    HandshakePub,
    HandshakeSub,
    encode,
)
from pubsub.protocols.cafe.refusals import code_of, error
from pubsub.protocols.cafe.served_client import ClientState
from pubsub.wire.peer_address import network_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from twisted.internet.interfaces import IDelayedCall

    from pubsub.broker.clients.sessions import Session
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import Encoding
    from pubsub.protocols.cafe.channels import Channels
    from pubsub.protocols.cafe.served_client import ServedClient

# Clients read the acknowledgment with one recv and would lose further bytes (cafe §4.3).
ACK_GAP = 0.02
# Whether the ClientID has a password: the values of ``client-id-password``.
NO_PASSWORD, OPTIONAL, REQUIRED = "none", "optional", "required"
# The source of all passwords in datagrams: one sender can write any number of addresses.
_UNPROVED = "udp"


def shown(settings: Mapping[str, Any], frame: bytes) -> bytes:
    """Return the bytes of a malformed frame for events: none if it may have a password.

    A handshake that is damaged is not recognized as one.
    """
    takes_passwords = settings["client-id-password"] != NO_PASSWORD
    return b"" if takes_passwords and b":" in frame else frame


def _source_of(client: ServedClient) -> str:
    """Return the key under which waiting passwords of ``client`` are counted."""
    proved = getattr(client, "proves_address", True)
    return network_of(client.identity.host) if proved else _UNPROVED


def reject(client: ServedClient, code: ErrorCode, reason: str, frame: bytes | None = None) -> None:
    """Answer a handshake with ``code``, and close."""
    client.fail(reason, encode(HandshakeAck(code, 0)), frame)


class _Shake(NamedTuple):
    """A handshake that is permitted as far as the client's name goes.

    ``parts`` tell its session from others of the listener.
    """

    frame: HandshakePub | HandshakeSub
    name: bytes
    state: ClientState
    kind: Hashable
    parts: tuple[bytes, ...]


class CafeHandshakes:
    """Handles the handshakes of the clients of ``listener``, which offers ``channels``."""

    def __init__(self, listener: Listener, channels: Channels) -> None:
        self._listener = listener
        self._channels = channels
        # The ends of the gaps between acknowledgments and first messages.
        self._gaps: dict[ServedClient, IDelayedCall] = {}

    def ended(self, client: ServedClient) -> None:
        """The connection has ended."""
        gap = self._gaps.pop(client, None)
        if gap is not None:
            gap.cancel()

    def receive(self, client: ServedClient, frame: HandshakePub | HandshakeSub) -> None:
        """Handle a handshake: open or resume a session, or reject the client."""
        if client.state is not ClientState.NEW:
            client.fail("second-handshake", error(ErrorCode.INVALID_HANDSHAKE))
            return
        try:
            name, number = split_client_id(frame.client_id)
            mode = self._listener.settings["client-id-password"]
            user, password = (name, None) if mode == NO_PASSWORD else split_login(name)
            if password is not None:
                self._log_in(client, frame, user, password, number)
            elif mode == REQUIRED:
                raise WrongPassword
            else:
                self._open(client, frame, name, number)
        except Refused as refused:
            reject(client, code_of(refused), refused.reason)

    def _log_in(
        self,
        client: ServedClient,
        frame: HandshakePub | HandshakeSub,
        user: bytes,
        password: bytes,
        number: int | None,
    ) -> None:
        """Have a password verified; further input waits (cafe §3.9)."""
        name = user.decode(errors="replace")

        def done(refused: Refused | None) -> None:
            client.password_check = None
            try:
                if refused is not None:
                    raise refused
                client.identify(Identity(name, PASSWORD, host=client.identity.host))
                self._open(client, frame, user, number)
            except Refused as error:
                reject(client, code_of(error), error.reason)
            if check is not None:
                client.resume_input()

        check: PasswordCheck | None = None
        found = self._listener.passwords.verify(name, password, _source_of(client), done)
        if found.pending:
            check = client.password_check = found
            client.hold_input()

    def _open(
        self,
        client: ServedClient,
        frame: HandshakePub | HandshakeSub,
        name: bytes,
        number: int | None,
    ) -> None:
        """Open or resume the session and acknowledge; raises Refused (cafe §4.1)."""
        sessions = self._listener.sessions
        shake = self._shake(client, frame, name)
        session = None
        if number is not None:
            try:
                session = sessions.find(number, shake.kind, name)
            except SessionUnknown:
                if sessions.sharing is None:
                    raise
        self._check(client, frame)
        if session is not None:
            self._check_memory(session, frame)
        if session is None and number is not None:
            self._take_over(client, shake, number)
            return
        if session is None:
            session = sessions.open(shake.kind, name, client)
        else:
            sessions.resume(session, client)
        self._begin(client, shake, session)

    def _shake(
        self, client: ServedClient, frame: HandshakePub | HandshakeSub, name: bytes
    ) -> _Shake:
        state = ClientState.PUBLISHER if isinstance(frame, HandshakePub) else ClientState.SUBSCRIBER
        # A name that is proved is another one than the same name that is not.
        proved = client.identity.proof == PASSWORD
        kind = self._listener.session_kind((state, proved))
        return _Shake(frame, name, state, kind, (state.value.encode(), b"%d" % proved, name))

    def _check(self, client: ServedClient, frame: HandshakePub | HandshakeSub) -> None:
        if isinstance(frame, HandshakePub):
            client.access.check_publish(self._channels.topic(frame.channel).name)
        else:
            self._subscribable(client, frame.channels)

    def _check_memory(self, session: Session, frame: HandshakePub | HandshakeSub) -> None:
        """Raise MemoryExhausted at the bound, unless the client only wants what it had."""
        if isinstance(frame, HandshakeSub):
            wanted = map(self._channels.topic, frame.channels)
            if not session.subscriptions.keys() >= set(wanted):
                self._listener.memory.check()

    # Sessions of other brokers

    def _key(self, shake: _Shake, number: int) -> str:
        sharing = self._listener.sessions.sharing
        if sharing is None:
            return ""
        return sharing.key(self._listener, *shake.parts, number.to_bytes(8, "little"))

    def _take_over(self, client: ServedClient, shake: _Shake, number: int) -> None:
        """Resume a session that another broker may have; further input waits.

        Raises Refused.
        """
        sessions = self._listener.sessions
        assert sessions.sharing is not None
        # Otherwise it stays at the other broker.
        sessions.check_room()
        waits = False

        def taken(content: SessionContent | None) -> None:
            if not check.pending:
                if content is not None:
                    # The client has left meanwhile, and may come back.
                    self._adopt(None, shake, number, content)
                return
            client.password_check = None
            check.cancel()
            try:
                if content is None:
                    session = sessions.find(number, shake.kind, shake.name)
                    sessions.resume(session, client)
                else:
                    session = self._adopt(client, shake, number, content)
                self._check(client, shake.frame)
                self._begin(client, shake, session)
            except Refused as refused:
                reject(client, code_of(refused), refused.reason)
            if waits:
                client.resume_input()

        check = client.password_check = PasswordCheck(lambda refused: None)
        sessions.sharing.take(self._key(shake, number)).addCallback(taken)
        if check.pending:
            waits = True
            client.hold_input()

    def _adopt(
        self, client: ServedClient | None, shake: _Shake, number: int, content: SessionContent
    ) -> Session:
        """Return a session that was another broker's; raises Refused."""
        sessions = self._listener.sessions
        key = self._key(shake, number)
        try:
            session = sessions.adopt(number, shake.kind, shake.name, client)
        except Refused:
            if sessions.sharing is not None:
                sessions.sharing.end(key)
            raise
        known = known_topics(content, self._channels.named)
        session.key = key
        if client is None:
            sessions.detach(session, known)
        else:
            session.subscriptions = known
        return session

    def _begin(self, client: ServedClient, shake: _Shake, session: Session) -> None:
        """Acknowledge, and begin to publish or receive."""
        client.session, client.state, client.name = session, shake.state, shake.name
        client.end_handshake()
        client.reply(encode(HandshakeAck(0, session.id)))
        if isinstance(shake.frame, HandshakePub):
            client.publisher = self._listener.publisher(client.publishing, shake.name)
            client.publisher.access = client.access
        else:
            wanted = self._subscribable(client, shake.frame.channels)
            self._start_receiving(client, session, wanted)
        sessions = self._listener.sessions
        if sessions.sharing is not None and client.session is session:
            sessions.share(
                session, self._key(shake, session.id), lambda: _content_of(client.outbox)
            )

    def _subscribable(self, client: ServedClient, channels: bytes) -> Mapping[Topic, Encoding]:
        """The topics of ``channels``; raises TopicNotFound before NotAuthorized."""
        topics = [self._channels.topic(channel) for channel in channels]
        for topic in topics:
            client.access.check_subscribe(topic.name)
        return {topic: self._channels.encoding(topic) for topic in topics}

    def _release(self, client: ServedClient, outbox: Outbox) -> None:
        del self._gaps[client]
        outbox.release()

    def _start_receiving(
        self, client: ServedClient, session: Session, wanted: Mapping[Topic, Encoding]
    ) -> None:
        listener = self._listener
        outbox = client.open_outbox()
        outbox.hold()
        self._gaps[client] = listener.clock.callLater(ACK_GAP, self._release, client, outbox)
        missed, session.subscriptions = session.subscriptions, EMPTY_MAP
        for topic, offset in missed.items():
            # Without topics that have ended, and those that the client may no longer read.
            if listener.topics.holds(topic) and client.access.may_subscribe(topic.name):
                # Encoded again: from UDP to TCP a frame can be longer.
                again = self._channels.encoding(topic)
                listener.router.subscribe(outbox, topic, again, offset, admitted=True)
        for topic, encoding in wanted.items():
            # Checked with the session, before the acknowledgment.
            listener.router.subscribe(outbox, topic, encoding, admitted=True)


def _content_of(outbox: Outbox | None) -> SessionContent:
    """Return the content of a session whose client is connected."""
    if outbox is None:
        return SessionContent()
    behind = {topic.name: at for topic, at in outbox.unsent().items()}
    live = [topic.name for topic in outbox.subscriptions if topic.name not in behind]
    return SessionContent(live, behind)
