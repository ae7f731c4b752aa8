"""The work of the calls that publish: checks, the queue, and the wait for an outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from pubsub.client.client_errors import ClientClosed, OutcomeUnknown
from pubsub.client.client_links import ClientLinks
from pubsub.client.client_options import ClientOptions
from pubsub.client.flush_limit import FlushLimit
from pubsub.client.link_driver import LinkDriver
from pubsub.client.notices import Notice
from pubsub.client.publish_requests import PublishRequest
from pubsub.client.publishing_link import PublishingLink
from pubsub.client.request_checks import (
    BytesLike,
    as_bytes,
    check_durability,
    check_headers,
    check_level,
    check_message,
    check_topic,
)
from pubsub.client.runtime import Runtime
from pubsub.client.tickets import Ticket
from pubsub.client.topic_durability import TopicDurability
from pubsub.kernel import Columns
from pubsub.wire.client_events import Level
from pubsub.wire.client_wire import Headers

_Result = TypeVar("_Result")
# Those that are remembered as addressable.
_MAX_TOPICS = 4096
TURN_BYTES = 128 * 1024
"""After so many bytes, a publisher that need not wait lets the others in the loop run. So much is
still in the processor's cache when it is sent, and arrives in few reads."""


class PublishCalls(ABC):
    """The part of a client that publishes; ``Client`` has the methods for programs."""

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

    @abstractmethod
    def _report(self, notice: Notice) -> None:
        """A link has something to tell."""

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
            if self._unbroken >= TURN_BYTES:
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
            targets = options.api_urls()
            if not targets or targets[0].name != "http":
                return
            seconds = min(options.timeout, options.timing.connect)
            self._durability = TopicDurability(
                self._runtime, targets, options.tls, options.token_text, seconds
            )
        check_durability(self._wire, topic, await self._outcome(self._durability.of(topic)))
        self._check_open()
