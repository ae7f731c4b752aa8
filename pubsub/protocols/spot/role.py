"""The interfaces of the role of a ZMTP connection (spot §2.3), and of its client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import AccessRules
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.kernel import Columns
    from pubsub.protocols.spot.commands import Publish
    from pubsub.protocols.spot.zmtp import Command


class SocketRole(Protocol):
    """This broker's side of a connection, which depends on the socket types of both ends."""

    def command(self, command: Command) -> None:
        """Carry out a command other than PING and PONG; raises SpotError or Refused."""

    def message(self, frames: list[bytes]) -> Publish | None:
        """Carry out a message, or return it if it is a publication; raises SpotError, Refused."""

    def receive(self, columns: Columns) -> int | None:
        """Handle publications; the addresses of ``columns`` are ``Publication`` objects.

        Returns how many were handled before others have their turn; None stands for all.
        """

    def pause(self) -> None:
        """The transport has more than it can send now."""

    def resume(self) -> None:
        """The transport has sent all its bytes."""

    def routed_outboxes(self) -> Iterable[Outbox]:
        """Return the outboxes of the clients behind the connection."""

    def closed(self) -> None:
        """The connection has ended."""


class RequestingClient(Protocol):
    """The client that makes the requests: a connection, or one client behind a connection."""

    listener: Listener
    outbox: Outbox | None

    @property
    def access(self) -> AccessRules:
        """The rights of the client."""

    @property
    def closing(self) -> bool:
        """True if no more requests are carried out."""

    @property
    def is_node(self) -> bool:
        """True if the client is a broker of this kind."""

    def open_outbox(self) -> Outbox:
        """Return the client's outbox, which is created by the first call."""

    def carry_out(self, work: Work) -> None:
        """See ``ZmtpConnection``."""

    def refuse(self, reason: str, count: int = 1, topic: str | None = None) -> None:
        """Count refused requests."""

    def reply_latest(self, kind: str, data: bytes) -> None:
        """See ``ZmtpConnection``."""
