"""A client of the library that records the messages of the sink."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pubsub.client.notices import Notice


class RecordingClient:
    """Takes the place of ``pubsub.client.blocking.Client``; ``reply`` is reported by ``flush``."""

    def __init__(self, reply: Notice | None = None) -> None:
        self.published: list[tuple[str, list[bytes], bytes | None]] = []
        self.options: dict[str, Any] = {}
        self.url = ""
        self.closed = False
        self._reply = reply

    def connect(self, url: str, **options: Any) -> RecordingClient:
        """See ``pubsub.client.blocking.connect``."""
        self.url, self.options = url, options
        return self

    async def publish_many(
        self, topic: str, payloads: Sequence[bytes], *, sender: bytes | None = None
    ) -> None:
        """See ``ConnectedClient``."""
        self.published.append((topic, list(payloads), sender))

    def call(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """See ``pubsub.client.blocking.Client``. Nothing here waits."""
        try:
            work(self).send(None)
        except StopIteration:
            return
        raise AssertionError("the work waits")

    def flush(self) -> None:
        """See ``ConnectedClient``."""
        if self._reply is not None:
            self.options["on_event"](self._reply)

    def close(self, flush: bool = True) -> None:
        """See ``ConnectedClient``."""
        self.closed = True
