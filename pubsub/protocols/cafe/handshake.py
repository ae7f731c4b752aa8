"""The handshakes of cafe's clients: passwords, sessions, and the acknowledgment (cafe §4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pubsub.broker.compact_map import EMPTY_MAP
from pubsub.broker.identity import PASSWORD, Identity
from pubsub.errors import Refused, WrongPassword
from pubsub.protocols.cafe.client_id import split_client_id, split_login
from pubsub.protocols.cafe.codec import (
    ErrorCode,
    HandshakeAck,
    HandshakePub,
    HandshakeSub,
    encode,
)
from pubsub.protocols.cafe.refusals import code_of, error
from pubsub.protocols.cafe.served_client import State
from pubsub.wire.peer_address import network_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pubsub.broker.listener import Listener
    from pubsub.broker.passwords import PasswordCheck
    from pubsub.broker.sessions import Session
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import Encoding
    from pubsub.protocols.cafe.channels import Channels
    from pubsub.protocols.cafe.served_client import ServedClient

# Clients read the acknowledgment with one recv and would lose what came with it (cafe §4.3).
ACK_GAP = 0.02
# Whether the ClientID has a password: the values of ``client-id-password``.
NO_PASSWORD, OPTIONAL, REQUIRED = "none", "optional", "required"
# The source of all passwords in datagrams: one sender can write any number of addresses.
_UNPROVED = "udp"


def shown(settings: Mapping[str, Any], frame: bytes) -> bytes:
    """Return what events show of a malformed frame: nothing where it may have a password.

    A handshake that is damaged is not recognized as one.
    """
    takes_passwords = settings["client-id-password"] != NO_PASSWORD
    return b"" if takes_passwords and b":" in frame else frame


def _source_of(client: ServedClient) -> str:
    """Return by what the passwords of ``client`` that wait are counted."""
    proved = getattr(client, "proves_address", True)
    return network_of(client.identity.host) if proved else _UNPROVED


def reject(client: ServedClient, code: ErrorCode, reason: str, frame: bytes | None = None) -> None:
    """Answer a handshake with ``code``, and close."""
    client.fail(reason, encode(HandshakeAck(code, 0)), frame)


class Handshakes:
    """Handles the handshakes of the clients of ``listener``, which offers ``channels``."""

    def __init__(self, listener: Listener, channels: Channels) -> None:
        self._listener = listener
        self._channels = channels

    def receive(self, client: ServedClient, frame: HandshakePub | HandshakeSub) -> None:
        """Handle a handshake: open or resume a session, or reject the client."""
        if client.state is not State.NEW:
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
        listener = self._listener
        sessions = listener.sessions
        state = State.PUBLISHER if isinstance(frame, HandshakePub) else State.SUBSCRIBER
        # A name that is proved is another one than the same name that is not.
        kind = listener.session_kind((state, client.identity.proof == PASSWORD))
        session = None if number is None else sessions.find(number, kind, name)
        if isinstance(frame, HandshakePub):
            client.access.check_publish(self._channels.topic(frame.channel).name)
            wanted: Mapping[Topic, Encoding] = {}
        else:
            wanted = self._subscribable(client, frame.channels)
        if session is None:
            session = sessions.open(kind, name, client)
        else:
            sessions.resume(session, client)
        client.session, client.state, client.name = session, state, name
        client.end_handshake()
        client.reply(encode(HandshakeAck(0, session.id)))
        if state is State.PUBLISHER:
            client.publisher = listener.publisher(client.publishing, name)
            client.publisher.access = client.access
        else:
            self._start_receiving(client, session, wanted)

    def _subscribable(self, client: ServedClient, channels: bytes) -> Mapping[Topic, Encoding]:
        """The topics of ``channels``; raises TopicNotFound before NotAuthorized."""
        topics = [self._channels.topic(channel) for channel in channels]
        for topic in topics:
            client.access.check_subscribe(topic.name)
        return {topic: self._channels.encoding(topic) for topic in topics}

    def _start_receiving(
        self, client: ServedClient, session: Session, wanted: Mapping[Topic, Encoding]
    ) -> None:
        listener = self._listener
        outbox = client.open_outbox()
        outbox.hold()
        listener.clock.callLater(ACK_GAP, outbox.release)
        missed, session.subscriptions = session.subscriptions, EMPTY_MAP
        for topic, offset in missed.items():
            # Without topics that have ended, and those that the client may no longer read.
            if listener.topics.holds(topic) and client.access.may_subscribe(topic.name):
                # Encoded again: from UDP to TCP a frame can be longer.
                again = self._channels.encoding(topic)
                listener.router.subscribe(outbox, topic, again, offset)
        for topic, encoding in wanted.items():
            listener.router.subscribe(outbox, topic, encoding)
