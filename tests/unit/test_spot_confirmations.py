"""Messages to topics of another broker are acknowledged when it has confirmed them (spot §7.7)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.topic_space.durability import Durability
from pubsub.protocols.spot.broker_commands import (
    EPOCH,
    Confirm,
    Confirmation,
    decode_broker_command,
    encode_broker_command,
)
from pubsub.protocols.spot.commands import SpotError
from pubsub.protocols.spot.confirmations import PendingConfirmations
from pubsub.protocols.spot.peer_connection import PeerConnection
from tests.unit import nsd_lines, rheos_wire
from tests.unit.brokers import World, message, publish
from tests.unit.committed_history import SlowDisk
from tests.unit.nsd_lines import SUCCESS
from tests.unit.raising import raised
from tests.unit.rheos_wire import ALICE, message_ids, unconfirmed_ids
from tests.unit.streams import Client

UNCONFIRMED = nsd_lines.error("UNCONFIRMED")


class ConfirmationCase(SynchronousTestCase):
    """A broker ``a`` that knows ``b``, which hosts the topics ``t`` and ``u``"""

    def setUp(self) -> None:
        self.world = World()
        self.disk = SlowDisk()
        self.b = self.world.house("b", store=self.disk)
        self.b.broker.topics.create("t").set_durability(Durability.SYNC)
        self.b.broker.topics.create("u").set_durability(Durability.NONE)
        self.a = self.world.house("a", "b", nsd={"max-body": 2**21}, rheos={})
        (self.cable,) = self.world.cables
        assert isinstance(self.cable.link, PeerConnection)
        self.link = self.cable.link

    def nsd(self, channel: str = "t") -> Client:
        """Return a client of nsd that may publish on a channel."""
        client = self.a.connect("nsd")
        client.send(nsd_lines.open_(channel))
        assert client.take() == SUCCESS
        self.world.settle()
        return client

    def refusals(self) -> dict[tuple[str, str], int]:
        """Return the refusals of ``a``."""
        return dict(self.a.broker.counters.refusals)


class StoredTests(ConfirmationCase):
    """Topics that are stored at their host"""

    def check_waits(self) -> None:
        """Publish, and check that the acknowledgment waits for the host's commit."""
        client = self.nsd()
        client.send(nsd_lines.publish("t", "1"))
        self.world.settle()
        assert client.take() == b""
        self.disk.commit()
        self.world.settle()
        assert client.take() == SUCCESS

    def test_success_follows_the_write_of_the_host(self) -> None:
        self.b.broker.topics.named("t").set_durability(Durability.ASYNC)
        self.check_waits()

    def test_success_follows_the_disk_of_the_host(self) -> None:
        self.check_waits()

    def test_confirmed_messages_are_not_counted_as_lost(self) -> None:
        self.check_waits()
        self.nsd().send(nsd_lines.publish("t", "2"))
        self.world.settle()
        self.world.crash("b")
        # The second one, which the host has not confirmed.
        assert sum(self.a.broker.counters.drops.values()) == 1

    def test_a_full_disk_of_the_host_is_a_failure(self) -> None:
        client = self.nsd()
        self.disk.broken = True
        client.send(nsd_lines.publish("t", "1"))
        self.world.settle()
        assert client.take() == UNCONFIRMED
        assert self.refusals() == {("nsd", "unconfirmed"): 1}

    def test_a_failed_commit_of_the_host_is_a_failure(self) -> None:
        client = self.nsd()
        client.send(nsd_lines.publish("t", "1"))
        self.world.settle()
        self.disk.commit(False)
        self.world.settle()
        assert client.take() == UNCONFIRMED

    def test_lines_of_one_read_wait_together(self) -> None:
        client = self.nsd()
        line = nsd_lines.publish("t", "1")
        client.send(line * 2)
        client.send(line * 5)
        self.world.settle()
        assert client.take() == b""
        self.disk.commit()
        self.world.settle()
        self.disk.commit()
        self.world.settle()
        assert client.take() == SUCCESS * 7

    def test_rheos(self) -> None:
        client = self.a.connect("rheos")
        client.send(rheos_wire.publish(ALICE, b"1", b"2", name=b"t"))
        self.world.settle()
        assert client.take() == b""
        self.disk.commit()
        self.world.settle()
        assert len(message_ids(client.take())) == 2
        self.disk.broken = True
        client.send(rheos_wire.publish(ALICE, b"3", b"4", name=b"t"))
        self.world.settle()
        assert len(unconfirmed_ids(client.take())) == 2

    def test_topics_of_both_brokers_in_one_read(self) -> None:
        own = self.a.broker.topics.create("own")
        client = self.a.connect("rheos")
        both = rheos_wire.publish(ALICE, b"1", name=b"t") + rheos_wire.publish(
            ALICE, b"2", name=b"own"
        )
        client.send(both)
        assert client.take() == b""
        self.world.settle()
        self.disk.commit()
        self.world.settle()
        assert len(message_ids(client.take())) == 2
        own.set_durability(Durability.SYNC)
        self.disk.broken = True
        client.send(both)
        self.world.settle()
        assert len(unconfirmed_ids(client.take())) == 2


