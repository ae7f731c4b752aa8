"""What the messages of a ZMTP connection mean: the interface of its role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pubsub.kernel import Columns
    from pubsub.protocols.spot.codec import Publish
    from pubsub.protocols.spot.zmtp import Command


class Role(Protocol):
    """This broker's side of a connection, which depends on the socket types of both ends."""

    def command(self, command: Command) -> None:
        """Carry out a command other than PING and PONG; raises SpotError or Refused."""

    def message(self, frames: list[bytes]) -> Publish | None:
        """Carry out a message, or return it if it is a publication; raises SpotError, Refused."""

    def receive(self, columns: Columns) -> None:
        """Handle publications; the addresses of ``columns`` are ``Publication`` objects."""

    def pause(self) -> None:
        """The transport has more than it can send now."""

    def resume(self) -> None:
        """The transport has sent all it had."""

    def closed(self) -> None:
        """The connection has ended."""
