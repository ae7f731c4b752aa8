"""The link that publishes: a bounded queue, requests in flight, and confirmations. Sans-IO.

A message is queued, then in flight: given to the connection, but not confirmed yet. When the
connection ends, queued messages wait for the next one. Those in flight may or may not have been
published: they are not sent again, because that could publish them twice. Calls that wait for their
confirmation get OutcomeUnknown; the others are reported as ``Uncertain``.

Every message is confirmed, also without a request, so that the link knows the messages in flight.
Messages without a request are confirmed together: those that are sent while a confirmation is
awaited form the group of the next one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from copy import copy

from pubsub.client.broker_urls import BrokerUrls
from pubsub.client.client_errors import ClientClosed, ClientError, NotSent
from pubsub.client.link import Link, LinkState
from pubsub.client.link_timing import Timing
from pubsub.client.notices import Notice, Refusal, Uncertain
from pubsub.client.publish_requests import (
    GROUP_BYTES,
    GROUP_MESSAGES,
    OVERHEAD,
    PIECE_BYTES,
    RIPE_BYTES,
    SILENT,
    WINDOW_BYTES,
    PublishRequest,
    RequestGroup,
    not_sent,
    unknown,
)
from pubsub.client.tickets import Deadlines, Ticket
from pubsub.wire.client_events import Confirmed, Messages, WireEvent
from pubsub.wire.client_wire import ClientWire, Role

_log = logging.getLogger("pubsub.client")


class PublishingLink(Link):
    """See the module. ``limit`` is the number of bytes that may wait or be in flight.

    ``report`` is called with notices without a waiting call.
    """

    role = Role.PUBLISHER

    def __init__(
        self,
        wire: ClientWire,
        brokers: BrokerUrls,
        timing: Timing,
        random: Callable[[], float],
        limit: int,
        report: Callable[[Notice], None],
    ) -> None:
        super().__init__(wire, brokers, timing, random)
        self._limit = limit
        self._report = report
        self._queue: deque[PublishRequest] = deque()
        self._in_flight: deque[RequestGroup] = deque()
        # The requests since the last ``confirm``.
        self._open = RequestGroup()
        self._queued_bytes = 0
        self._flying_bytes = 0
        self._room: deque[Ticket[None]] = deque()
        self._idle: list[Ticket[None]] = []
        self._deadlines = Deadlines()
        self._topic_hint: str | None = None
        self.writable = True
        """False while the transport takes no more bytes."""
        self.progress_at = 0.0
        """When the broker last replied to messages."""

    # For the client

    @property
    def nbytes(self) -> int:
        """The bytes of the messages that wait or are in flight."""
        return self._queued_bytes + self._flying_bytes

    @property
    def unconfirmed(self) -> int:
        """The number of the messages that wait or are in flight."""
        queued = sum(request.columns.count for request in self._queue)
        return queued + sum(group.messages for group in (*self._in_flight, self._open))

    def has_room(self) -> bool:
        """Return whether another request may be added, behind those that wait for room."""
        return not self._room and self._may_add()

    def _may_add(self) -> bool:
        held = self._queued_bytes + self._flying_bytes
        return held < self._limit and self.proved and self.state is not LinkState.IDLE

    def await_room(self, deadline: float | None) -> Ticket[None]:
        """Return a ticket that is done when there is room and the broker was once reached."""
        ticket: Ticket[None] = Ticket(deadline)
        if self.state in (LinkState.CLOSING, LinkState.CLOSED):
            ticket.fail(ClientClosed("the client is closed"))
        else:
            self._room.append(ticket)
            self._deadlines.watch(ticket)
        return ticket

    def add(self, request: PublishRequest) -> None:
        """Queue messages; ``pump`` sends them. Raises ClientClosed."""
        if self.state in (LinkState.CLOSING, LinkState.CLOSED):
            # Closed between the moment at which there was room and this one.
            raise ClientClosed("the client is closed")
        self._queue.append(request)
        if request.ticket is not None:
            self._deadlines.watch(request.ticket)
        self._queued_bytes += request.nbytes

    @property
    def ripe(self) -> bool:
        """True if enough is queued to be sent without waiting for more."""
        return self._queued_bytes >= RIPE_BYTES

    @property
    def behind(self) -> bool:
        """See ``Link``. A group that is left waits for messages that are published meanwhile."""
        if self.state is not LinkState.READY:
            return False
        if self._queue:
            return self._may_send()
        return self._open.messages > 0 and not self._in_flight

    def _may_send(self) -> bool:
        return self.writable and self._flying_bytes < WINDOW_BYTES

    def pump(self, now: float) -> None:
        """Give the connection as much as the window and the transport take, up to a piece."""
        connection, queue = self.connection, self._queue
        if self.state is not LinkState.READY or connection is None:
            return
        given = 0
        # As ``_may_send``, without a call for each request.
        while queue and given < PIECE_BYTES and self._flying_bytes < WINDOW_BYTES and self.writable:
            request = queue.popleft()
            nbytes, ticket = request.nbytes, request.ticket
            given += nbytes
            self._queued_bytes -= nbytes
            self._flying_bytes += nbytes
            if ticket is not None:
                self._confirm()
            group = self._open
            group.messages += request.columns.count
            group.nbytes += nbytes
            group.ticket = ticket
            try:
                connection.publish(request.topic, request.columns, request.sender, request.headers)
            except Exception:
                # A defect. It is not known what the connection has taken of the message.
                _log.exception("%s: a message could not be encoded", self.where)
                self._abort("a message could not be encoded", now)
                return
            full = group.messages >= GROUP_MESSAGES or group.nbytes >= GROUP_BYTES
            if full or ticket is not None:
                self._confirm()
        if self._open.messages and (self._idle or not self._in_flight):
            self._confirm()
        self.touched(now)

    def send_at_once(self, topic: str, payloads: list[bytes], now: float) -> int:
        """Give the connection many payloads without the queue, and return their bytes.

        Return 0, and do nothing, if they have to wait, are few or have no short way.
        """
        connection = self.connection
        nbytes = len(payloads) * len(payloads[0]) + OVERHEAD
        if (
            nbytes < RIPE_BYTES
            or self.state is not LinkState.READY
            or self._queue
            or self._room
            or self._flying_bytes >= min(WINDOW_BYTES, self._limit)
            or not self.writable
            or connection is None
            or not connection.publish_alike(topic, payloads)
        ):
            return 0
        self._flying_bytes += nbytes
        group = self._open
        group.messages += len(payloads)
        group.nbytes += nbytes
        full = group.messages >= GROUP_MESSAGES or group.nbytes >= GROUP_BYTES
        if full or self._idle or not self._in_flight:
            self._confirm()
        self.touched(now)
        return nbytes

    def _confirm(self) -> None:
        """Have the open group confirmed, unless it is empty."""
        if self._open.messages:
            assert self.connection is not None
            self.connection.confirm()
            self._in_flight.append(self._open)
            self._open = RequestGroup()

    def await_idle(self) -> Ticket[None]:
        """Return a ticket that is done when nothing waits or is in flight."""
        ticket: Ticket[None] = Ticket()
        self._confirm()
        if not self._queue and not self._in_flight:
            ticket.succeed(None)
        else:
            self._idle.append(ticket)
        return ticket

    # Link

    def first_topic(self) -> str | None:
        """See ``Link``."""
        return self._queue[0].topic if self._queue else self._topic_hint

    def aim(self, topic: str) -> None:
        """The first message will be on ``topic``."""
        if self._topic_hint is None:
            self._topic_hint = topic

    def received(self, data: bytes, now: float) -> None:
        """See ``Link``."""
        connection = self.connection
        replies = 0 if connection is None else connection.replies
        super().received(data, now)
        if connection is not None and connection.replies != replies:
            self.progress_at = now

    def opened(self, resumed: bool, now: float) -> None:
        """See ``Link``."""
        self.pump(now)
        self._tell_room()

    def deliver(self, event: Messages) -> None:
        """See ``Link``. A publisher gets none."""

    def handle(self, event: WireEvent, now: float) -> None:
        """See ``Link``."""
        if isinstance(event, Confirmed) and self._in_flight:
            group = self._in_flight.popleft()
            self._flying_bytes -= group.nbytes
            self.progress_at = now
            group.settle(event, f"{self.wire.name} at {self.where}", self._report)
            if self._queue or self._idle:
                self.pump(now)
            self._tell_room()

    def _tell_room(self) -> None:
        # Those that are done belong to calls that were cancelled.
        while self._room and (self._room[0].done or self._may_add()):
            ticket = self._room.popleft()
            if not ticket.done:
                # It adds a request, and calls room_taken, before the next one is looked at.
                ticket.succeed(None)
                break
        if self._idle and not (self._queue or self._in_flight or self._open.messages):
            idle, self._idle = self._idle, []
            for ticket in idle:
                ticket.succeed(None)

    def room_taken(self) -> None:
        """A request was added: there may be room for the next one that waits."""
        self._tell_room()

    def interrupted(self) -> None:
        """See ``Link``."""
        uncertain = 0
        groups, self._in_flight = [*self._in_flight, self._open], deque()
        self._open = RequestGroup()
        self._flying_bytes = 0
        for group in groups:
            if group.ticket is None:
                uncertain += group.messages
            else:
                group.ticket.fail(unknown(self.where, self.trouble))
        if uncertain:
            self._report(Uncertain(uncertain, self.trouble))
        self.writable = True
        self._tell_room()

    def failed(self, error: ClientError) -> None:
        """See ``Link``."""
        # An error for each that waits, as raising one adds to its traceback.
        self._fail_queue(lambda: copy(error))

    def closed(self) -> None:
        """See ``Link``."""
        self.trouble = "the client was closed"
        if self.unconfirmed:
            for ticket in self._idle:
                ticket.fail(unknown(self.where, self.trouble))
        self.interrupted()
        self._fail_queue(lambda: ClientClosed("the client was closed"))

    def _fail_queue(self, make: Callable[[], ClientError]) -> None:
        queue, self._queue = self._queue, deque()
        room, self._room = self._room, deque()
        self._queued_bytes = 0
        unsent = 0
        for request in queue:
            if request.ticket is None:
                unsent += request.columns.count
            else:
                request.ticket.fail(make())
        for ticket in room:
            ticket.fail(make())
        if unsent:
            self._report(Refusal(unsent, str(make())))
        self._tell_room()

    # Deadlines

    def own_deadline(self) -> float | None:
        """See ``Link``."""
        return self._deadlines.earliest()

    def _not_sent(self) -> NotSent:
        opening = self.state in (LinkState.CONNECTING, LinkState.OPENING)
        return not_sent(self.where, self.trouble or (SILENT if opening else ""))

    def expire(self, now: float) -> None:
        """See ``Link``."""
        first = self.own_deadline()
        if first is None or now < first:
            return
        for group in self._in_flight:
            if group.ticket is not None and group.ticket.is_over(now):
                group.ticket.fail(unknown(self.where, "no confirmation in time"))
        kept: deque[PublishRequest] = deque()
        for request in self._queue:
            if request.ticket is not None and request.ticket.is_over(now):
                self._queued_bytes -= request.nbytes
                request.ticket.fail(self._not_sent())
            else:
                kept.append(request)
        self._queue = kept
        for ticket in [ticket for ticket in self._room if ticket.is_over(now)]:
            self._room.remove(ticket)
            ticket.fail(self._not_sent())
        self._tell_room()
