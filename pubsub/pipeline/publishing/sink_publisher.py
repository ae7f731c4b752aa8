"""The publisher of a sink's task: it sends rows through the client library and confirms each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from operator import itemgetter

from pubsub.client import base_client
from pubsub.client.blocking import Client
from pubsub.client.client_errors import NotPublished, OutcomeUnknown
from pubsub.client.notices import Notice, Refusal, Uncertain

# Rows that are published together: enough to be fast, few enough to be held.
WINDOW_MESSAGES = 1000
WINDOW_BYTES = 1024 * 1024
_SinkRow = tuple[bytes | None, bytes]


class SinkPublisher:
    """Publishes over one connection; a context manager that closes it.

    ``url`` is for messages; ``connect`` gets the function that is called with notices, and returns
    a client. Messages given to ``add`` may still be on their way. After ``finish`` the broker has
    confirmed all of them, as far as the protocol can. Both raise ClientError. Messages of different
    topics may be reordered.
    """

    def __init__(self, url: str, connect: Callable[[Callable[[Notice], None]], Client]) -> None:
        self._url = url
        self._notices: list[Notice] = []
        self.client = connect(self._notices.append)
        self._rows: dict[str, list[_SinkRow]] = {}
        self._messages = 0
        self._bytes = 0

    def __enter__(self) -> SinkPublisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close(flush=False)

    def add(self, topic: str, payload: bytes, sender: bytes | None = None) -> None:
        """Publish a message. Only some protocols can express its sender."""
        self._rows.setdefault(topic, []).append((sender, payload))
        self._messages += 1
        self._bytes += len(payload)
        if self._messages >= WINDOW_MESSAGES or self._bytes >= WINDOW_BYTES:
            self._publish()

    def finish(self) -> None:
        """Return when the broker has confirmed all messages."""
        self._publish()
        self.client.flush()
        self._check()

    def _publish(self) -> None:
        rows, self._rows = self._rows, {}
        self._messages = self._bytes = 0
        if rows:
            self.client.call(lambda client: _publish_all(client, rows))
            self._check()

    def _check(self) -> None:
        for notice in self._notices:
            if isinstance(notice, Refusal):
                count = "a message" if notice.count == 1 else f"{notice.count} messages"
                text = f"{self._url}: {count} refused: {notice.reason}"
                raise NotPublished(text, notice.count, notice.count)
            if isinstance(notice, Uncertain):
                raise OutcomeUnknown(
                    f"{self._url}: {notice.reason}; {notice.count} messages may or may not have "
                    "been published"
                )


async def _publish_all(client: base_client.Client, rows: dict[str, list[_SinkRow]]) -> None:
    for topic, own in rows.items():
        for sender, same in groupby(own, itemgetter(0)):
            await client.publish_many(topic, [payload for _, payload in same], sender=sender)