class HandledTests(ConfirmationCase):
    """Topics that are not stored at their host"""

    def test_success_follows_the_host(self) -> None:
        client = self.nsd("u")
        client.send(nsd_lines.publish("u", "1"))
        assert client.take() == b""
        self.world.settle()
        assert client.take() == SUCCESS

    def test_a_message_that_the_host_refuses_is_a_failure(self) -> None:
        client = self.nsd("u")
        listener = self.b.listeners["spot"]
        listener.reconfigure({**listener.settings, "allow-publish": ("t",)})
        client.send(nsd_lines.publish("u", "1"))
        self.world.settle()
        assert client.take() == UNCONFIRMED

    def test_a_connection_that_breaks_is_a_failure(self) -> None:
        client = self.nsd("u")
        self.cable.is_cut = True
        client.send(nsd_lines.publish("u", "1"))
        self.cable.snap()
        assert client.take() == UNCONFIRMED

    def test_a_host_that_does_not_reply_in_time_is_a_failure(self) -> None:
        self.disk.when_stored = lambda call: None  # type: ignore[method-assign]
        client = self.nsd()
        client.send(nsd_lines.publish("t", "1"))
        self.world.advance(20)
        client.send(nsd_lines.publish("t", "2"))
        self.world.advance(9)
        assert client.take() == b""
        self.world.advance(3)
        assert client.take() == UNCONFIRMED
        self.world.advance(30)
        assert client.take() == UNCONFIRMED
        refusals = self.refusals()
        assert refusals["spot", "confirm-timeout"] == refusals["nsd", "unconfirmed"] == 2

    def test_a_late_reply_is_ignored(self) -> None:
        client = self.nsd()
        client.send(nsd_lines.publish("t", "1"))
        self.world.advance(32)
        assert client.take() == UNCONFIRMED
        client.send(nsd_lines.publish("t", "2"))
        self.world.settle()
        self.disk.commit()
        self.world.settle()
        assert client.take() == SUCCESS

    def test_a_message_over_the_limit_is_a_failure(self) -> None:
        client = self.a.connect("nsd")
        listener = self.a.listeners["spot"]
        listener.reconfigure({**listener.settings, "max-message": 100})
        client.send(nsd_lines.open_("u"))
        line = nsd_lines.publish("u", "1")
        client.send(line * 3 + nsd_lines.publish("u", "x" * 200) + line)
        self.world.settle()
        assert client.take().splitlines().count(UNCONFIRMED.strip()) >= 1

    def test_there_is_one_request_at_a_time(self) -> None:
        clients = [self.nsd("u") for _ in range(5)]
        self.cable.take()
        for client in clients:
            client.send(nsd_lines.publish("u", "1"))
        self.world.settle()
        assert [client.take() for client in clients] == [SUCCESS] * 5
        sent = self.cable.take()
        assert sent.count(message(b"", b"\x06", bytes(7) + b"\x01")) == 1
        assert sent.count(message(b"", b"\x06", bytes(7) + b"\x05")) == 1
        assert sent.count(b"\x01\x06") == 2

    def test_publishers_without_acknowledgments_request_none(self) -> None:
        self.cable.take()
        self.world.client(self.a, b"DEALER", publish(b"u", b"x"))
        assert self.cable.take() == publish(b"u", b"x")

    def test_requests_are_sent_behind_a_backlog(self) -> None:
        client = self.nsd("u")
        outbox = self.link.outbox
        assert outbox is not None
        outbox.pause()
        client.send(nsd_lines.publish("u", "1"))
        self.world.settle()
        assert client.take() == b""
        outbox.resume()
        self.world.settle()
        assert client.take() == SUCCESS


