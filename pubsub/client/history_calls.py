"""The calls of a client that use the history over the HTTP API: last messages, and readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pubsub.client.api_requests import ApiRequests
from pubsub.client.broker_urls import BrokerUrls
from pubsub.client.client_errors import ClientClosed, ClientError, ConnectFailed
from pubsub.client.client_links import ClientLinks
from pubsub.client.client_options import ClientOptions
from pubsub.client.client_url import ClientUrl
from pubsub.client.feed import Feed
from pubsub.client.messages import Message
from pubsub.client.notices import Notice
from pubsub.client.reader_session import ReaderSession
from pubsub.client.request_checks import (
    check_count,
    check_reader,
    check_subscription,
    check_topic,
    interests_of,
)
from pubsub.client.runtime import Runtime
from pubsub.client.subscribing_link import SubscribingLink
from pubsub.client.subscription import Subscription
from pubsub.wire.client_events import Interest

_CLOSED = "the client was closed"


class HistoryCalls:
    """Last messages, and the readers of a client."""

    def __init__(self, runtime: Runtime, options: ClientOptions, links: ClientLinks) -> None:
        self._runtime = runtime
        self._options = options
        self._links = links
        # Those whose replies are waited for.
        self._asked: set[ApiRequests] = set()
        # The readers that are not gone, with the feeds of their subscriptions.
        self._sessions: dict[ReaderSession, Feed] = {}

    async def last(self, topic: str, count: int) -> list[Message]:
        """See ``Client``."""
        check_count(count)
        wire, brokers = self._links.api_wire("last")
        check_topic(wire, topic)
        query = (("last", count), ("topic", topic), ("format", "jsonl"), ("headers", 1))
        options = self._options
        targets = brokers.from_good()
        failures: list[str] = []
        for target in targets:
            # There is none after the last one.
            seconds = options.timeout if target is targets[-1] else options.timing.connect
            api = self._api(target, seconds)
            self._asked.add(api)
            try:
                found = api.messages_of(await api.call("GET", "/v1/history", query))
            except ConnectFailed as error:
                failures.append(str(error))
                continue
            finally:
                self._asked.discard(api)
            brokers.found(target)
            return found
        raise ConnectFailed("; ".join(failures))

    def subscribe(
        self,
        reader: str,
        topics: Sequence[str],
        prefixes: Sequence[str],
        start: int | None,
        events: bool,
    ) -> Subscription[Notice]:
        """Subscribe at the position of ``reader``; see ``Client``."""
        wire, brokers = self._links.api_wire("reader=")
        interests = interests_of(topics, prefixes, start)
        check_reader(reader, interests)
        check_subscription(wire, topics, prefixes, start)
        options = self._options
        feed = Feed(interests, options.feed_bytes, events)
        # Positions and leases are those of one broker: the one that the session uses.
        own = BrokerUrls(brokers.from_good())
        driver = self._links.reader(wire, own)
        link = driver.link
        assert isinstance(link, SubscribingLink)
        feed.on_room = driver.step_soon

        def begin(position: str) -> None:
            brokers.found(session.target)
            own.urls = (session.target,)
            feed.begin([Interest(one.name, position=position) for one in interests])
            link.add(feed, driver.now())
            self._links.start(driver)
            driver.step()

        def fail(error: ClientError) -> None:
            feed.end(error)
            self._links.leave(driver, feed)

        session = self._session(own.urls, reader, start, feed, begin, fail)

        def leave() -> None:
            session.close(feed.error)
            self._links.leave(driver, feed)
            # One that has not begun is in no link.
            feed.end(None)

        return Subscription(self._runtime, feed, leave, session)

    def _session(
        self,
        targets: Sequence[ClientUrl],
        reader: str,
        start: int | None,
        feed: Feed,
        begin: Callable[[str], None],
        fail: Callable[[ClientError], None],
    ) -> ReaderSession:
        options = self._options
        seconds = min(options.timeout, options.timing.connect)
        apis = [self._api(target, seconds) for target in targets]
        session = ReaderSession(
            self._runtime, apis, reader, start, begin, fail, lambda: self._links.proved,
            options.timing, options.timeout,
        )  # fmt: skip
        self._sessions[session] = feed
        session.gone.when_done(lambda: self._forget(session))
        self._runtime.spawn(session.run())
        return session

    def _forget(self, session: ReaderSession) -> None:
        self._sessions.pop(session, None)

    def _api(self, target: ClientUrl, seconds: float) -> ApiRequests:
        return ApiRequests(self._runtime, target, self._options.tls, self._token, seconds)

    def _token(self) -> str | None:
        """Return the token, that of the file if it comes from one."""
        if self._options.token is not None:
            self._options.token.renew()
        return self._options.token_text()

    async def close(self) -> None:
        """Release the readers, and give up what waits for a reply."""
        for api in self._asked:
            api.close(_CLOSED)
        sessions = dict(self._sessions)
        for session, feed in sessions.items():
            why = ClientClosed(_CLOSED)
            session.close(why)
            # One that has not begun is in no link.
            feed.end(why)
        for session in sessions:
            await self._runtime.wait_for(session.gone)
