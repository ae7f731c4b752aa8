"""The client of all shells: checks, links and their drivers, on any runtime."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal, Never, overload

from pubsub.client.client_errors import OutcomeUnknown
from pubsub.client.client_options import ClientOptions
from pubsub.client.feed import Feed
from pubsub.client.history_calls import HistoryCalls
from pubsub.client.messages import Message
from pubsub.client.notices import Gap, Notice, Refusal, Uncertain
from pubsub.client.publish_calls import TURN_BYTES, PublishCalls
from pubsub.client.request_checks import (
    BytesLike,
    as_bytes,
    as_payloads,
    check_subscription,
    interests_of,
)
from pubsub.client.runtime import Runtime
from pubsub.client.subscribing_link import SubscribingLink
from pubsub.client.subscription import Subscription
from pubsub.kernel import Columns
from pubsub.wire.client_events import Level
from pubsub.wire.client_wire import Headers

_log = logging.getLogger("pubsub.client")


class Client(PublishCalls):
    """A client of one broker, or of several of which it uses one at a time.

    Its connections are made by the first requests that need them.
    Use it in ``async with``, or call ``close``.
    """

    def __init__(self, runtime: Runtime, options: ClientOptions) -> None:
        super().__init__(runtime, options)
        self._history = HistoryCalls(runtime, options, self._links)
        self._closed = False
        # The messages are confirmed, or given up.
        self._flushed = False
        self._cancel_end = runtime.at_end(self._end)

    def __del__(self) -> None:
        if not self._closed:
            self._links.warn()

    def __repr__(self) -> str:
        return f"<Client of {self._options.shown}>"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self.close(flush=error is None)

    # Publishing

    @overload
    async def publish(
        self, topic: str, payload: BytesLike | str, *, confirm: Literal[False] = ...,
        sender: BytesLike | str | None = ..., headers: Headers | None = ...,
    ) -> None: ...  # fmt: skip

    @overload
    async def publish(
        self, topic: str, payload: BytesLike | str, *, confirm: Literal[True] | Level,
        sender: BytesLike | str | None = ..., headers: Headers | None = ...,
    ) -> Level: ...  # fmt: skip

    @overload
    async def publish(
        self, topic: str, payload: BytesLike | str, *, confirm: bool | Level,
        sender: BytesLike | str | None = ..., headers: Headers | None = ...,
    ) -> Level | None: ...  # fmt: skip

    async def publish(
        self,
        topic: str,
        payload: BytesLike | str,
        *,
        confirm: bool | Level = False,
        sender: BytesLike | str | None = None,
        headers: Headers | None = None,
    ) -> Level | None:
        """Publish a message: bytes or the like, or text, which is sent as UTF-8.

        Returns when the message is queued, or with ``confirm`` when the broker has confirmed it:
        then the level that was reached. A ``Level`` as ``confirm`` is the required minimum; True
        stands for the level that the topic's durability requires, if that is known. Raises
        ClientError, and TypeError for a value of a wrong type.
        """
        columns = Columns.one(as_bytes(payload))
        return await self._publish(topic, columns, confirm, sender, headers)

    @overload
    async def publish_many(
        self, topic: str, payloads: Sequence[BytesLike | str], confirm: Literal[False] = ..., *,
        sender: BytesLike | str | None = ..., headers: Headers | None = ...,
    ) -> None: ...  # fmt: skip

    @overload
    async def publish_many(
        self, topic: str, payloads: Sequence[BytesLike | str], confirm: bool | Level, *,
        sender: BytesLike | str | None = ..., headers: Headers | None = ...,
    ) -> Level | None: ...  # fmt: skip

    async def publish_many(
        self,
        topic: str,
        payloads: Sequence[BytesLike | str],
        confirm: bool | Level = False,
        *,
        sender: BytesLike | str | None = None,
        headers: Headers | None = None,
    ) -> Level | None:
        """Publish messages of one topic, in order; see ``publish``.

        Without payloads there is no level.
        """
        plain = not confirm and sender is None and headers is None
        if plain and self._send_at_once(topic, payloads):
            if self._unbroken >= TURN_BYTES:
                await self._pause()
            return None
        checked = as_payloads(payloads)
        if not checked:
            return None
        return await self._publish(topic, Columns.gather(checked), confirm, sender, headers)

    async def flush(self) -> None:
        """Return when no published message is queued or unconfirmed.

        Raises OutcomeUnknown after ``timeout`` seconds without a reply of the broker to a message,
        and if the client is closed without waiting for the replies. Messages that were refused,
        or lost with a connection, are counted by notices.
        """
        await self._flush(self._options.timeout)

    # Subscribing

    @overload
    def subscribe(
        self, *topics: str, start: int | None = ..., prefixes: Sequence[str] = ...,
        events: Literal[False] = ..., reader: str | None = ...,
    ) -> Subscription[Never]: ...  # fmt: skip

    @overload
    def subscribe(
        self, *topics: str, start: int | None = ..., prefixes: Sequence[str] = ..., events: bool,
        reader: str | None = ...,
    ) -> Subscription[Notice]: ...  # fmt: skip

    def subscribe(
        self,
        *topics: str,
        start: int | None = None,
        prefixes: Sequence[str] = (),
        events: bool = False,
        reader: str | None = None,
    ) -> Subscription[Notice]:
        """Subscribe to ``topics``, and to those whose names begin with one of ``prefixes``.

        ``start`` is the offset of the first message, None for those that are published from now
        on. With ``reader`` it is where that reader begins which has no position; the others
        continue at the position of their last ``commit``. See ``Subscription`` for ``events``.
        Raises ClientError, and TypeError for a value of a wrong type.
        """
        self._check_open()
        if reader is not None:
            return self._history.subscribe(reader, topics, prefixes, start, events)
        interests = interests_of(topics, prefixes, start)
        wire, brokers = self._links.wire_for(start)
        check_subscription(wire, topics, prefixes, start)
        # Where positions are kept, it is by topic: prefixes would cover those of others.
        own = start is not None or wire.single_topic or (prefixes and wire.traits.survives)
        feed = Feed(interests, self._options.feed_bytes, events)
        driver = self._links.reader(wire, brokers) if own else self._links.subscriber()
        link = driver.link
        assert isinstance(link, SubscribingLink)
        feed.on_room = driver.step_soon
        link.add(feed, driver.now())
        self._links.start(driver)
        driver.step()
        return Subscription(self._runtime, feed, lambda: self._links.leave(driver, feed))

    async def last(self, topic: str, count: int = 1) -> list[Message]:
        """Return the last ``count`` messages of ``topic`` in the history, the oldest first.

        There may be fewer. Raises ClientError, and TypeError for a value of a wrong type.
        """
        self._check_open()
        return await self._history.last(topic, count)

    # Notices and the end

    def _report(self, notice: Notice) -> None:
        if isinstance(notice, Gap | Uncertain | Refusal):
            _log.warning("%s: %s", self._options.shown, notice)
        else:
            _log.info("%s: %s", self._options.shown, notice)
        if self._options.on_event is not None:
            try:
                self._options.on_event(notice)
            except self._runtime.callback_errors:
                # A link calls this while it changes its state.
                _log.exception("%s: on_event failed", self._options.shown)

    async def close(self, flush: bool = True) -> None:
        """Send the queued messages, say goodbye and close.

        Raises OutcomeUnknown as ``flush`` does; the client is closed then too.
        """
        await self._close(self._options.timeout if flush else None)

    async def _end(self) -> None:
        """The program ends, and has not closed the client."""
        try:
            await self._close(min(self._options.timeout, self._options.timing.exit))
        except OutcomeUnknown as error:
            _log.warning("%s", error)

    async def _close(self, flush: float | None) -> None:
        """Close; before it, flush for so many seconds without a reply.

        Several calls each wait for themselves; one that does not flush ends those that do.
        """
        if not self._closed:
            self._runtime.check_caller()
            self._closed = True
            if self._durability is not None:
                self._durability.close()
        try:
            if flush is not None and not self._flushed:
                await self._flush(flush)
        finally:
            if not self._flushed:
                # Until now the end of the program had something to wait for.
                self._flushed = True
                self._cancel_end()
            drivers = self._links.close()
            await self._history.close()
            for driver in drivers:
                await self._runtime.wait_for(driver.link.gone)
                driver.stop()
