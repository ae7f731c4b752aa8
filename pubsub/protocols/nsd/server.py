"""nsd's server: the factory and the settings (nsd §7.2)."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocolFactory
from twisted.logger import Logger

from pubsub.errors import Refused
from pubsub.protocols.nsd.channel_readers import channel_readers
from pubsub.protocols.nsd.codec import MAX_LINE
from pubsub.protocols.nsd.connection import NsdConnection
from pubsub.protocols.nsd.encoded_batches import EncodedBatches
from pubsub.protocols.nsd.identities import Identities
from pubsub.protocols.nsd.identity_moves import IdentityMoves
from pubsub.protocols.nsd.identity_proof import NO_PASSWORD, OPTIONAL, REQUIRED
from pubsub.protocols.nsd.known_publishes import KnownPublishes
from pubsub.protocols.nsd.requests import Requests
from pubsub.settings import Setting, choice, integer
from pubsub.wire.connection import ConnectionFactory

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.listeners.listener import Listener

log = Logger()
_BILLION = 10**9
SETTINGS: tuple[Setting, ...] = (
    Setting(
        "identity-password",
        choice(NO_PASSWORD, OPTIONAL, REQUIRED),
        NO_PASSWORD,
        "whether requests may or must have the password of their identity, of the users in "
        "password-file",
    ),
    Setting("max-body", integer(0, MAX_LINE), 1000, "maximum characters of a message's body"),
    Setting("max-identities", integer(0, _BILLION), 100_000, "maximum number of identities"),
    Setting(
        "max-subscriptions", integer(0, _BILLION), 10_000, "channels an identity may subscribe to"
    ),
)

# Bytes of messages that are kept encoded.
_ENCODED_BYTES = 4 * 1024 * 1024


class NsdFactory(ConnectionFactory):
    """Builds the connections of one listener; all listeners of a broker share its identities."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        # The identities are read when the store is open.
        listener.when_open(lambda: self._requests)

        self._publishes = KnownPublishes(listener)

    @property
    def _identities(self) -> Identities:
        listener = self.listener
        return listener.shared("nsd-identities", lambda: _load_identities(listener))

    @cached_property
    def _requests(self) -> Requests:
        return Requests(self.listener, self._identities, self._moves)

    @property
    def _moves(self) -> IdentityMoves | None:
        listener, identities = self.listener, self._identities
        sharing = listener.sessions.identities
        if sharing is None:
            return None
        return listener.shared(IdentityMoves, lambda: IdentityMoves(listener, identities, sharing))

    def buildProtocol(self, addr: IAddress | None) -> NsdConnection:
        """See IProtocolFactory."""
        encoded = self.listener.shared(
            "nsd-encoded-batches", lambda: EncodedBatches(_ENCODED_BYTES, self.listener.memory)
        )
        return NsdConnection(
            self.listener, self._identities, encoded, self._publishes, self._requests
        )


def _load_identities(listener: Listener) -> Identities:
    """The broker's identities; the topics they subscribe to may be hosted by a peer."""
    readers = channel_readers(listener)
    identities = Identities(listener.store, listener.memory, listener.clock.seconds, readers.leave)
    listener.unused_names.keepers.append(identities)
    listener.topics.watch_removal(
        lambda topic: identities.channel_ended(topic.name, topic.history_readers > 0)
    )
    # A channel may get its topic later, with messages that are refused.
    listener.topics.needs.append(
        lambda topic: topic.history_readers > 0 or identities.opened(topic.name, is_used=False)
    )
    # A limit may be lower than before.
    refused: dict[str, Refused] = {}
    for channel in identities.opened_channels():
        try:
            # Without a host, as a peer may host it: the topics of this broker are restored.
            listener.topics.create(channel, hosted=False)
        except Refused as error:
            refused[channel] = error
    for channel in identities.subscriptions():
        if (problem := readers.read(channel)) is not None:
            refused[channel] = problem
    if refused:
        first = next(iter(refused.values()))
        log.warn(
            "nsd: channels without a topic: {count} ({reason}: {refused}); raise max-topics or "
            "max-memory",
            count=len(refused),
            reason=first.reason,
            refused=first,
        )
    if listener.sessions.identities is None:
        identities.keep_all()
    return identities


def make_factory(listener: Listener) -> IProtocolFactory:
    """See IWireProtocol."""
    if listener.settings["identity-password"] != NO_PASSWORD:
        listener.passwords.accept("identity-password")
    listener.authenticates_requests(lambda settings: settings["identity-password"] == REQUIRED)
    return NsdFactory(listener)
