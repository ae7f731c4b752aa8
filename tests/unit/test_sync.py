"""Sync topics: acknowledgments wait for the disk, in order; nothing else waits."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.listener import Listener
from pubsub.broker.topic_space.durability import Durability
from pubsub.errors import HistoryUnavailable
from pubsub.wire.replies import Reply, ReplyQueue
from tests.unit import cafe_wire, nsd_lines, rheos_wire
from tests.unit import rheos_wire as wire
from tests.unit.committed_history import SlowDisk
from tests.unit.rheos_wire import ALICE, BOB, FAILED, Rheos


class RheosTests(SynchronousTestCase):
    """rheos's acknowledgments"""

    def setUp(self) -> None:
        self.disk = SlowDisk()
        self.rheos = Rheos(store=self.disk)
        self.rheos.broker.topics.named("news").set_durability(Durability.SYNC)
        self.rheos.broker.topics.create("gossip")
        self.reader = self.rheos.reader(BOB, "news")
        self.client = self.rheos.connect("rheos")

    def test_they_wait_and_deliveries_do_not(self) -> None:
        self.client.send(wire.publish(ALICE, b"1", b"2"))
        assert self.client.take() == b""
        assert self.reader.take() == rheos_wire.response(ALICE, b"1", b"2")
        self.disk.commit()
        assert len(wire.message_ids(self.client.take())) == 2

    def test_later_requests_are_handled_at_once_and_answered_later(self) -> None:
        self.client.send(wire.publish(ALICE, b"1"))
        self.client.send(
            wire.publish(ALICE, b"x", name=b"gossip") + wire.publish(ALICE, b"y", name=b"none")
        )
        assert self.rheos.broker.counters.published == 2
        assert self.client.take() == b""
        self.disk.commit()
        answers = self.client.take()
        assert len(wire.message_ids(answers[:36])) == 2
        assert answers[36:] == FAILED

    def test_other_clients_do_not_wait(self) -> None:
        self.client.send(wire.publish(ALICE, b"1"))
        other = self.rheos.connect("rheos")
        other.send(wire.publish(BOB, b"x", name=b"gossip"))
        assert other.take() == b""
        self.disk.write()
        assert len(wire.message_ids(other.take())) == 1
        assert self.client.take() == b""

    def test_each_request_of_a_read_has_its_own_reply(self) -> None:
        mixed = (
            wire.publish(ALICE, b"1")
            + wire.publish(ALICE, b"x", name=b"gossip")
            + wire.publish(ALICE, b"2")
        )
        self.client.send(mixed)
        self.disk.commit(done=False)
        assert len(rheos_wire.unconfirmed_ids(self.client.take())) == 3
        assert self.rheos.refused("history-unavailable") == 1

    def test_a_full_disk_fails_them_at_once(self) -> None:
        self.disk.broken = True
        self.client.send(wire.publish(ALICE, b"1", b"2"))
        assert self.client.take() == FAILED * 2
        assert self.reader.take() == b""
        assert self.rheos.refused("history-unavailable") == 2
        self.disk.broken = False
        self.client.send(wire.publish(ALICE, b"3"))
        self.disk.commit()
        assert len(wire.message_ids(self.client.take())) == 1

    def test_creating_a_sync_topic_waits(self) -> None:
        rules = self.rheos.broker.topic_lifecycle._rules
        rules.durability = lambda name: Durability.SYNC  # type: ignore[method-assign]
        self.client.send(wire.create(ALICE, b"fresh"))
        assert self.client.take() == b""
        self.disk.commit()
        assert self.client.take() == rheos_wire.topic_ack("fresh")

    def check_closes_after_commit(self) -> None:
        """Check that the client is closed after the acknowledgment, which waits for the commit."""
        assert not self.client.closed
        self.disk.commit()
        self.rheos.pump()
        assert len(wire.message_ids(self.client.take())) == 1
        assert self.client.closed

    def test_a_half_closed_client_gets_them_first(self) -> None:
        self.client.send(wire.publish(ALICE, b"1"))
        self.client.protocol.readConnectionLost()
        self.check_closes_after_commit()

    def test_shutdown_sends_them_first(self) -> None:
        self.rheos.start()
        self.client.send(wire.publish(ALICE, b"1"))
        self.rheos.broker.stopService()
        self.rheos.pump()
        self.check_closes_after_commit()

    def test_an_error_follows_them_and_is_the_last_reply(self) -> None:
        self.client.send(wire.publish(ALICE, b"1") + b"\x00" * 30)
        self.client.send(wire.publish(ALICE, b"2"))
        assert self.client.take() == b""
        assert not self.client.closed
        self.disk.commit()
        self.rheos.pump()
        answers = self.client.take()
        assert len(wire.message_ids(answers[:18])) == 1
        assert answers[18:] == FAILED
        assert self.client.closed
        assert self.rheos.broker.counters.published == 1

    def test_replies_for_a_disconnected_client_are_discarded(self) -> None:
        self.client.send(wire.publish(ALICE, b"1"))
        self.client.stream.lose()
        self.disk.commit()
        assert self.client.take() == b""


