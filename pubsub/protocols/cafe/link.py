"""What is under a conversation: a stream, or what stands for a connection over UDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.listener import Listener
    from pubsub.broker.outbox import Outbox
    from pubsub.broker.publisher import PublishingConnection


class Link:
    """The connection that a conversation is mixed into.

    For type checkers: it is no base at run time, where it would hide the connection's methods.
    """

    listener: Listener
    outbox: Outbox | None
    closing: bool

    @property
    def peer(self) -> str:
        """Where the client is, as text."""
        raise NotImplementedError

    @property
    def publishing(self) -> PublishingConnection | None:
        """What backpressure can hold; None for a datagram's sender."""
        raise NotImplementedError

    def reply(self, data: bytes) -> None:
        """Send an answer."""
        raise NotImplementedError

    def refuse(
        self, reason: str, count: int = 1, topic: str | None = None, frame: bytes | None = None
    ) -> None:
        """Count requests that were answered with an error."""
        raise NotImplementedError

    def fail(self, reason: str, answer: bytes, frame: bytes | None = None) -> None:
        """The client broke the protocol: say so, count it, close."""
        raise NotImplementedError

    def close(self, last: bytes = b"") -> None:
        """Send ``last``, then close."""
        raise NotImplementedError

    def abort(self, reason: str) -> None:
        """Close at once."""
        raise NotImplementedError

    def open_outbox(self) -> Outbox:
        """The client's outbox, made when first asked for."""
        raise NotImplementedError
