"""The contract of ``IBackplane``: in memory, and with a nats-server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pubsub.backplane.engine.engine_url import ENGINE, EngineOptions
from pubsub.backplane.engine.nats_backplane import NatsBackplane
from pubsub.backplane.memory_engine.memory import MemoryBackplane, MemoryEngine
from pubsub.backplane.messages.envelopes import Incoming, Outgoing
from pubsub.interfaces import IBackplane
from tests.integration.engine_loop import Loop
from tests.integration.nats_server import NatsServer, nats_server


class Site:
    """One backplane with the messages that it has received."""

    def __init__(self, engine: Engine) -> None:
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.backplane: Any = engine.make(self)
        self.received: list[tuple[str, bytes]] = []
        self._incoming = Incoming()
        self.loop = engine.loop

    def open(self) -> Site:
        self.backplane.open(self._receive)
        self.loop.wait(lambda: self.backplane.trouble is None)
        self.link = Outgoing(self.backplane.link, self.backplane.limit)
        return self

    def _receive(self, envelopes: Any) -> None:
        self.received += [
            (one.name, one.data[one.at : one.stop]) for one in self._incoming.take(envelopes)
        ]

    def drop(self, client: str, topic: str, reason: str, count: int) -> None:
        assert client == "backplane"
        self.dropped[topic, reason] += count

    def send(self, topic: str, *records: bytes) -> None:
        for record in records:
            for envelope in self.link.envelopes(record):
                assert self.backplane.send(topic, envelope, 1) == ""


class Engine:
    """Makes backplanes of one engine; ``server`` is None for the one in memory."""

    def __init__(self, server: NatsServer | None) -> None:
        self.loop = Loop()
        self.server = server
        self.memory = MemoryEngine()
        self.sites: list[Site] = []

    def make(self, site: Site) -> Any:
        if self.server is None:
            return MemoryBackplane(self.memory, lambda call: self.loop.callLater(0, call))
        options = EngineOptions(ENGINE.parse(self.server.url), "", "", "", "", 4 * 1024**2)
        return NatsBackplane(options, self.loop, partial(self.loop.callLater, 0), site.drop)

    def site(self) -> Site:
        site = Site(self)
        self.sites.append(site)
        return site.open()

    def settled(self, *sites: Site) -> None:
        """Wait until the interests of all sites are known: messages of one arrive at each."""
        for site in sites:
            site.backplane.want("settled")
        source = Site(self).open()
        self.sites.append(source)

        def arrived() -> bool:
            source.send("settled", b"?")
            return all(("settled", b"?") in site.received for site in sites)

        self.loop.wait(arrived)
        for site in sites:
            site.received = [one for one in site.received if one[0] != "settled"]


@pytest.fixture(params=["memory", "nats"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    def run(made: Engine) -> Iterator[Engine]:
        yield made
        made.loop.finish(*[site.backplane.close() for site in made.sites])

    if request.param == "memory":
        yield from run(Engine(None))
        return
    with nats_server(tmp_path) as server:
        yield from run(Engine(server))


def others(site: Site) -> list[tuple[str, bytes]]:
    return [one for one in site.received if one[0] != "settled"]


def test_messages_of_wanted_topics_arrive_once_in_order(engine: Engine) -> None:
    here, there = engine.site(), engine.site()
    for site in (here, there):
        assert IBackplane.providedBy(site.backplane)
        site.backplane.want("a")
        site.backplane.want("b/c")
    engine.settled(here, there)
    sent = [(topic, b"%d" % number) for number in range(300) for topic in ("a", "x", "b/c")]
    for topic, record in sent:
        here.send(topic, record)
    expected = [one for one in sent if one[0] != "x"]
    engine.loop.wait(lambda: len(others(there)) >= len(expected))
    # One subscription is not read before the other is.
    assert others(there) == expected
    assert others(here) == []


def test_prefixes_and_topics_that_they_cover(engine: Engine) -> None:
    here, there = engine.site(), engine.site()
    there.backplane.want("a/b")
    there.backplane.want("c")
    there.backplane.want_prefix(b"a/")
    engine.settled(there)
    here.send("a/b", b"1")
    here.send("a/d", b"2")
    here.send("c", b"3")
    expected = [("a/b", b"1"), ("a/d", b"2"), ("c", b"3")]
    engine.loop.wait(lambda: len(others(there)) >= 3)
    assert others(there) == expected


def test_one_of_several_prefixes_is_not_wanted_any_more(engine: Engine) -> None:
    here, there = engine.site(), engine.site()
    # Both are the same subject of NATS.
    for prefix in (b"a/", b"a/b"):
        there.backplane.want_prefix(prefix)
    engine.settled(there)
    there.backplane.unwant_prefix(b"a/b")
    engine.settled(there)
    here.send("a/b", b"1")
    here.send("a/d", b"2")
    engine.loop.wait(lambda: len(others(there)) >= 2)
    assert others(there) == [("a/b", b"1"), ("a/d", b"2")]


def test_nothing_is_lost_or_doubled_while_subscriptions_change(engine: Engine) -> None:
    here, there = engine.site(), engine.site()
    there.backplane.want("a/b")
    engine.settled(there)
    count = 400
    for number in range(count):
        here.send("a/b", b"%d" % number)
        if number % 40 == 0:
            there.backplane.want_prefix(b"a/")
        elif number % 40 == 20:
            there.backplane.unwant_prefix(b"a/")
        seen = len(others(there))
        if number % 10 == 9:
            engine.loop.wait(lambda: len(others(there)) > seen - 1)  # noqa: B023
    engine.loop.wait(lambda: len(others(there)) >= count)
    assert others(there) == [("a/b", b"%d" % number) for number in range(count)]


def test_a_record_larger_than_the_engine_takes(engine: Engine) -> None:
    here, there = engine.site(), engine.site()
    there.backplane.want("a")
    engine.settled(there)
    large = bytes(range(256)) * 10_000
    assert len(large) > 2 * here.backplane.limit
    here.send("a", large, b"small")
    engine.loop.wait(lambda: len(others(there)) >= 2)
    assert others(there) == [("a", large), ("a", b"small")]


def test_messages_of_unwanted_topics_do_not_arrive(engine: Engine) -> None:
    here, there = engine.site(), engine.site()
    there.backplane.want("a")
    engine.settled(there)
    there.backplane.unwant("a")
    there.backplane.want("b")
    engine.loop.wait(lambda: not there.backplane.figures().get("queued_bytes"))

    def arrived() -> bool:
        here.send("b", b"?")
        return ("b", b"?") in there.received

    engine.loop.wait(arrived)
    here.send("a", b"lost")
    here.send("b", b"end")
    engine.loop.wait(lambda: ("b", b"end") in there.received)
    assert ("a", b"lost") not in there.received


def test_away_and_back(engine: Engine) -> None:
    here, there = engine.site(), engine.site()
    there.backplane.want("a")
    engine.settled(there)
    link = here.backplane.link
    if engine.server is None:
        engine.memory.leave("gone")
    else:
        engine.server.kill()
    engine.loop.wait(lambda: here.backplane.trouble and there.backplane.trouble)
    assert here.backplane.send("a", b"lost", 1) == "backplane-away"
    there.backplane.want("b")
    if engine.server is None:
        engine.memory.come_back()
    else:
        engine.server.start()
    engine.loop.wait(lambda: not (here.backplane.trouble or there.backplane.trouble))
    assert here.backplane.link != link
    # The servers know the subscriptions of a connection some time after the connection.
    engine.settled(there)
    here.link = Outgoing(here.backplane.link, here.backplane.limit)
    here.send("a", b"1")
    here.send("b", b"2")
    engine.loop.wait(lambda: len(others(there)) >= 2)
    assert others(there) == [("a", b"1"), ("b", b"2")]


def test_a_server_that_comes_back_without_jetstream(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        engine = Engine(server)
        here = engine.site()
        server.kill()
        server.jetstream = False
        server.start()
        engine.loop.wait(lambda: "it has no JetStream" in (here.backplane.trouble or ""))
        assert here.backplane.send("a", b"lost", 1) == "backplane-away"
        engine.loop.finish(here.backplane.close())
