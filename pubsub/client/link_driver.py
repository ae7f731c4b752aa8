"""The driver of a link: its transport and its timer on one runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import time

from pubsub.client.client_tls import TlsOptions
from pubsub.client.credentials import end_of_token
from pubsub.client.link import Command, Link, LinkState
from pubsub.client.publishing_link import PublishingLink
from pubsub.client.runtime import Cancel, Runtime, Transport
from pubsub.client.subscribing_link import SubscribingLink

_log = logging.getLogger("pubsub.client")
# Seconds before the end of a token from which on another one is looked for, and between the looks.
_BEFORE_END, _LOOK = 10.0, 0.5
# Seconds of a timer, at most: some loops take no longer ones, and the system's clock may be set.
_LONGEST = 3600.0


class LinkDriver:
    """Connects ``link`` to the URL of its attempt. ``step`` follows each request to the link.

    ``renew`` is called before each attempt to connect, and shortly before the end of a token. It
    returns the token to use.
    """

    def __init__(
        self,
        runtime: Runtime,
        link: Link,
        tls: TlsOptions | None,
        renew: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.runtime = runtime
        self.link = link
        self._publishing = link if isinstance(link, PublishingLink) else None
        self._subscribing = link if isinstance(link, SubscribingLink) else None
        self.now: Callable[[], float] = runtime.now
        """Returns the time for the link's methods."""
        self._tls = tls
        self._renew = renew
        # That of the last attempt, and that of its connection, which may be another one since.
        self._token: str | None = None
        self._given: str | None = None
        self._look: Cancel | None = None
        link.renewed = lambda: self._renew() != self._token
        self.attempt: _Attempt | None = None
        """The current one. Events of others are ignored."""
        self._timer: Cancel | None = None
        self._timer_at = 0.0
        self._step_cancel: Cancel | None = None

    def step(self) -> None:
        """Carry out the commands of the link."""
        link, attempt = self.link, self.attempt
        if attempt is not None and attempt.transport is not None:
            connection = link.connection
            output = link.take_output() if connection is None else connection.take_output()
            if output:
                attempt.transport.write(output)
        if link.commands:
            self._obey()
        subscribing = self._subscribing
        if subscribing is None:
            if link.behind:
                self.step_soon()
        elif self.attempt is not None and self.attempt.reading is subscribing.full:
            # Nothing is read while a feed is full. A command may have changed the attempt.
            self.attempt.read(not subscribing.full)
        self._set_timer()

    def _obey(self) -> None:
        for command in self.link.take_commands():
            if command is Command.CONNECT:
                self._connect()
            elif self.attempt is not None:
                self.attempt.end(command is Command.ABORT)
                if command is Command.ABORT:
                    self.attempt = None

    def step_soon(self) -> None:
        """Pump and step once, after the other events in this pass of the loop."""
        if self._step_cancel is None:
            self._step_cancel = self.runtime.call_later(0, self._step_now)

    def _step_now(self) -> None:
        self._step_cancel = None
        self.pump()

    def pump(self) -> None:
        """Send the queued messages, and step."""
        if self._publishing is not None:
            self._publishing.pump(self.now())
        self.step()

    def _connect(self) -> None:
        self._token = self._given = self._renew()
        self._await_end()
        self.attempt = attempt = _Attempt(self)
        # The last transport may have ended while it did not read.
        self.link.reading = attempt.reading
        url = self.link.attempts.url
        attempt.cancel = self.runtime.connect(url.host, url.port, self._tls, attempt)

    def _await_end(self) -> None:
        """Look for another token in time."""
        if self._look is not None:
            self._look()
            self._look = None
        left = 0.0 if self._given is None else end_of_token(self._given) - time()
        if left > 0:
            delay = max(left - _BEFORE_END, _LOOK)
            self._look = self.runtime.call_later(min(delay, _LONGEST), self._look_for_token)

    def _look_for_token(self) -> None:
        self._look = None
        token, link = self._renew(), self.link
        connection = link.connection if link.state is LinkState.READY else None
        if token is not None and token != self._given and connection is not None:
            # Messages that arrive behind the end of the former would be refused.
            self._given = token
            connection.use_token(token)
            self.step()
        self._await_end()

    def _set_timer(self) -> None:
        at = self.link.deadline()
        if at is None:
            return
        if self._timer is not None:
            if at >= self._timer_at:
                # It fires too early, and is then set again.
                return
            self._timer()
        self._timer_at = at
        self._timer = self.runtime.call_later(max(0.0, at - self.now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.link.tick(self.now())
        self.step()

    def stop(self) -> None:
        """Cancel scheduled calls; the link is closed."""
        for cancel in (self._timer, self._step_cancel, self._look):
            if cancel is not None:
                cancel()
        self._timer = self._step_cancel = self._look = None
        if self.attempt is not None:
            self.attempt.end(abort=True)
            self.attempt = None


class _Attempt:
    """One transport of a driver; see ``Observer``. Events of an earlier one are ignored."""

    def __init__(self, driver: LinkDriver) -> None:
        self.transport: Transport | None = None
        self.cancel: Cancel | None = None
        self.reading = True
        self._driver = driver

    def made(self, transport: Transport) -> None:
        driver = self._driver
        if driver.attempt is not self:
            transport.abort()
            return
        self.transport = transport
        driver.link.connected(driver.now())
        driver.step()

    def received(self, data: bytes) -> None:
        driver = self._driver
        if driver.attempt is self:
            try:
                driver.link.received(data, driver.now())
            except Exception:
                # A defect must not leave the link without its timer.
                _log.exception("%s: input could not be handled", driver.link.where)
                self.end(abort=True)
                self.lost("input could not be handled")
            driver.step()

    def writable(self, writable: bool) -> None:
        driver = self._driver
        link = driver.link
        if driver.attempt is self and isinstance(link, PublishingLink):
            link.writable = writable
            if writable:
                link.pump(driver.now())
                driver.step()

    def lost(self, why: str) -> None:
        driver = self._driver
        if driver.attempt is self:
            driver.attempt = None
            driver.link.lost(why, driver.now())
            driver.step()

    def read(self, reading: bool) -> None:
        """Let the transport read on, or not."""
        if reading != self.reading and self.transport is not None:
            self.reading = reading
            self._driver.link.reading = reading
            self.transport.set_reading(reading)

    def end(self, abort: bool) -> None:
        """Close the transport, or give the attempt up."""
        if self.transport is None:
            if self.cancel is not None:
                self.cancel()
        elif abort:
            self.transport.abort()
        else:
            # A goodbye arrives, and later input is discarded.
            self.transport.set_reading(True)
            self.transport.close()
