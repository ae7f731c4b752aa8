"""cafe's client: what its URLs contain, and its wire."""

from __future__ import annotations

from collections.abc import Mapping

from pubsub.errors import ConfigurationError
from pubsub.protocols.cafe.channels import CHANNELS
from pubsub.protocols.cafe.client_connection import CafeSession, Naming
from pubsub.protocols.cafe.client_id import RESUME
from pubsub.protocols.cafe.client_roles import CafePublisher, CafeSubscriber
from pubsub.protocols.cafe.codec import (
    MAX_MESSAGE,
)
from pubsub.settings import Setting
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide
from pubsub.wire.client_wire import ClientWire, Role, Traits, WireConnection, WireOptions

_MAX_NAME = 231


class CafeWire(ClientWire):
    """cafe with the channels of the parameter ``channels``, by default those named ``cafe/N``."""

    name = "cafe"
    traits = Traits(Level.HANDLED, resumes=True, timestamps=True)
    limit = MAX_MESSAGE

    def __init__(self, options: WireOptions) -> None:
        super().__init__(options)
        if len(options.client_id) > _MAX_NAME or RESUME in options.client_id:
            raise ConfigurationError(
                f"client id: cafe takes up to {_MAX_NAME} bytes without {RESUME.decode()!r}"
            )
        topics: Mapping[int, str] = options.values["channels"]
        channels = {name: channel for channel, name in topics.items()}
        self._naming = Naming(options.client_id, topics, channels)

    def topic_problem(self, topic: str) -> str:
        """See ``ClientWire``."""
        return "" if topic in self._naming.channels else "it is not the topic of a channel"

    def connect(self, role: Role, session: object = None) -> WireConnection:
        """See ``ClientWire``."""
        resume = session if isinstance(session, CafeSession) else None
        if role is Role.PUBLISHER:
            return CafePublisher(self._naming, resume)
        return CafeSubscriber(self._naming, resume)


CLIENT = ClientSide(
    CafeWire,
    port=7070,
    any_topic=False,
    options=(Setting("channels", CHANNELS, "0-255", "those of the listener"),),
)
