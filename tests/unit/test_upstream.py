"""Topics that another broker hosts: the interface ``Upstream``, which spot uses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import LimitReached, TopicUnreachable
from pubsub.kernel import Columns
from tests.unit.fakes import Bench, Lines, Reader, make_broker, make_listener


class RemoteHost:
    """An ``Upstream`` that records; ``reachable`` or not."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.batches: list[Batch] = []
        self.reachable = True

    def publish(self, topic: Topic, batch: Batch) -> None:
        if not self.reachable:
            raise TopicUnreachable(topic.name)
        self.batches.append(batch)

    def when_confirmed(self, topic: Topic, call: Callable[[bool], None]) -> None:
        self.calls.append(("confirm", topic.name))
        call(self.reachable)

    def update(self, topic: Topic) -> Deferred[bool]:
        return succeed(True)

    def want(self, topic: Topic) -> None:
        self.calls.append(("want", topic.name))

    def no_longer_hosts(self, topic: Topic) -> bool:
        return False

    def unwant(self, topic: Topic) -> None:
        self.calls.append(("unwant", topic.name))


class HostedTests(SynchronousTestCase):
    """The broker that hosts a topic"""

    def test_a_topic_is_hosted_once_it_is_created_or_published_to(self) -> None:
        broker = make_broker()
        offered = broker.topics.create("t", hosted=False)
        assert not offered.hosted
        broker.dispatcher.publish(offered, Columns.of([b"x"]), b"", "toy")
        assert offered.hosted
        assert broker.topics.create("u").hosted
        broker.topics.create("v", hosted=False)
        assert broker.topics.create("v").hosted

    def test_a_hosted_topic_stays_hosted(self) -> None:
        topics = make_broker().topics
        topics.create("t")
        assert topics.create("t", hosted=False).hosted

    def test_a_topic_of_another_broker_is_not_taken_over(self) -> None:
        topics = make_broker().topics
        topics.create("t", hosted=False).upstream = RemoteHost()
        assert not topics.create("t").hosted

    def test_claim_checks_can_refuse_an_offered_topic(self) -> None:
        broker = make_broker()
        seen: list[str] = []

        def check(name: str) -> None:
            seen.append(name)
            raise TopicUnreachable(name)

        offered, own = broker.topics.create("t", hosted=False), broker.topics.create("u")
        broker.topics.claim_checks.append(check)
        with pytest.raises(TopicUnreachable):
            broker.dispatcher.publish(offered, Columns.of([b"x"]), b"", "toy")
        for name in ("t", "v"):
            with pytest.raises(TopicUnreachable):
                broker.topics.create(name)
        assert not offered.hosted
        assert "v" not in broker.topics
        assert broker.store.next_offset == 0
        broker.dispatcher.publish(own, Columns.of([b"x"]), b"", "toy")
        assert broker.topics.create("u") is own
        assert seen == ["t", "t", "v"]


class WatcherTests(SynchronousTestCase):
    """Watchers of new topics"""

    def test_watchers_see_every_new_topic_once_and_can_find_it(self) -> None:
        topics = make_broker().topics
        topics.create("before")
        seen: list[tuple[str, bool]] = []
        topics.watch(lambda topic: seen.append((topic.name, topic.name in topics)))
        topics.create("t")
        topics.create("t")
        topics.create("u", hosted=False)
        assert seen == [("t", True), ("u", True)]


class PublishTests(SynchronousTestCase):
    """Publishing to a topic that another broker hosts"""

    def setUp(self) -> None:
        self.broker = make_broker()
        self.far = RemoteHost()
        self.topic = self.broker.topics.create("t", hosted=False)
        self.topic.upstream = self.far

    def test_a_batch_goes_to_the_host_and_is_neither_stored_nor_routed(self) -> None:
        lines = Lines()
        outbox = make_listener(self.broker).outbox(_Sink(), Reader())
        self.broker.router.subscribe(outbox, self.topic, lines)
        publisher = make_listener(self.broker).publisher(None, b"alice")
        batch = publisher.publish(self.topic, Columns.of([b"a", b"b"]))
        assert self.far.batches == [batch]
        assert (batch.payloads(), batch.sender) == ([b"a", b"b"], b"alice")
        assert self.broker.store.next_offset == 0
        assert lines.batches == []
        assert self.broker.counters.published == 2

    def test_message_ids_increase(self) -> None:
        batches = [
            self.broker.dispatcher.publish(self.topic, Columns.of([b"x"]), b"", "toy")
            for _ in range(2)
        ]
        assert [batch.sequence for batch in batches] == [0, 1]

    def test_an_unreachable_host_is_refused_and_changes_nothing(self) -> None:
        self.far.reachable = False
        with pytest.raises(TopicUnreachable):
            self.broker.dispatcher.publish(self.topic, Columns.of([b"x"]), b"", "toy")
        assert self.broker.counters.published == 0
        assert not self.topic.hosted

    def test_batches_of_the_host_are_delivered_locally_only(self) -> None:
        lines = Lines()
        sink = _Sink()
        outbox = make_listener(self.broker).outbox(sink, Reader())
        self.broker.router.subscribe(outbox, self.topic, lines)
        self.broker.dispatcher.relay(self.topic, Columns.of([b"x"]), b"tcp://b:1", "spot")
        self.broker.router.flush()
        assert sink.written == [b"x\n"]
        assert self.far.batches == []
        assert self.broker.store.next_offset == 1
        assert self.broker.counters.published == 0


class ReaderTests(SynchronousTestCase):
    """Local readers of a topic that another broker hosts"""

    def setUp(self) -> None:
        self.bench = Bench()
        self.far = RemoteHost()
        self.topic = Topic("t")
        self.topic.upstream = self.far

    def test_want_for_each_reader_and_unwant_after_the_last(self) -> None:
        boxes = [self.bench.outbox().outbox for _ in range(2)]
        for number, box in enumerate(boxes):
            assert box is not None
            self.bench.router.subscribe(box, self.topic, Lines(b"%d" % number))
        assert self.far.calls == [("want", "t")] * 2
        assert self.topic.has_readers
        self.far.calls.clear()
        for box in boxes:
            assert box is not None
            self.bench.router.unsubscribe(box, self.topic)
        assert self.far.calls == [("unwant", "t")]
        assert not self.topic.has_readers

    def test_readers_of_the_history_count(self) -> None:
        box = self.bench.outbox().outbox
        assert box is not None
        router = self.bench.router
        router.read_history(self.topic)
        router.subscribe(box, self.topic, Lines())
        router.unsubscribe(box, self.topic)
        assert self.far.calls == [("want", "t")] * 2
        router.leave_history(self.topic)
        assert self.far.calls[2:] == [("unwant", "t")]
        router.leave_history(self.topic)
        assert self.topic.history_readers == 0

    def test_a_local_topic_sends_no_request(self) -> None:
        topic = Topic("own")
        box = self.bench.outbox().outbox
        assert box is not None
        self.bench.router.subscribe(box, topic, Lines())
        self.bench.router.unsubscribe(box, topic)
        assert self.far.calls == []


class LimitTests(SynchronousTestCase):
    """Watchers and the limit of topics"""

    def test_watchers_do_not_see_a_refused_topic(self) -> None:
        topics = make_broker().topics
        seen: list[str] = []
        topics.watch(lambda topic: seen.append(topic.name))
        topics.limit = 0
        with pytest.raises(LimitReached):
            topics.create("t")
        assert seen == []


class _Sink:
    """A consumer that collects its input."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)
