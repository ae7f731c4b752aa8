"""The client of all shells: checks, links and their drivers, on any runtime."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal, Never, TypeVar, overload

from pubsub.client.client_errors import ClientClosed, OutcomeUnknown
from pubsub.client.client_links import ClientLinks
from pubsub.client.client_options import ClientOptions
from pubsub.client.client_url import parse_url
from pubsub.client.feed import Feed
from pubsub.client.flush_limit import FlushLimit
from pubsub.client.link_driver import LinkDriver
from pubsub.client.notices import Gap, Notice, Refusal, Uncertain
from pubsub.client.publish_requests import PublishRequest
from pubsub.client.publishing_link import PublishingLink
from pubsub.client.request_checks import (
    BytesLike,
    as_bytes,
    as_payloads,
    check_durability,
    check_headers,
    check_level,
    check_message,
    check_subscription,
    check_topic,
    interests_of,
)
from pubsub.client.runtime import Runtime
from pubsub.client.subscribing_link import SubscribingLink
from pubsub.client.subscription import Subscription
from pubsub.client.tickets import Ticket
from pubsub.client.topic_durability import TopicDurability
from pubsub.kernel import Columns
from pubsub.wire.client_events import Level
from pubsub.wire.client_wire import Headers

_log = logging.getLogger("pubsub.client")
_Result = TypeVar("_Result")
# Those that are remembered as addressable.
_MAX_TOPICS = 4096
# After so many bytes, a publisher that need not wait lets the others in the loop run. So much is
# still in the processor's cache when it is sent, and arrives in few reads.
_TURN_BYTES = 128 * 1024


class Client:
    """A client of one broker. Its connections are made by the first requests that need them.

    Use it in ``async with``, or call ``close``.
    """

    # Also if the constructor fails.
    _closed = True

    def __init__(self, runtime: Runtime, options: ClientOptions) -> None:
        self._runtime = runtime
        self._options = options
        self._wire = options.wire
        self._links = ClientLinks(runtime, options, self._report)
        self._durability: TopicDurability | None = None
        # Topics that the wire can address, as its checks have found.
        self._addressable: set[str] = set()
        # Bytes that were published since the last pause.
        self._unbroken = 0
        self._closed = False
        self._cancel_end = runtime.at_end(self._end)

    def __del__(self) -> None:
        if not self._closed:
            self._links.warn()

    def __repr__(self) -> str:
        return f"<Client of {self._options.target}>"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self.close(flush=error is None)

    # Publishing

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

    async def publish_many(
        self,
        topic: str,
        payloads: Sequence[BytesLike | str],
        confirm: bool | Level = False,
        *,
        sender: BytesLike | str | None = None,
        headers: Headers | None = None,
    ) -> Level | None:
        """Publish messages of one topic, in order; see ``publish``."""
        plain = not confirm and sender is None and headers is None
        if plain and self._send_at_once(topic, payloads):
            if self._unbroken >= _TURN_BYTES:
                await self._pause()
            return None
        checked = as_payloads(payloads)
        if not checked:
            return None
        return await self._publish(topic, Columns.gather(checked), confirm, sender, headers)

    def _send_at_once(self, topic: str, payloads: Sequence[BytesLike | str]) -> bool:
        """Send without the queue; return False if that is not possible."""
        driver = self._links.publishing
        if driver is None or self._closed or topic not in self._addressable:
            return False
        # The others are not checked here: a payload of another type has no short way.
        if not isinstance(payloads, list) or not payloads or type(payloads[0]) is not bytes:
            return False
        self._runtime.check_caller()
        link = driver.link
        assert isinstance(link, PublishingLink)
        nbytes = link.send_at_once(topic, payloads, driver.now())
        if nbytes:
            self._unbroken += nbytes
            driver.step()
        return nbytes > 0

    async def _pause(self) -> None:
        """Let others run; what was published before it stays before what they publish."""
        self._unbroken = 0
        await self._runtime.pause()

    async def _publish(
        self,
        topic: str,
        columns: Columns,
        confirm: bool | Level,
        sender: BytesLike | str | None,
        headers: Headers | None,
    ) -> Level | None:
        self._check_open()
        if topic not in self._addressable:
            check_topic(self._wire, topic)
            if len(self._addressable) >= _MAX_TOPICS:
                self._addressable.clear()
            self._addressable.add(topic)
        if sender is not None:
            sender = as_bytes(sender, "the sender")
        if headers is not None:
            headers = check_headers(headers)
        check_message(self._wire, columns, sender, headers)
        if confirm:
            check_level(self._wire, confirm)
            if confirm is True and self._wire.traits.level < Level.STORED:
                await self._check_durability(topic)
        driver = self._links.publishing or self._links.publisher()
        link = driver.link
        assert isinstance(link, PublishingLink)
        ticket: Ticket[Level] | None = None
        if confirm:
            ticket = Ticket(driver.now() + self._options.timeout)
        request = PublishRequest(topic, columns, sender, headers, ticket)
        if link.has_room():
            link.add(request)
        else:
            await self._add_when_possible(driver, link, request)
        if link.ripe:
            driver.pump()
        else:
            driver.step_soon()
        if ticket is None:
            self._unbroken += request.nbytes
            if self._unbroken >= _TURN_BYTES:
                await self._pause()
            return None
        return await self._outcome(ticket)

    async def _add_when_possible(
        self, driver: LinkDriver, link: PublishingLink, request: PublishRequest
    ) -> None:
        link.aim(request.topic)
        self._links.start(driver)
        room = link.await_room(driver.now() + self._options.timeout)
        driver.step()
        try:
            await self._outcome(room)
            link.add(request)
        finally:
            link.room_taken()

    async def _outcome(self, ticket: Ticket[_Result]) -> _Result:
        if not ticket.done:
            waiter = self._runtime.waiter()
            ticket.when_done(waiter.wake)
            try:
                await waiter.awaitable
            except BaseException:
                ticket.fail(OutcomeUnknown("the wait was cancelled"))
                raise
        if ticket.error is not None:
            raise ticket.error
        assert ticket.done
        return ticket.result  # type: ignore[return-value]

    async def flush(self) -> None:
        """Return when no published message is queued or unconfirmed.

        Raises OutcomeUnknown after ``timeout`` seconds without a reply of the broker to a message.
        """
        await self._flush(self._options.timeout)

    async def _flush(self, seconds: float) -> None:
        driver = self._links.publishing
        if driver is None:
            return
        self._runtime.check_caller()
        assert isinstance(driver.link, PublishingLink)
        driver.link.pump(driver.now())
        idle = driver.link.await_idle()
        driver.step()
        limit = FlushLimit(self._runtime, driver.link, idle, seconds)
        try:
            await self._outcome(idle)
        finally:
            limit.cancel()

    # Subscribing

    @overload
    def subscribe(
        self, *topics: str, start: int | None = ..., prefixes: Sequence[str] = ...,
        events: Literal[False] = ...,
    ) -> Subscription[Never]: ...  # fmt: skip

    @overload
    def subscribe(
        self, *topics: str, start: int | None = ..., prefixes: Sequence[str] = ..., events: bool
    ) -> Subscription[Notice]: ...

    def subscribe(
        self,
        *topics: str,
        start: int | None = None,
        prefixes: Sequence[str] = (),
        events: bool = False,
    ) -> Subscription[Notice]:
        """Subscribe to ``topics``, and to those whose names begin with one of ``prefixes``.

        ``start`` is the offset of the first message, None for those that are published from now
        on. See ``Subscription`` for ``events``. Raises ClientError, and TypeError for a value of a
        wrong type.
        """
        self._check_open()
        interests = interests_of(topics, prefixes, start)
        wire, target = self._links.wire_for(start)
        check_subscription(wire, topics, prefixes)
        own = start is not None or wire.single_topic
        feed = Feed(interests, self._options.feed_bytes, events)
        driver = self._links.reader(wire, target) if own else self._links.subscriber()
        link = driver.link
        assert isinstance(link, SubscribingLink)
        feed.on_room = driver.step_soon
        link.add(feed, driver.now())
        self._links.start(driver)
        driver.step()
        return Subscription(self._runtime, feed, lambda: self._links.leave(driver, feed))

    # Checks

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client is closed")
        self._runtime.check_caller()

    async def _check_durability(self, topic: str) -> None:
        """Raise Unconfirmable if ``topic`` is known to require more than the wire can confirm."""
        options = self._options
        if options.api is None:
            return
        if self._durability is None:
            target = parse_url(options.api)
            if target.name != "http":
                return
            seconds = min(options.timeout, options.timing.connect)
            self._durability = TopicDurability(
                self._runtime, target, options.tls, options.token_text, seconds
            )
        check_durability(self._wire, topic, await self._outcome(self._durability.of(topic)))
        self._check_open()

    # Notices and the end

    def _report(self, notice: Notice) -> None:
        if isinstance(notice, Gap | Uncertain | Refusal):
            _log.warning("%s: %s", self._options.target, notice)
        else:
            _log.info("%s: %s", self._options.target, notice)
        if self._options.on_event is not None:
            try:
                self._options.on_event(notice)
            except self._runtime.callback_errors:
                # A link calls this while it changes its state.
                _log.exception("%s: on_event failed", self._options.target)

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
        """Close; before it, flush for so many seconds without a reply."""
        if self._closed:
            return
        self._runtime.check_caller()
        self._closed = True
        self._cancel_end()
        if self._durability is not None:
            self._durability.close()
        try:
            if flush is not None:
                await self._flush(flush)
        finally:
            for driver in self._links.close():
                await self._outcome(driver.link.gone)
                driver.stop()
