"""spot's server: the connection of a client, the factory, the settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IProtocolFactory
from twisted.logger import Logger

from pubsub.broker.credentials.identity import PASSWORD, Identity
from pubsub.broker.publishing.address_mixes import AddressMixes
from pubsub.broker.topic_space.prefix_subscriptions import PrefixSubscriptions
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import ConfigurationError, PasswordsBusy, Refused
from pubsub.protocols.spot.broker_commands import EPOCH, NODE
from pubsub.protocols.spot.cluster import PEERS, Cluster
from pubsub.protocols.spot.connection import ZmtpConnection
from pubsub.protocols.spot.identity_sessions import ClientSessions
from pubsub.protocols.spot.listener_roles import RouterSide, XPubSide, XSubSide
from pubsub.protocols.spot.mechanisms import PlainServer
from pubsub.protocols.spot.message_heads import KnownPublications, Publication
from pubsub.protocols.spot.refusal_reports import REFUSALS, RefusalReport
from pubsub.protocols.spot.refusals import INVALID_SOCKET_TYPE, NOT_ADMITTED
from pubsub.protocols.spot.security import SETTINGS as SECURITY_SETTINGS
from pubsub.protocols.spot.security import check_peers, identity_of_key, server_mechanisms
from pubsub.protocols.spot.zmtp import (
    SERVER_TYPES,
    Command,
    FrameLimits,
    ZmtpError,
    encode_command,
    encode_message,
    error,
    ping,
)
from pubsub.settings import FILE, SECONDS, SIZE, Setting, integer, number
from pubsub.wire.connection import ConnectionFactory
from pubsub.wire.outgoing_tls import ClientFiles
from pubsub.wire.peer_address import network_of

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.credentials.passwords import PasswordCheck
    from pubsub.broker.listeners.listener import Listener
    from pubsub.protocols.spot.mechanisms import Login, Mechanism, Mechanisms
    from pubsub.protocols.spot.role import SocketRole

log = Logger()
# Sweeps after which a session that another one prevented from being shared is tried again.
_SHARE_TICKS = 30
SETTINGS: tuple[Setting, ...] = (
    Setting("peers", PEERS, "", "a broker to share topics with; may be repeated", flag="peer"),
    Setting(
        "peer-ca",
        FILE,
        "",
        "a file in PEM with the authorities of the certificates of tls:// peers; default: those "
        "of the system",
        flag="peer-ca",
    ),
    Setting(
        "peer-cert",
        FILE,
        "",
        "a file in PEM with the certificate for tls:// peers",
        flag="peer-cert",
    ),
    Setting(
        "peer-key",
        FILE,
        "",
        "a file in PEM with its key; default: peer-cert has it",
        flag="peer-key",
    ),
    Setting("sync", SECONDS, 10, "seconds between two queries for the topics that a peer hosts"),
    Setting("query-timeout", SECONDS, 2, "seconds that a peer has to answer a query"),
    Setting(
        "confirm-seconds", number(0.1, 3600), 30, "seconds that a peer has to confirm messages"
    ),
    Setting(
        "heartbeat",
        number(1, 3600),
        2,
        "seconds between two heartbeats; a peer that is silent for three times as long is gone",
    ),
    Setting("max-message", SIZE, "1M", "maximum bytes of a frame"),
    Setting("max-subscriptions", integer(0, 10**9), 10_000, "subscriptions of a connection"),
    *SECURITY_SETTINGS,
)


class SpotConnection(ZmtpConnection):
    """A socket that has connected to a listener."""

    _password_check: PasswordCheck | None = None
    # No input is handled before the session is here.
    _waits = False
    _reports_refusals = False
    # The keys by which the client was admitted.
    _keys: Mapping[str, str] | None = None

    def __init__(self, factory: SpotFactory) -> None:
        super().__init__(factory.listener, factory.limits, factory.mechanisms)
        self._factory = factory
        # Not on the class: a connection that got more attributes later would take 700 bytes more.
        self._ticks_since_ping = self._ticks_since_share = 0

    def connectionMade(self) -> None:
        """See ``Connection``."""
        super().connectionMade()
        if not self.closing:
            self.start()

    # Handshake

    def log_in(self, login: Login) -> None:
        """See ``ZmtpConnection``. Nothing is read until the password is verified."""
        user = login.user.decode(errors="replace")
        check = self.listener.passwords.verify(
            user,
            login.password,
            network_of(self.identity.host),
            partial(self._logged_in, user),
        )
        if check.pending:
            self._password_check = check
            self._paused = True
            self.hold("password")

    def _logged_in(self, user: str, refused: Refused | None) -> None:
        mechanism = self.handshake.mechanism
        assert isinstance(mechanism, PlainServer)
        self._password_check = None
        if isinstance(refused, PasswordsBusy):
            # After an ERROR the peer would not try again.
            self.fail(refused.reason, b"")
        elif refused is not None:
            self.fail(refused.reason, error(NOT_ADMITTED))
        else:
            self.identify(Identity(user, PASSWORD, host=self.identity.host))
            self.reply(mechanism.welcome())
        if self._paused:
            self._paused = False
            self.release("password")
            self.parse_buffered()

    def _check_key(self) -> None:
        """Identify a client that has proved its key; raises ZmtpError if it is not admitted."""
        key = self.handshake.mechanism.client_key if self.handshake.mechanism else b""
        if key:
            self._keys = self.listener.settings["curve-clients"]
            identity = identity_of_key(self._keys, key, self.identity.host)
            if identity is None:
                raise ZmtpError("unknown-key", error(NOT_ADMITTED))
            self.identify(identity)

    def _check_key_again(self, mechanism: Mechanism) -> None:
        """The keys have changed: the client has another identity, or is not admitted any more."""
        self._keys = self.listener.settings["curve-clients"]
        identity = identity_of_key(self._keys, mechanism.client_key, self.identity.host)
        if identity is None:
            self.refuse("unknown-key")
            self.abort("its key is no longer admitted")
        else:
            self.identify(identity)

    def handshake_done(self) -> SocketRole:
        """See ``ZmtpConnection``: our socket type, and so our READY, depends on the peer's."""
        self._check_key()
        ours = SERVER_TYPES.get(self.handshake.socket_type)
        if ours is None:
            raise ZmtpError("socket-type", error(INVALID_SOCKET_TYPE))
        properties = {NODE: b"%015x" % self.listener.dispatcher.run_id}
        self._reports_refusals = REFUSALS.lower() in self.handshake.metadata
        if self._reports_refusals:
            properties[REFUSALS] = b"1"
        if self.is_node:
            properties[EPOCH] = self.listener.store.epoch.encode()
        self.reply(self.handshake.ready(ours, properties))
        self.encrypt()
        self.known = self._factory.known[ours]
        if ours == b"ROUTER":
            role = RouterSide(self, self._factory.mixes, self._factory.prefix_readers)
            self._factory.sessions.open(self, role.begin)
            return role
        if ours == b"XPUB":
            return XPubSide(self, self._factory.prefix_readers)
        if self.handshake.has_commands:
            self.reply(encode_command(Command(b"SUBSCRIBE")))
        else:
            self.reply(encode_message([b"\x01"]))
        return XSubSide(self, self._factory.mixes)

    def refuse(
        self, reason: str, count: int = 1, topic: str | None = None, frame: bytes | None = None
    ) -> None:
        """See ``Connection``; a client that has requested it gets a REFUSED (§5.3)."""
        super().refuse(reason, count, topic, frame)
        if self._reports_refusals and not self.closing:
            self.reply(RefusalReport(count, reason, (topic or "").encode()).encode())

    def wait_for(self, done: Deferred[Any]) -> None:
        """Handle no input before ``done`` fires, which has a deadline."""
        self._paused = self._waits = True
        self.hold("session")
        done.addBoth(self._waited)

    def _waited(self, _: object) -> None:
        self._waits = False
        if not self.closing:
            self.release("session")
            self._resume_input()

    def _resume_input(self) -> None:
        if not self._waits:
            super()._resume_input()

    def shared_sessions(self) -> Iterable[str]:
        """See ``Connection``."""
        role = self._role
        return role.shared_sessions() if isinstance(role, RouterSide) else ()

    def ended(self) -> None:
        """See ``Connection``."""
        if self._password_check is not None:
            self._password_check.cancel()
        super().ended()

    def sweep(self, now: float) -> None:
        """See ``ConnectedClient``. A broker that is held from reading gets heartbeats from here."""
        super().sweep(now)
        mechanism = self.handshake.mechanism
        proved = mechanism is not None and mechanism.client_key and self.handshake.done
        changed = self._keys is not self.listener.settings["curve-clients"]
        if mechanism is not None and proved and changed and not self.closing:
            self._check_key_again(mechanism)
        self._ticks_since_share += 1
        if self._ticks_since_share >= _SHARE_TICKS and isinstance(self._role, RouterSide):
            self._ticks_since_share = 0
            self._role.share_again()
        self._ticks_since_ping += 1
        if self._ticks_since_ping < self.listener.settings["heartbeat"]:
            return
        self._ticks_since_ping = 0
        if self.is_node and not self.closing and not self.output_full:
            self.reply(ping(b""))


