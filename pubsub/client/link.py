"""A link keeps one connection of a client alive. Sans-IO.

A driver (``link_driver.py``) makes the transport and calls a link with its events; time is
an argument, randomness is passed in. After each call the driver carries out ``take_commands``,
sends ``take_output``, and calls ``tick`` at ``deadline``.

    state        meaning                      left for
    IDLE         nothing was requested yet    CONNECTING: the first request
    CONNECTING   a transport is made          OPENING: it is there
                                              BACKING_OFF: it failed, or took too long
    OPENING      the protocol's handshake     READY: it is done
                                              CONNECTING: the session to be resumed is gone
                                              BACKING_OFF: the connection ended, or took too long
    READY        requests are sent            BACKING_OFF: the connection ended, or is silent
    BACKING_OFF  a pause, or another URL      CONNECTING: it is over
    CLOSING      goodbye, the last bytes      CLOSED: the transport is gone, or takes too long
    CLOSED       the end

In addition, ``close`` leads from every state to CLOSING, or to CLOSED if there is no connection;
and CONNECTING and OPENING lead to IDLE, with an error for all that waits, if all brokers reject the
client for good, or ``proved`` is not set: a first round that fails is an error of the caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum

from pubsub.client.broker_urls import BrokerUrls, ConnectAttempts
from pubsub.client.client_errors import ClientError
from pubsub.client.link_timing import Timing
from pubsub.client.tickets import Ticket
from pubsub.wire.client_events import (
    Alive,
    Closing,
    Malformed,
    Messages,
    NotResumed,
    Opened,
    Rejected,
    WireEvent,
)
from pubsub.wire.client_wire import ClientWire, Role, WireConnection
from pubsub.wire.foreign_protocols import FIRST_BYTES, reply_problem


class LinkState(Enum):
    """See the table of this module."""

    IDLE = "idle"
    CONNECTING = "connecting"
    OPENING = "opening"
    READY = "ready"
    BACKING_OFF = "backing off"
    CLOSING = "closing"
    CLOSED = "closed"


class Command(Enum):
    """A command to the driver about the transport."""

    CONNECT = "connect"
    CLOSE = "close"
    """Close when everything is sent."""
    ABORT = "abort"
    """Close now, or give the attempt up; ``lost`` need not be called."""


class Link(ABC):
    """See the module. Subclasses have the requests and handle the events of one role."""

    role: Role

    def __init__(
        self, wire: ClientWire, brokers: BrokerUrls, timing: Timing, random: Callable[[], float]
    ) -> None:
        self.wire = wire
        self.attempts = ConnectAttempts(brokers, timing, random)
        self.where = str(self.attempts.url)
        """The present broker, for messages."""
        self.state = LinkState.IDLE
        self.proved = False
        """True if an address and the credentials have been good once."""
        self.renewed: Callable[[], bool] = lambda: False
        """Returns whether there is another token than that of the last attempt."""
        self.reading = True
        """False while the driver does not read, so that silence means nothing."""
        self.connection: WireConnection | None = None
        self.trouble = ""
        """The reason for the end of the last connection or attempt."""
        self.gone: Ticket[None] = Ticket()
        """Done when the link is CLOSED."""
        self._timing = timing
        self._session: object = None
        self._until: float | None = None
        self._wake_at: float | None = None
        self._ready_at = 0.0
        self._heard_at = 0.0
        self._pinged = False
        self.commands: list[Command] = []
        """Those that the driver has not taken."""
        self._last_output = b""
        # The first bytes of a connection, until one has been good.
        self._first = b""

    # For the driver

    def take_commands(self) -> list[Command]:
        """Return the commands since the last call."""
        commands, self.commands = self.commands, []
        return commands

    def take_output(self) -> bytes:
        """Return the bytes to send."""
        output, self._last_output = self._last_output, b""
        return output if self.connection is None else self.connection.take_output()

    @property
    def behind(self) -> bool:
        """True if there is more to send than the last call has appended to the output."""
        return False

    def deadline(self) -> float | None:
        """Return when ``tick`` should be called, if at all."""
        earliest, wake, own = self._until, self._wake_at, self.own_deadline()
        if wake is not None and (earliest is None or wake < earliest):
            earliest = wake
        return own if own is not None and (earliest is None or own < earliest) else earliest

    def connected(self, now: float) -> None:
        """The transport that CONNECT asked for is there."""
        if self.state is not LinkState.CONNECTING:
            return
        self.state = LinkState.OPENING
        self._until = now + self._timing.connect
        self._heard_at = now
        self.wire.use_address(self.attempts.url.host, self.attempts.url.port)
        self.connection = self.wire.connect(self.role, self._session)
        self._handle(self.connection.open(self.first_topic()), now)

    def received(self, data: bytes, now: float) -> None:
        """Handle input."""
        connection = self.connection
        if connection is not None:
            self._heard_at = now
            self._pinged = False
            if not self.proved:
                self._first = (self._first + data)[:FIRST_BYTES]
            self._handle(connection.receive(data), now)

    def lost(self, why: str, now: float) -> None:
        """The transport is gone, or could not be made."""
        if self.state is LinkState.OPENING:
            why = self._likely_mistake() or why
        if self.state is LinkState.CLOSING:
            self._finish()
        elif self.state in (LinkState.CONNECTING, LinkState.OPENING, LinkState.READY):
            self._disconnected(why, now)

    def tick(self, now: float) -> None:
        """Do the work that is due."""
        self.expire(now)
        if self._wake_at is not None and now >= self._wake_at and self.connection is not None:
            self._handle(self.connection.wake(), now)
        if self._until is None or now < self._until:
            return
        match self.state:
            case LinkState.CONNECTING | LinkState.OPENING:
                self._abort(f"no reply within {self._timing.connect:g} s", now)
            case LinkState.READY:
                self._check_silence(now)
            case LinkState.BACKING_OFF:
                self.attempts.advance()
                self._connect(now)
            case LinkState.CLOSING:
                self.commands.append(Command.ABORT)
                self._finish()
            case _:
                self._until = None

    # For the client

    def start(self, now: float) -> None:
        """Connect, unless that has begun."""
        if self.state is LinkState.IDLE:
            self.attempts.begin()
            self._connect(now)

    def close(self, now: float) -> None:
        """End the link. Waiting calls get an error."""
        if self.state in (LinkState.CLOSING, LinkState.CLOSED):
            return
        was_ready = self.state is LinkState.READY
        if was_ready and self.connection is not None:
            self.connection.close()
            self._last_output = self.connection.take_output()
        self._drop_connection()
        self.commands.append(Command.CLOSE if was_ready else Command.ABORT)
        if was_ready:
            self.state, self._until = LinkState.CLOSING, now + self._timing.goodbye
        else:
            self._finish()
        self.closed()

    # For subclasses

    def touched(self, now: float) -> None:
        """A request was given to the connection."""
        delay = None if self.connection is None else self.connection.delay
        self._wake_at = None if delay is None else now + delay

    @abstractmethod
    def first_topic(self) -> str | None:
        """Return the topic for ``WireConnection.open``."""

    @abstractmethod
    def opened(self, resumed: bool, now: float) -> None:
        """The connection is READY; ``resumed`` if it continues the session of the last one."""

    @abstractmethod
    def handle(self, event: WireEvent, now: float) -> None:
        """Handle an event that does not concern the state."""

    @abstractmethod
    def deliver(self, event: Messages) -> None:
        """Handle messages."""

    @abstractmethod
    def interrupted(self) -> None:
        """A connection that was READY has ended; another will follow."""

    @abstractmethod
    def failed(self, error: ClientError) -> None:
        """No connection will follow unless one is requested: all waiting calls fail."""

    @abstractmethod
    def closed(self) -> None:
        """The link was closed."""

    def own_deadline(self) -> float | None:
        """Return the earliest deadline of waiting calls."""
        return None

    @abstractmethod
    def expire(self, now: float) -> None:
        """Fail calls that have waited too long."""

    # Transitions

    def _likely_mistake(self) -> str:
        """Return how the first bytes of a connection show that the URL is wrong, if they do."""
        if self.proved:
            return ""
        return reply_problem(self._first, self.wire.name, self.wire.options.secure)

    def _connect(self, now: float) -> None:
        self._first = b""
        self.state = LinkState.CONNECTING
        self.where = str(self.attempts.url)
        self._until = now + self._timing.connect
        self.commands.append(Command.CONNECT)

    def _handle(self, events: list[WireEvent], now: float) -> None:
        for event in events:
            if self.connection is None:
                return
            if type(event) is Messages:
                # The most frequent ones, before all comparisons.
                self.deliver(event)
                continue
            match event:
                case Opened():
                    self._ready(event.resumed, now)
                case NotResumed():
                    self._session = None
                    self.commands.append(Command.ABORT)
                    self._drop_connection()
                    self._connect(now)
                case Closing():
                    self._abort(event.reason, now)
                case Malformed():
                    self._abort(self._likely_mistake() or event.reason, now)
                case Rejected():
                    self._rejected(event, now)
                case Alive():
                    pass
                case _:
                    self.handle(event, now)
        self.touched(now)

    def _ready(self, resumed: bool, now: float) -> None:
        self.state = LinkState.READY
        self.proved = True
        self.attempts.succeeded()
        self._ready_at = now
        self._until = now + self._timing.keepalive
        self.opened(resumed, now)

    def _check_silence(self, now: float) -> None:
        quiet = self._heard_at + self._timing.keepalive
        if not self.reading:
            self._until = now + self._timing.keepalive
        elif now < quiet:
            self._until = quiet
        elif self._pinged:
            self._abort("the broker does not reply", now)
        elif self.connection is not None:
            self._pinged = True
            self._until = now + self._timing.keepalive
            self.connection.ping()
            self.touched(now)

    def _rejected(self, event: Rejected, now: float) -> None:
        permanent = event.permanent and not self.renewed()
        self._abort(f"the broker refused the client: {event.reason}", now, permanent)

    def _abort(self, why: str, now: float, refused: bool = False) -> None:
        self.commands.append(Command.ABORT)
        self._disconnected(why, now, refused)

    def _disconnected(self, why: str, now: float, refused: bool = False) -> None:
        was_ready, attempts = self.state is LinkState.READY, self.attempts
        if was_ready and self.connection is not None:
            self._session = self.connection.session
            attempts.ended(now - self._ready_at >= self._timing.settled)
        self._drop_connection()
        self.trouble = why
        attempts.failed(why, refused)
        if attempts.all_refused:
            self.proved = False
        if attempts.are_over and not self.proved:
            self.state, self._until, self._session = LinkState.IDLE, None, None
            if was_ready:
                self.interrupted()
            self.failed(attempts.error())
            return
        self.state = LinkState.BACKING_OFF
        self._until = now + attempts.pause()
        if was_ready:
            self.interrupted()

    def _drop_connection(self) -> None:
        self.connection = None
        self._wake_at = None
        self._pinged = False

    def _finish(self) -> None:
        self.state, self._until = LinkState.CLOSED, None
        self.gone.succeed(None)
