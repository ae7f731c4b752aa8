"""spot's client: the parameters of its URLs, and its wire."""

from __future__ import annotations

import secrets

from pubsub.errors import ConfigurationError
from pubsub.protocols.spot.client_connection import SpotSession
from pubsub.protocols.spot.client_roles import PublisherConnection, SubscriberConnection
from pubsub.protocols.spot.mechanisms import Login
from pubsub.settings import SIZE, Setting
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide
from pubsub.wire.client_wire import ClientWire, Role, Traits, UserLogin, WireConnection, WireOptions

# Bytes of a random number in hex, which makes the identities of subscribers unique.
_NUMBER_BYTES = 8
# RFC 37 allows 255; a subscriber adds a full stop and the number.
_MAX_LOGIN = 255
_MAX_CLIENT_ID = 255 - 1 - 2 * _NUMBER_BYTES


class SpotWire(ClientWire):
    """spot as a DEALER whose identity is the client id.

    A subscriber's identity has a random number too: a broker lets any client that knows an identity
    resume its subscriptions.
    """

    name = "spot"
    traits = Traits(Level.HANDLED, senders=True, prefixes=True)

    def __init__(self, options: WireOptions) -> None:
        super().__init__(options)
        if len(options.client_id) > _MAX_CLIENT_ID:
            raise ConfigurationError(f"client id: spot takes up to {_MAX_CLIENT_ID} bytes")
        self._login = None if options.login is None else _login(options.login)
        number = secrets.token_hex(_NUMBER_BYTES).encode()
        self._subscriber = options.client_id + b"." + number
        self.limit = options.values["max-message"]

    def connect(self, role: Role, session: object = None) -> WireConnection:
        """See ``ClientWire``."""
        if role is Role.PUBLISHER:
            return PublisherConnection(self.options.client_id, self._login)
        resume = session if isinstance(session, SpotSession) else None
        return SubscriberConnection(self._subscriber, resume, self._login)


def _login(login: UserLogin) -> Login:
    """Return the user and the password of PLAIN; raises ConfigurationError."""
    user, password = login.user.encode(), login.password.encode()
    if max(len(user), len(password)) > _MAX_LOGIN:
        raise ConfigurationError(f"spot takes a user and a password of up to {_MAX_LOGIN} bytes")
    return Login(user, password)


CLIENT = ClientSide(
    SpotWire,
    port=7073,
    logs_in=True,
    columns=("key",),
    parameters=(Setting("max-message", SIZE, "1M", "that of the listener"),),
)