class NsdTests(SynchronousTestCase):
    """nsd's SuccessResponse, and Get"""

    def setUp(self) -> None:
        self.disk = SlowDisk()
        self.nsd = nsd_lines.Nsd(store=self.disk)
        self.client = self.nsd.connect("nsd")
        self.client.send(nsd_lines.open_("ada"))
        self.disk.write()
        assert self.client.take() == nsd_lines.SUCCESS
        self.nsd.broker.topics.named("ada").set_durability(Durability.SYNC)

    def test_a_response_and_later_ones_wait(self) -> None:
        self.client.send(nsd_lines.publish("ada", "1") + nsd_lines.publish("nobody", "2"))
        assert self.client.take() == b""
        self.disk.commit()
        assert self.client.take() == nsd_lines.SUCCESS + nsd_lines.error("NO SUCH CHANNEL: nobody")

    def test_consecutive_responses_wait_and_fail_together(self) -> None:
        row = b"".join(nsd_lines.publish("ada", str(number)) for number in range(5))
        self.client.send(row)
        assert self.client.take() == b""
        self.disk.commit()
        assert self.client.take() == nsd_lines.SUCCESS * 5
        self.client.send(row)
        self.disk.commit(done=False)
        assert self.client.take() == nsd_lines.error("UNCONFIRMED") * 5
        self.disk.broken = True
        self.client.send(row)
        assert self.client.take() == nsd_lines.error("HISTORY UNAVAILABLE") * 5
        assert self.nsd.broker.counters.refusals == {("nsd", HistoryUnavailable.reason): 10}

    def test_a_failure_has_the_error_of_the_protocol(self) -> None:
        """A message that was accepted may be stored later; one that is refused is not."""
        self.client.send(nsd_lines.publish("ada", "1"))
        self.disk.commit(done=False)
        assert self.client.take() == nsd_lines.error("UNCONFIRMED")
        self.disk.broken = True
        self.client.send(nsd_lines.publish("ada", "1"))
        assert self.client.take() == nsd_lines.error("HISTORY UNAVAILABLE")

    def test_a_list_behind_a_response_that_waits_is_not_read_yet(self) -> None:
        texts = [f"{number}" + "." * 900 for number in range(30)]
        self.client.send(b"".join(nsd_lines.publish("ada", text) for text in texts))
        self.disk.commit()
        assert self.client.take() == nsd_lines.SUCCESS * 30
        self.client.send(nsd_lines.publish("ada", "1") + nsd_lines.get("ada"))
        self.disk.write()
        self.nsd.pump()
        assert self.client.take() == b""
        waiting = self.client.protocol.replies
        assert waiting is not None
        assert sum(len(reply.data) for reply in waiting._replies) < 1000
        self.disk.commit()
        self.nsd.pump()
        success, messages = self.client.take().splitlines(keepends=True)
        assert success == nsd_lines.SUCCESS
        assert nsd_lines.bodies(messages) == [*texts, "1"]

    def test_a_client_that_leaves_while_its_list_waits(self) -> None:
        self.client.send(nsd_lines.publish("ada", "1") + nsd_lines.get("ada"))
        self.disk.write()
        self.nsd.pump()
        self.client.stream.lose()
        self.nsd.pump()
        self.disk.commit()
        assert self.client.take() == b""
        assert len(self.nsd.broker.clients) == 0

    def test_get_waits_until_all_published_messages_are_committed(self) -> None:
        self.client.send(nsd_lines.publish("ada", "1"))
        self.disk.commit()
        assert self.client.take() == nsd_lines.SUCCESS
        self.client.send(nsd_lines.publish("ada", "2") + nsd_lines.get("ada"))
        self.nsd.pump()
        assert self.client.take() == b""
        self.disk.commit()
        self.nsd.pump()
        success, messages = self.client.take().splitlines(keepends=True)
        assert success == nsd_lines.SUCCESS
        assert nsd_lines.bodies(messages) == ["1", "2"]

    def test_get_returns_committed_messages_when_the_disk_is_full(self) -> None:
        self.client.send(nsd_lines.publish("ada", "1"))
        self.disk.commit()
        self.client.send(nsd_lines.publish("ada", "2"))
        self.client.take()
        self.disk.commit(done=False)
        self.client.take()
        self.client.send(nsd_lines.get("ada"))
        self.disk.commit(done=False)
        self.nsd.pump()
        assert self.client.take().count(b'"when"') <= 2


