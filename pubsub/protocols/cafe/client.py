"""cafe's client: the parameters of its URLs, and its wire."""

from __future__ import annotations

from collections.abc import Mapping

from pubsub.errors import ConfigurationError
from pubsub.protocols.cafe.channels import CHANNELS
from pubsub.protocols.cafe.client_connection import CafeSession, Naming
from pubsub.protocols.cafe.client_id import PASSWORD, RESUME
from pubsub.protocols.cafe.client_roles import CafePublisher, CafeSubscriber
from pubsub.protocols.cafe.codec import (
    MAX_MESSAGE,
)
from pubsub.settings import Setting
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide
from pubsub.wire.client_wire import ClientWire, Role, Traits, UserLogin, WireConnection, WireOptions

_MAX_NAME = 231


class CafeWire(ClientWire):
    """cafe with the channels of the parameter ``channels``, by default those named ``cafe/N``."""

    name = "cafe"
    traits = Traits(Level.HANDLED)
    limit = MAX_MESSAGE

    def __init__(self, options: WireOptions) -> None:
        super().__init__(options)
        login = options.login
        name = options.client_id if login is None else _client_id(login, options.client_id)
        if len(name) > _MAX_NAME or RESUME in name:
            raise ConfigurationError(
                f"client id: cafe takes up to {_MAX_NAME} bytes without {RESUME.decode()!r}, "
                "with the password if there is one"
            )
        topics: Mapping[int, str] = options.values["channels"]
        channels = {name: channel for channel, name in topics.items()}
        self._naming = Naming(name, topics, channels)

    def topic_problem(self, topic: str) -> str:
        """See ``ClientWire``."""
        return "" if topic in self._naming.channels else "it is not the topic of a channel"

    def connect(self, role: Role, session: object = None) -> WireConnection:
        """See ``ClientWire``."""
        resume = session if isinstance(session, CafeSession) else None
        if role is Role.PUBLISHER:
            return CafePublisher(self._naming, resume)
        return CafeSubscriber(self._naming, resume)


def _client_id(login: UserLogin, client_id: bytes) -> bytes:
    """Return the ClientID of a user with a password (cafe §3.9)."""
    user = login.user.encode()
    if PASSWORD in user or (client_id and client_id != user):
        raise ConfigurationError("client id: with a password it is the user, without a colon")
    return user + PASSWORD + login.password.encode()


CLIENT = ClientSide(
    CafeWire,
    port=7070,
    any_topic=False,
    logs_in=True,
    options=(Setting("channels", CHANNELS, "0-255", "those of the listener"),),
)
