"""Which broker hosts a topic is known after a restart of the others (spot §7.2)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.slices import STEPS
from pubsub.protocols.spot.cluster import REMOTE, Cluster
from pubsub.store.memory_store import MemoryStore
from tests.unit import nsd_lines
from tests.unit.brokers import World, publish, subscribe
from tests.unit.streams import House

UNREACHABLE = ("spot", "topic-unreachable")


class RememberedHostTests(SynchronousTestCase):
    """A broker ``a`` that knows ``b``, which hosts the topic ``t``"""

    def setUp(self) -> None:
        self.world = World()
        self.publish(self.world.house("b"))
        self.a = self.world.house("a", "b")
        store = self.a.store
        assert isinstance(store, MemoryStore)
        self.store = store

    def publish(self, house: House, topic: bytes = b"t") -> None:
        self.world.client(house, b"DEALER", publish(topic, b"x"))

    def restart(self, *peers: str) -> None:
        """Restart ``a`` while ``b`` is away."""
        self.world.crash("b")
        self.a.broker.stopService()
        self.a = self.world.house("a", *peers, store=self.store)

    def rows(self) -> dict[str, bytes]:
        return dict(self.store.items(REMOTE))

    def test_a_restarted_broker_does_not_host_a_topic_of_one_that_is_away(self) -> None:
        self.restart("b")
        self.publish(self.a)
        assert not self.a.broker.topics.named("t").hosted
        assert self.a.broker.counters.refusals == {UNREACHABLE: 1}
        self.publish(self.a, b"own")
        assert self.a.broker.topics.named("own").hosted

    def test_a_channel_that_was_opened_here_stays_with_its_host(self) -> None:
        self.a = self.world.house("a", "b", nsd={}, store=self.store)
        self.a.connect("nsd").send(nsd_lines.open_("t"))
        self.a.broker.stopService()
        self.a = self.world.house("a", "b", nsd={}, store=self.store)
        assert not self.a.broker.topics.named("t").hosted
        client = self.a.connect("nsd")
        client.send(nsd_lines.publish("t", "mine"))
        self.world.advance(1)
        assert client.take() == nsd_lines.SUCCESS
        reader = self.world.client(self.world.houses["b"], b"DEALER", subscribe(b"t"))
        client.send(nsd_lines.publish("t", "more"))
        self.world.advance(1)
        assert reader.take() == publish(b"t", b"more")

    def test_it_forwards_to_the_host_when_that_is_back(self) -> None:
        self.restart("b")
        reader = self.world.client(self.a, b"DEALER", subscribe(b"t"))
        b = self.world.restart("b")
        self.world.advance(6)
        self.publish(self.a)
        assert b.broker.topics.named("t").hosted
        assert reader.take() == publish(b"t", b"x")

    def test_the_topics_of_a_broker_that_is_no_peer_any_more_are_free(self) -> None:
        self.world.house("c")
        self.restart("c")
        self.publish(self.a)
        assert self.a.broker.topics.named("t").hosted

    def test_a_topic_that_is_hosted_here_stays_here(self) -> None:
        a = self.world.house("other")
        self.publish(a, b"own")
        a.store.put(REMOTE, "own", b"tcp://b:7073")
        cluster = Cluster(a.listeners["spot"], lambda: 0.0, self.world.reach)
        cluster.join("tcp://b:7073")
        self.world.settle()
        topic = a.broker.topics.named("own")
        assert topic.hosted
        assert topic.upstream is None

    def test_a_listener_that_a_reload_adds_takes_turns(self) -> None:
        """Clients of others are served between the topics, and the peer is asked last."""
        a = self.world.house("other")
        for number in range(1000):
            a.store.put(REMOTE, f"t{number}", b"tcp://b:7073")
            a.store.put(REMOTE, f"u{number}", b"tcp://nowhere:7073")
        before = len(a.broker.topics)
        cluster = Cluster(a.listeners["spot"], lambda: 0.0, self.world.reach)
        cluster.join("tcp://b:7073")
        assert len(a.broker.topics) - before <= STEPS
        self.publish(a, b"t999")
        assert a.broker.counters.refusals == {UNREACHABLE: 1}
        self.world.settle()
        self.world.advance(1)
        hosts = [a.broker.topics.named(f"t{number}").upstream for number in range(1000)]
        assert len(set(hosts)) == 1
        assert None not in hosts
        # It has asked the peer, which has one more.
        assert len(a.broker.topics) - before >= 1001
        assert not any(one.name.startswith("u") for one in a.broker.topics)

    def test_another_host_is_remembered_instead(self) -> None:
        self.a.broker.stopService()
        c = self.world.house("c")
        self.a = self.world.house("a", "b", "c", store=self.store)
        self.world.crash("b")
        self.publish(c)
        self.world.restart("b")
        self.world.advance(22)
        assert self.rows() == {"t": b"tcp://c:7073"}

    def test_a_topic_that_is_deleted_here_is_forgotten(self) -> None:
        topics = self.a.broker.topics
        assert self.rows() == {"t": b"tcp://b:7073"}
        topics.remove(topics.named("t"))
        assert self.rows() == {}
        self.world.advance(11)
        assert self.rows() == {"t": b"tcp://b:7073"}
        assert topics.named("t").upstream is not None

    def test_topics_beyond_the_limit_are_refused(self) -> None:
        self.publish(self.world.houses["b"], b"u")
        self.world.advance(11)
        self.restart()
        self.a.broker.topics.limit = 1
        cluster = Cluster(self.a.listeners["spot"], lambda: 0.0, self.world.reach)
        cluster.join("tcp://b:7073")
        assert self.a.broker.counters.refusals == {("spot", "limit-reached"): 1}
        assert len(self.rows()) == 2
