"""The links of a client, with their drivers: made by the first requests that need them."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from pubsub.client.broker_urls import BrokerUrls
from pubsub.client.client_errors import HistoryNeeded
from pubsub.client.client_options import ClientOptions
from pubsub.client.feed import Feed
from pubsub.client.link_driver import LinkDriver
from pubsub.client.notices import Notice
from pubsub.client.publishing_link import PublishingLink
from pubsub.client.runtime import Runtime
from pubsub.client.subscribing_link import SubscribingLink
from pubsub.errors import ConfigurationError
from pubsub.wire.client_wire import ClientWire

_log = logging.getLogger("pubsub.client")


class ClientLinks:
    """One link for publishing, one for subscriptions, and those of single subscriptions.

    ``report`` is called with every notice.
    """

    def __init__(
        self, runtime: Runtime, options: ClientOptions, report: Callable[[Notice], None]
    ) -> None:
        self.publishing: LinkDriver | None = None
        """The driver of ``publisher``, once something was published."""
        self._runtime = runtime
        self._options = options
        self._report = report
        self._brokers = BrokerUrls(options.targets)
        # Those of the HTTP API, once it is needed.
        self._api: BrokerUrls | None = None
        self._subscribing: LinkDriver | None = None
        # Of subscriptions that need a connection of their own: those with a start, and of a single
        # topic.
        self._reading: list[LinkDriver] = []
        # Of subscriptions that were closed, until their connections have ended.
        self._leaving: list[LinkDriver] = []

    def publisher(self) -> LinkDriver:
        """Return the driver of the link that publishes."""
        if self.publishing is None:
            options = self._options
            link = PublishingLink(
                options.wire,
                self._brokers,
                options.timing,
                random.random,
                options.queue_bytes,
                self._report,
            )
            self.publishing = self._drive(link)
        return self.publishing

    def subscriber(self) -> LinkDriver:
        """Return the driver of the link that most subscriptions share."""
        if self._subscribing is None:
            self._subscribing = self.reader(self._options.wire, self._brokers)
            self._reading.remove(self._subscribing)
        return self._subscribing

    def reader(self, wire: ClientWire, brokers: BrokerUrls) -> LinkDriver:
        """Return the driver of a link of a single subscription."""
        link = SubscribingLink(wire, brokers, self._options.timing, random.random, self._report)
        driver = self._drive(link)
        self._reading.append(driver)
        return driver

    @property
    def proved(self) -> bool:
        """True if the broker was reached: later failures are repeated."""
        return any(one.link.proved for one in self._drivers())

    def wire_for(self, start: int | None) -> tuple[ClientWire, BrokerUrls]:
        """Return the wire that can begin at ``start``: the client's own, or that of the API."""
        options = self._options
        own = options.wire
        if start is None or own.traits.history:
            return own, self._brokers
        return self._api_wire(f"{own.name} has no history; for start=")

    def api_wire(self, use: str) -> tuple[ClientWire, BrokerUrls]:
        """Return the wire of the API, also if that is the client's own.

        Raises HistoryNeeded, which names the ``use``.
        """
        if self._options.wire.name == "http":
            return self._options.wire, self._brokers
        wire, brokers = self._api_wire(f"for {use}")
        if wire.name != "http":
            raise HistoryNeeded(f"{use} is not for {wire.name}; api= is a URL of the HTTP API")
        return wire, brokers

    def _api_wire(self, why: str) -> tuple[ClientWire, BrokerUrls]:
        options = self._options
        targets = options.api_urls()
        if not targets:
            raise HistoryNeeded(
                f"{why} name the broker's HTTP API with api= or PUBSUB_API, such as "
                "http://127.0.0.1:7080"
            )
        wire = targets[0].wire((options.client_id or "").encode(), options.token_text())
        if not wire.traits.history:
            raise HistoryNeeded(f"{wire.name} has no history; api= is a URL of the HTTP API")
        if self._api is None:
            self._api = BrokerUrls(targets)
        return wire, self._api

    def _drive(self, link: PublishingLink | SubscribingLink) -> LinkDriver:
        tls = self._options.tls if link.attempts.url.tls else None
        return LinkDriver(self._runtime, link, tls, partial(self._renew_token, link.wire))

    def _renew_token(self, wire: ClientWire) -> str | None:
        """Use the token that is in the file now, if it comes from one, and return it."""
        secret = self._options.token
        if secret is None:
            return None
        secret.renew()
        # One that the wire cannot use does not replace one that it could.
        with suppress(ConfigurationError):
            wire.use_token(secret.reveal())
        return secret.reveal()

    def start(self, driver: LinkDriver) -> None:
        """Connect, unless that has begun."""
        if self.proved:
            driver.link.proved = True
        driver.link.start(driver.now())

    def _drivers(self) -> list[LinkDriver]:
        own = [one for one in (self.publishing, self._subscribing) if one is not None]
        return own + self._reading

    def leave(self, driver: LinkDriver, feed: Feed) -> None:
        """End a subscription, and its connection if it has one of its own."""
        link = driver.link
        assert isinstance(link, SubscribingLink)
        link.remove(feed, driver.now())
        if driver in self._reading:
            self._reading.remove(driver)
            self._leaving.append(driver)
            link.close(driver.now())
            driver.step()
            link.gone.when_done(lambda: self._left(driver))
        else:
            driver.step()

    def _left(self, driver: LinkDriver) -> None:
        if driver in self._leaving:
            self._leaving.remove(driver)
            driver.stop()

    def warn(self) -> None:
        """The client is deleted, and was not closed: log what is lost."""
        link = None if self.publishing is None else self.publishing.link
        if isinstance(link, PublishingLink) and (count := link.unconfirmed):
            _log.warning(
                "%s: the client was not closed, so %d published messages may be lost; call close, "
                "or use async with", link.where, count
            )  # fmt: skip

    def close(self) -> list[LinkDriver]:
        """Close all links, and return the drivers of those that are not gone yet."""
        drivers = self._drivers() + self._leaving
        for driver in drivers:
            driver.link.close(driver.now())
            driver.step()
        return drivers