class SpotFactory(ConnectionFactory):
    """Builds the connections of one listener."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.prefix_readers = PrefixSubscriptions.of(listener)
        self.sessions = ClientSessions(listener)
        self.limits = FrameLimits(frame=listener.settings["max-message"])
        self._settings: Mapping[str, Any] = {}
        self._mechanisms: Mechanisms = {}
        # By our socket type: a ROUTER and an XSUB read the same bytes differently.
        self.mixes = AddressMixes(listener, self._topic_of)
        self.known: Mapping[bytes, KnownPublications] = {
            ours: KnownPublications(
                self.limits.frame,
                listener.memory,
                listener.frame_turns,
                listener.at_tick_end,
                self.mixes.clear,
            )
            for ours in SERVER_TYPES.values()
        }

    @property
    def mechanisms(self) -> Mechanisms:
        """The mechanisms that clients may use by the current settings."""
        if self._settings is not self.listener.settings:
            try:
                self.read_mechanisms()
            except ConfigurationError as problem:
                log.error("spot: {problem}; clients use the previous settings", problem=problem)
        return self._mechanisms

    def read_mechanisms(self) -> None:
        """Read the mechanisms that clients may use; raises ConfigurationError."""
        listener = self.listener
        self._settings = listener.settings
        self._mechanisms = server_mechanisms(listener.settings, listener.passwords.accept)

    def _topic_of(self, publication: Publication) -> Topic:
        return self.listener.topics.existing(publication.topic)

    def buildProtocol(self, addr: IAddress | None) -> SpotConnection:
        """See IProtocolFactory."""
        return SpotConnection(self)


def make_factory(listener: Listener) -> IProtocolFactory:
    """See ``IWireProtocol``; also joins the cluster of the configured peers."""
    settings = listener.settings
    files = ClientFiles("peer", settings["peer-ca"], settings["peer-cert"], settings["peer-key"])
    files.check()
    factory = SpotFactory(listener)
    # Errors in the settings are found now.
    factory.read_mechanisms()
    listener.authenticates_requests(lambda settings: "null" not in settings["mechanism"])
    check_peers(settings)
    listener.when_added(lambda: _join(listener, settings["peers"], files))
    return factory


def _join(listener: Listener, peers: Iterable[str], files: ClientFiles) -> None:
    for peer in peers:
        listener.shared("spot-cluster", lambda: Cluster(listener)).join(peer, files)
