"""A client as its conversation sees it: a stream, or a peer that sends datagrams (cafe §7)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import AccessRules
    from pubsub.broker.clients.sessions import Session
    from pubsub.broker.credentials.identity import Identity
    from pubsub.broker.credentials.passwords import PasswordCheck
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.publishing.publisher import Publisher, PublishingConnection


class ClientState(Enum):
    """The state of a client (see ``conversation.py``)."""

    NEW = "new"
    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"


class ServedClient(Protocol):
    """One client: the state of its conversation, and the means to reply to it.

    Only ``Conversations`` and its ``Handshakes`` change the state.
    """

    state: ClientState
    name: bytes
    """The name that the client gave in its handshake."""
    session: Session | None
    publisher: Publisher | None
    outbox: Outbox | None
    closing: bool
    password_check: PasswordCheck | None
    """The verification of the client's password, for which further input waits."""

    @property
    def identity(self) -> Identity:
        """The identity that the client has proved."""

    def identify(self, identity: Identity) -> None:
        """Replace the identity."""

    def hold_input(self) -> None:
        """Handle no input until ``resume_input``."""

    def resume_input(self) -> None:
        """Handle the input that was held back."""

    def turn_over(self) -> bool:
        """Count a frame; return whether others have their turn before the next one."""

    @property
    def access(self) -> AccessRules:
        """The rights of the client."""

    @property
    def peer(self) -> str:
        """The client's address as text."""

    @property
    def publishing(self) -> PublishingConnection | None:
        """The connection that backpressure can hold; None for the sender of datagrams."""

    def reply(self, data: bytes) -> None:
        """Send a reply."""

    def pong(self, data: bytes) -> None:
        """Send a reply that confirms the messages before it."""

    def refuse(
        self, reason: str, count: int = 1, topic: str | None = None, frame: bytes | None = None
    ) -> None:
        """Count requests that were answered with an error."""

    def fail(self, reason: str, answer: bytes, frame: bytes | None = None) -> None:
        """The client broke the protocol: count that, send ``answer``, close."""

    def close(self, last: bytes = b"") -> None:
        """Send ``last``, then close."""

    def displaced(self) -> None:
        """Another connection resumed the client's session (see ``SessionOwner``)."""

    def end_handshake(self) -> None:
        """The handshake is done: its time limit no longer applies."""

    def open_outbox(self) -> Outbox:
        """The client's outbox, which is created by the first call."""


def label_of(client: ServedClient) -> str:
    """The client's name in counters and logs."""
    name = client.name.decode(errors="replace")
    return f"{name}@{client.peer}" if name else client.peer


DISPLACED = "its session was resumed by another connection"
"""The reason with which ``displaced`` closes the connection."""
