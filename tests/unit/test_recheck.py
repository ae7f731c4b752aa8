"""Router: rechecked subscriptions, and ended topics."""

from __future__ import annotations

from pubsub.broker.delivery.slow_policy import DISCONNECT, SlowPolicy
from pubsub.broker.topic_space.topics import KeyChange, Topic
from tests.unit.fakes import Held, Lines, Recheck, Transport
from tests.unit.router_case import RouterCase


class RecheckTests(RouterCase):
    """recheck"""

    def asked(self, *answers: bool) -> tuple[list[Transport], list[KeyChange | None]]:
        """Return subscribers with these replies to a recheck, and the list of rechecks."""
        changes: list[KeyChange | None] = []

        def answering(answer: bool) -> Recheck:
            def recheck(topic: Topic, change: KeyChange | None) -> bool:
                assert topic is self.news
                changes.append(change)
                return answer

            return recheck

        transports = []
        for index, answer in enumerate(answers):
            transport = self.bench.outbox(recheck=answering(answer))
            self.router.subscribe(self.box(transport), self.news, Lines(b">" * (index % 2)))
            transports.append(transport)
        return transports, changes

    def test_a_revoked_subscriber_gets_earlier_messages_only(self) -> None:
        transports, changes = self.asked(True, False, False, True, False)
        self.route(self.news, b"before")
        change = KeyChange(None, b"key")
        assert self.successResultOf(self.router.recheck(self.news, change)) == (2, 3)
        self.route(self.news, b"after")
        self.bench.turn()
        assert changes == [change] * 5
        assert [b"after" in transport.data for transport in transports] == [
            True, False, False, True, False,
        ]  # fmt: skip
        assert all(b"before" in transport.data for transport in transports)
        assert self.bench.counters.delivered == 7

    def test_the_last_revoked_subscriber_leaves_no_group(self) -> None:
        self.asked(False, False, False)
        assert self.successResultOf(self.router.recheck(self.news)) == (0, 3)
        assert not self.news.groups
        assert self.successResultOf(self.router.recheck(self.news)) == (0, 0)

    def test_other_topics_are_not_rechecked(self) -> None:
        (bob,), changes = self.asked(False)
        self.router.subscribe(self.box(bob), self.sport, Lines())
        assert self.successResultOf(self.router.recheck(self.news)) == (0, 1)
        assert changes == [None]
        assert list(self.box(bob).subscriptions) == [self.sport]

    def test_a_subscriber_may_be_disconnected_by_its_recheck(self) -> None:
        def leave(topic: Topic, change: KeyChange | None) -> bool:
            self.box(bob).evict("does not read its errors")
            return False

        bob, eve = self.bench.outbox(recheck=leave), self.subscriber(self.news)
        self.router.subscribe(self.box(bob), self.news, Lines())
        assert self.successResultOf(self.router.recheck(self.news)) == (1, 1)
        self.route(self.news, b"a")
        self.bench.turn()
        assert (bob.data, eve.data) == (b"", b"a\n")

    def test_a_revoked_blocker_releases_publishers(self) -> None:
        (bob,), _changes = self.asked(False)
        publisher = Held()
        self.news.block(self.box(bob))
        self.news.wait(publisher)
        self.router.recheck(self.news)
        assert publisher.reasons == set()


class EndTests(RouterCase):
    """end"""

    def test_the_end_of_a_topic_ends_every_subscription_to_it(self) -> None:
        first, second = self.subscriber(self.news, self.sport), self.subscriber(self.news)
        publisher = Held()
        self.route(self.news, b"last")
        self.news.block(object())
        self.news.wait(publisher)
        self.router.end(self.news)
        self.route(self.news, b"late")
        self.route(self.sport, b"goes on")
        self.bench.turn()
        assert (first.data, second.data) == (b"last\ngoes on\n", b"last\n")
        assert not self.news.groups
        assert not self.news.blockers
        assert publisher.reasons == set()


class WithheldTests(RouterCase):
    """excluding"""

    def test_messages_published_meanwhile_are_for_the_others(self) -> None:
        bob, eve = self.subscriber(self.news), self.subscriber(self.news)
        self.route(self.news, b"before")
        with self.router.excluding(self.box(bob), self.news):
            self.route(self.news, b"own")
        self.route(self.news, b"after")
        self.bench.turn()
        assert bob.data == b"before\nafter\n"
        assert eve.data == b"before\nown\nafter\n"
        assert len(self.news.groups) == 1
        assert self.bench.counters.delivered == 5

    def test_the_only_subscriber_stays_subscribed(self) -> None:
        bob = self.subscriber(self.news)
        with self.router.excluding(self.box(bob), self.news):
            self.route(self.news, b"own")
        self.route(self.news, b"after")
        self.bench.turn()
        assert bob.data == b"after\n"
        assert self.bench.counters.delivered == 1
        assert self.router.unsubscribe(self.box(bob), self.news)
        assert not self.news.groups

    def test_the_exclusion_ends_with_an_error(self) -> None:
        bob = self.subscriber(self.news)
        try:
            with self.router.excluding(self.box(bob), self.news):
                raise ValueError
        except ValueError:
            self.route(self.news, b"after")
        self.bench.turn()
        assert bob.data == b"after\n"

    def test_the_excluded_subscriber_stays_if_the_others_are_evicted(self) -> None:
        bob = self.subscriber(self.news)
        slow = self.bench.outbox(SlowPolicy(DISCONNECT, 10, 30))
        self.router.subscribe(self.box(slow), self.news, Lines())
        self.box(slow).pause()
        with self.router.excluding(self.box(bob), self.news):
            self.route(self.news, b"more than ten bytes")
        assert len(self.bench.closed) == 1
        self.route(self.news, b"after")
        self.bench.turn()
        assert bob.data == b"after\n"
        assert self.router.unsubscribe(self.box(bob), self.news)
        assert not self.news.groups
