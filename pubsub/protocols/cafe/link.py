"""What is under a conversation: a stream, or what stands for a connection over UDP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pubsub.broker.listener import Listener
    from pubsub.broker.outbox import Outbox
    from pubsub.interfaces import Publishing


class Link(Protocol):
    """The connection under a conversation."""

    listener: Listener
    outbox: Outbox | None
    closing: bool
    peer: str

    @property
    def publishing(self) -> Publishing | None:
        """What backpressure can hold; None for a datagram's sender."""

    def reply(self, data: bytes) -> None: ...

    def refuse(
        self, reason: str, count: int = 1, topic: str | None = None, frame: bytes | None = None
    ) -> None: ...

    def fail(self, reason: str, answer: bytes, frame: bytes | None = None) -> None: ...

    def close(self, last: bytes = b"") -> None: ...

    def abort(self, reason: str) -> None: ...

    def open_outbox(self) -> Outbox: ...
