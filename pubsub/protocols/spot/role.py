"""What the messages of a ZMTP connection mean: the interface of its role, and publications."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pubsub.broker.message_run import MessageRun
    from pubsub.protocols.spot.codec import Publish
    from pubsub.protocols.spot.zmtp import Command


@dataclass(frozen=True, slots=True)
class MessageHead:
    """The bytes of a publication before its data, and the fields that they encode."""

    wire: bytes
    topic: str
    origin: bytes | None


class Role(Protocol):
    """This broker's side of a connection, which depends on the socket types of both ends."""

    def command(self, command: Command) -> None:
        """Carry out a command other than PING and PONG; raises SpotError or Refused."""

    def message(self, frames: list[bytes]) -> Publish | None:
        """Carry out a message, or return it if it is a publication; raises SpotError, Refused."""

    def receive(self, head: MessageHead, run: MessageRun) -> None:
        """Handle publications that begin with ``head``."""

    def closed(self) -> None:
        """The connection has ended."""