class CafeTests(SynchronousTestCase):
    """cafe has no acknowledgments"""

    def test_a_full_disk_is_an_error_and_recovers(self) -> None:
        disk = SlowDisk()
        house = nsd_lines.Nsd(store=disk, also={"cafe": {}})
        client = house.connect("cafe")
        client.send(cafe_wire.hs_pub(1, b"ada"))
        client.take()
        disk.broken = True
        client.send(cafe_wire.publish(1, b"x"))
        assert client.take()[-1] == 0x04
        assert not client.closed
        disk.broken = False
        client.send(cafe_wire.publish(1, b"y"))
        assert client.take() == b""
        assert disk.next_offset == 1


class RuleTests(SynchronousTestCase):
    """Topics that are not stored"""

    def test_messages_with_durability_none_leave_no_gap(self) -> None:
        disk = SlowDisk()
        rheos = Rheos(store=disk)
        topic = rheos.broker.topics.named("news")
        reader = rheos.reader(BOB, "news")
        client = rheos.connect("rheos")
        topic.set_durability(Durability.NONE)
        client.send(wire.publish(ALICE, b"1", b"2"))
        assert reader.take() == rheos_wire.response(ALICE, b"1", b"2")
        assert disk.next_offset == 0
        topic.set_durability(Durability.ASYNC)
        client.send(wire.publish(ALICE, b"3"))
        assert disk.next_offset == 1
        assert len(wire.message_ids(client.take())) == 2
        disk.write()
        assert len(wire.message_ids(client.take())) == 1


class Replying:
    """A connection that records its replies, of which few wait."""

    listener: Listener
    closing = False

    def __init__(self) -> None:
        self.replies: ReplyQueue | None = ReplyQueue(self)
        self.queue = self.replies
        self.sent: list[bytes] = []
        self.refused: list[tuple[str, int]] = []

    def reply(self, data: bytes) -> None:
        self.send_reply(data)

    def refuse(self, reason: str, count: int = 1) -> None:
        self.refused.append((reason, count))

    def send_reply(self, data: bytes) -> None:
        self.sent.append(data)

    def answered(self) -> None: ...

    def hold(self, reason: object) -> None: ...

    def release(self, reason: object) -> None: ...

    def evict(self, reason: str) -> None: ...

    def ask(self, data: bytes, failed: bytes | None = None, count: int = 1) -> Reply:
        """Add the reply to a request."""
        return self.queue.add(data, failed, count)


class ReplyQueueTests(SynchronousTestCase):
    """The order of replies"""

    def setUp(self) -> None:
        self.client = Replying()

    def test_replies_have_the_order_of_their_requests(self) -> None:
        first, second = self.client.ask(b"1", b"a"), self.client.ask(b"2", b"b")
        self.client.ask(b"3")
        second.stored(True)
        assert not self.client.sent
        first.stored(True)
        assert self.client.sent == [b"123"]
        assert self.client.replies is None

    def test_ready_replies_are_sent_while_later_ones_wait(self) -> None:
        first = self.client.ask(b"1", b"a")
        self.client.ask(b"2")
        second = self.client.ask(b"3", b"c")
        first.stored(True)
        assert (self.client.sent, self.client.replies) == ([b"12"], self.client.queue)
        second.stored(True)
        assert (self.client.sent, self.client.replies) == ([b"12", b"3"], None)

    def test_the_end_follows_the_last_reply(self) -> None:
        reply = self.client.ask(b"1", b"a")
        self.client.answered = lambda: self.client.sent.append(b"end")  # type: ignore[method-assign]
        assert not self.client.sent
        reply.stored(True)
        assert self.client.sent == [b"1", b"end"]

    def test_a_failed_commit_is_answered_with_an_error_and_counted(self) -> None:
        self.client.ask(b"1", b"a", 7).stored(False)
        assert self.client.sent == [b"a"]
        assert self.client.refused == [(HistoryUnavailable.reason, 7)]

    def test_a_connection_that_ended_gets_no_reply(self) -> None:
        reply = self.client.ask(b"1", b"a")
        self.client.closing = True
        reply.stored(False)
        assert not self.client.sent
        assert not self.client.refused