class OtherPeerTests(ConfirmationCase):
    """Peers that are no brokers of this kind"""

    def setUp(self) -> None:
        super().setUp()
        del self.link.handshake.metadata[EPOCH.lower()]

    def test_a_pong_confirms_messages(self) -> None:
        client = self.nsd("u")
        client.send(nsd_lines.publish("u", "1"))
        assert client.take() == b""
        self.world.settle()
        assert client.take() == SUCCESS

    def test_a_sync_topic_cannot_be_confirmed(self) -> None:
        client = self.nsd("u")
        self.a.broker.topics.named("u").set_durability(Durability.SYNC)
        client.send(nsd_lines.publish("u", "1"))
        assert client.take() == UNCONFIRMED

    def test_without_pongs_nothing_can_be_confirmed(self) -> None:
        client = self.nsd("u")
        self.link.handshake.minor = 0
        client.send(nsd_lines.publish("u", "1"))
        assert client.take() == UNCONFIRMED


class PendingTests(SynchronousTestCase):
    """The calls that wait for the host"""

    def setUp(self) -> None:
        self.asked: list[int] = []
        self.now = 0.0
        self.results: list[bool] = []
        self.pending = PendingConfirmations(self.asked.append, lambda: self.now)

    def publish(self, count: int = 1) -> None:
        """Publish a message, for which so many calls wait."""
        self.pending.number += 1
        for _ in range(count):
            self.pending.wait(self.results.append)

    def test_at_the_deadline_the_messages_that_were_asked_for_are_given_up(self) -> None:
        self.publish(2)
        self.publish()
        assert self.pending.expire(30) == 0
        self.now = 31
        assert self.pending.expire(30) == 2
        assert self.results == [False, False]
        # The reply that is too late says nothing of the message behind it.
        assert self.asked == [1, 2]
        self.pending.confirmed(Confirmation(0, 1, 1))
        assert self.results == [False, False]
        self.pending.confirmed(Confirmation(1, 2, 1))
        assert self.results == [False, False, True]
        assert self.asked == [1, 2]

    def test_a_reply_confirms_no_message_from_before_the_request_before(self) -> None:
        self.publish()
        self.now = 31
        assert self.pending.expire(30) == 1
        self.pending.wait(self.results.append)
        assert self.asked == [1, 1]
        self.pending.confirmed(Confirmation(1, 1, 0))
        assert self.results == [False, False]

    def test_all_fail_with_the_connection(self) -> None:
        self.publish(2)
        self.publish()
        self.pending.fail()
        assert self.results == [False] * 3


class CodecTests(SynchronousTestCase):
    """The commands"""

    def test_they_are_encoded_and_decoded(self) -> None:
        for command, encoded in (
            (Confirm(258), message(b"", b"\x06", bytes(6) + b"\x01\x02")),
            (
                Confirmation(0, 3, 2),
                message(b"", b"\x07", bytes(15) + b"\x03" + bytes(7) + b"\x02"),
            ),
        ):
            assert encode_broker_command(command) == encoded
            frames = [b"", encoded[4:5], encoded[7:]]
            assert decode_broker_command(frames) == command

    def test_other_messages(self) -> None:
        for frames in ([b""], [b"\x06", bytes(8)], [b"", b"\x01", b"t", b"x"]):
            assert decode_broker_command(frames) is None
        for frames in ([b"", b"\x06", b"1"], [b"", b"\x07", bytes(8)], [b"", b"\x06"]):
            raised(SpotError, decode_broker_command, frames)

    def test_they_are_for_brokers_only(self) -> None:
        world = World()
        house = world.house("b")
        client = world.client(house, b"DEALER", message(b"", b"\x06", bytes(8)))
        assert client.take() == b""
        assert house.broker.counters.refusals == {("spot", "eproto"): 1}
