"""Hints for operators: the settings that a client of another layout needs (rheos §7)."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING
from zlib import crc32

from twisted.logger import Logger

from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.errors import InvalidTopicName
from pubsub.protocols.rheos.codec import CHECKSUM_SIZE, LAYOUTS, Codec, RheosError

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.wire.stream_client import StreamClient

log = Logger()


class LayoutHints:
    """Examines malformed requests on ``listener`` until one fits other settings; logs those."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._given = False

    def examine(self, data: bytes, at: int, client: StreamClient, understood: bool) -> None:
        """Examine the malformed request of ``client`` that begins at ``at``.

        ``understood`` if the client has sent another request before.
        """
        settings = self._listener.settings
        # A checksum that fitted has proved the layout: this request is damaged.
        if self._given or (understood and settings["checksum"] == "crc32"):
            return
        found = _fitting(data, at, settings["layout"])
        if found is not None and found != (settings["layout"], settings["checksum"]):
            self._given = True
            log.warn(
                "rheos on {endpoint}: a request of {client!r} has another layout; if its program "
                "is to be served, set layout={layout} and checksum={checksum}",
                endpoint=self._listener.endpoint,
                client=client.label,
                connection=client.log_fields(),
                layout=found[0],
                checksum=found[1],
            )


def _fitting(data: bytes, at: int, layout: str) -> tuple[str, str] | None:
    """Return the layout and checksum with which there is a whole request at ``at``."""
    # A checksum that fits proves its layout, so these come first.
    for checksum, name in product(("crc32", "off"), LAYOUTS):
        try:
            decoded = Codec(name, checksum == "crc32").decode(data, at)
            if decoded is not None:
                topic_name(decoded[0].topic)
                return name, checksum
        except (RheosError, InvalidTopicName):
            continue
    # Where no checksum is expected, that of the first request looks like the next request.
    following = data[at : at + CHECKSUM_SIZE]
    if at and following == crc32(data[:at]).to_bytes(CHECKSUM_SIZE, "little"):
        return layout, "crc32"
    return None
