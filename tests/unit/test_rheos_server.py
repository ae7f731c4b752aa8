"""rheos over streams, beyond the conversations: ids, counters, writes, limits, closing."""

from __future__ import annotations

from itertools import product
from struct import pack
from uuid import UUID, uuid5

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import CONNECTION_BYTES
from pubsub.broker.routing.batch import message_id
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.provisional_topics import ProvisionalTopics
from pubsub.broker.topic_space.topic_registry import TOPIC_BYTES
from pubsub.protocols.rheos.client_ids import CLIENT_BYTES, SUBSCRIPTION_BYTES
from pubsub.protocols.rheos.codec import LAYOUTS, PROBE, Codec, Opcode, Request
from pubsub.protocols.rheos.listener_state import PARENTS
from pubsub.wire.known_heads import HEAD_BYTES
from tests.unit import nsd_lines
from tests.unit import rheos_wire as wire
from tests.unit.rheos_wire import ALICE, BOB, CAROL, FAILED, NIL, SENDERS, Rheos
from tests.unit.stepped_disk import Disk
from tests.unit.streams import logged

ALICE_NAME = "a11ce000-a11c-e000-a11c-e000a11ce000"


class AcknowledgmentTests(SynchronousTestCase):
    """rheos §3"""

    def test_a_connection_gets_what_one_of_its_readers_has_not_sent(self) -> None:
        rheos = Rheos(also={"nsd": {}})
        client = rheos.reader(ALICE)
        client.send(wire.publish(ALICE, b"x"))
        assert len(wire.message_ids(client.take())) == 1
        # The sender that other protocols show for her is not her.
        nsd = rheos.connect("nsd")
        request = nsd_lines.publish("news", "z").replace(b'"from": "news"', b'"from": "%b"')
        nsd.send(nsd_lines.open_("news") + request % str(UUID(bytes=ALICE)).encode())
        assert nsd.take() == nsd_lines.SUCCESS * 2
        assert client.take().endswith(b"z")
        client.send(wire.subscribe(BOB))
        assert client.take() == wire.topic_ack()
        client.send(wire.publish(ALICE, b"y"))
        assert client.take()[18:] == wire.response(ALICE, b"y")

    def test_messages_of_one_read_wait_for_the_safest_of_their_topics(self) -> None:
        disk = Disk()
        rheos = Rheos(store=disk)
        rheos.broker.topics.create("sport").set_durability(Durability.SYNC)
        alice = rheos.connect("rheos")
        data = wire.publish(ALICE, b"x") + wire.publish(ALICE, b"x", name=b"sport")
        for done in (True, True, False):
            alice.send(data * 2)
            assert alice.take() == b""
            assert disk.writes == []
            disk.syncs.pop()(done)
            ids = wire.message_ids if done else wire.unconfirmed_ids
            assert len(ids(alice.take())) == 4
        assert rheos.refused("history-unavailable") == 1

    def test_create_waits_until_the_topic_is_stored(self) -> None:
        disk = Disk()
        rheos = Rheos(store=disk)
        alice = rheos.connect("rheos")
        for done, answer in ((False, FAILED), (True, wire.topic_ack("t1"))):
            name = b"t%d" % done
            alice.send(wire.create(ALICE, name))
            assert alice.take() == b""
            disk.writes.pop()(done)
            assert alice.take() == answer
            # What is there needs no storing.
            alice.send(wire.subscribe(ALICE, name))
            assert alice.take() == wire.topic_ack(name.decode())
        assert rheos.refused("history-unavailable") == 1

    def test_a_message_has_the_id_that_the_broker_gave_it(self) -> None:
        rheos = Rheos()
        broker = rheos.broker
        alice = rheos.connect("rheos")
        alice.send(wire.publish(ALICE, b"a", b"b") + wire.publish(BOB, b"c", name=b"void"))
        alice.send(wire.publish(BOB, b"d"))
        data = alice.take()
        assert data[36:54] == FAILED
        ids = wire.message_ids(data[:36] + data[54:])
        assert ids == [message_id(broker.dispatcher.run_id, number).bytes for number in range(3)]
        assert {UUID(bytes=one).version for one in ids} == {8}

    def test_the_acknowledgments_of_a_read_are_one_write(self) -> None:
        rheos = Rheos()
        alice = rheos.connect("rheos")
        alice.send(
            wire.create(ALICE, b"sport")
            + wire.publish(ALICE, *[b"%d" % number for number in range(600)])
            + wire.create(ALICE)
            + wire.raw(7, ALICE, b"")
            + wire.publish(BOB, b"x")
        )
        assert len(alice.stream.writes) == 1
        data = alice.take()
        assert data[:18] == wire.topic_ack("sport")
        assert data[-54:-18] == FAILED * 2
        assert len(set(wire.message_ids(data[18:-54] + data[-18:]))) == 601

    def test_messages_of_several_topics_are_stored_and_acknowledged_in_order(self) -> None:
        rheos = Rheos()
        rheos.broker.topics.create("sport")
        alice = rheos.connect("rheos")
        names = [b"news", b"sport", b"void", b"sport", b"news", b"news", b"void"] * 100
        alice.send(
            b"".join(wire.publish(ALICE, b"%d" % n, name=name) for n, name in enumerate(names))
        )
        data = alice.take()
        page = self.successResultOf(rheos.broker.store.read(0, None, 2**20))
        run = rheos.broker.dispatcher.run_id
        ids = {
            int(payload): message_id(run, batch.sequence + index).bytes
            for batch in page.batches
            for index, payload in enumerate(batch.payloads())
        }
        assert list(ids) == [n for n, name in enumerate(names) if name != b"void"]
        assert data == b"".join(
            FAILED if name == b"void" else wire.ack(ids[n]) for n, name in enumerate(names)
        )

    def test_consecutive_messages_are_one_batch(self) -> None:
        rheos = Rheos()
        alice, bob = rheos.connect("rheos"), rheos.reader(BOB)
        published = []
        publish_ = rheos.broker.dispatcher.publish

        def counting(*args: object) -> object:
            published.append(args)
            return publish_(*args)  # type: ignore[arg-type]

        rheos.broker.dispatcher.publish = counting  # type: ignore[assignment]
        alice.send(wire.publish(ALICE, *[b"x"] * 500) + wire.publish(CAROL, b"y", b"zz"))
        assert len(published) == 2
        assert bob.stream.writes[1:] == [
            wire.response(ALICE, *[b"x"] * 500) + wire.response(CAROL, b"y", b"zz")
        ]

    def test_subscribers_do_not_wait_for_the_publishers_acknowledgments(self) -> None:
        rheos = Rheos()
        alice, bob = rheos.connect("rheos"), rheos.reader(BOB)
        alice.stream.stop_reading()
        alice.send(wire.publish(ALICE, b"hi"))
        assert bob.take() == wire.response(ALICE, b"hi")


class FaultTests(SynchronousTestCase):
    """rheos §6: FAILED is counted by its reason"""

    def test_each_reason_is_counted(self) -> None:
        rheos = Rheos(allow_publish="news")
        rheos.broker.topics.create("sport")
        alice = rheos.connect("rheos")
        cases = {
            "corrupted-data": wire.raw(2, NIL, wire.body(b"news")),
            "invalid-operation": wire.raw(3, ALICE, wire.body(b"news")),
            "corrupted-topic": wire.raw(2, ALICE, wire.body(b"news") + b"!"),
            "topic-not-found": wire.publish(ALICE, b"hi", name=b"void"),
            "not-authorized": wire.publish(ALICE, b"hi", name=b"sport"),
        }
        for reason, request in cases.items():
            alice.send(request)
            assert alice.take() == FAILED, reason
            assert rheos.refused(reason) == 1, reason
        for name in (b"", b"\xff", b"n" * 256):
            for request in (wire.create(ALICE, name), wire.subscribe(ALICE, name)):
                alice.send(request + wire.publish(ALICE, b"x", b"y", name=name))
                assert alice.take() == FAILED * 3
        assert rheos.refused("corrupted-topic") == 1 + 3 * 6
        assert not alice.closed

    def test_requests_of_ordinary_clients_are_not_counted(self) -> None:
        for layout, checksum in product(LAYOUTS, (False, True)):
            codec = Codec(layout, checksum)
            rheos = Rheos(layout=layout, checksum="crc32" if checksum else "off")
            lines = logged(self)
            alice = rheos.connect("rheos")
            alice.send(codec.encode(Request(Opcode.CREATE, ALICE, b"news")))
            assert alice.take() == codec.failed
            alice.send(codec.encode(Request(PROBE, ALICE, b"")))
            assert alice.take() == codec.failed
            assert rheos.broker.counters.refused == 0
            assert lines == []
            for request in (Request(PROBE, ALICE, b"x"), Request(PROBE + 1, ALICE, b"")):
                alice.send(codec.encode(request))
            assert rheos.refused("invalid-operation") == 2

    def test_the_first_is_logged_with_the_client(self) -> None:
        rheos = Rheos()
        lines = logged(self)
        alice = rheos.connect("rheos")
        alice.send(wire.publish(ALICE, b"1", b"2", name=b"void"))
        alice.send(wire.publish(ALICE, b"3", name=b"void"))
        assert lines == [
            f"refused: 2 on rheos: topic-not-found, last by '{ALICE_NAME}@192.0.2.1:40000'"
        ]

    def test_wrong_magic_closes_after_the_pending_acknowledgments(self) -> None:
        rheos = Rheos()
        alice = rheos.connect("rheos")
        alice.send(wire.create(ALICE, b"sport") + b"\xac" + wire.create(ALICE, b"other"))
        assert alice.stream.writes == [wire.topic_ack("sport") + FAILED]
        assert alice.closed
        assert rheos.refused("corrupted-data") == 1
        assert "other" not in rheos.broker.topics

    def test_a_body_over_1_mib_is_not_waited_for(self) -> None:
        rheos = Rheos()
        alice = rheos.connect("rheos")
        alice.send(b"\xfa" + pack("<I", 2**20 + 1) + ALICE)
        assert alice.take() == b""
        alice.send(b"\x02")
        assert alice.take() == FAILED
        assert alice.closed

    def test_messages_among_refused_ones_have_their_acknowledgments(self) -> None:
        rheos = Rheos()
        alice, bob = rheos.connect("rheos"), rheos.reader(BOB)
        alice.send(wire.publish(ALICE, b"n", b"n") + wire.publish(ALICE, b"v", b"v", name=b"void"))
        data = alice.take()
        assert len(wire.message_ids(data[:36])) == 2
        assert data[36:] == FAILED * 2
        assert bob.take() == wire.response(ALICE, b"n", b"n")


class TopicTests(SynchronousTestCase):
    """rheos §5.1: topics belong to the broker"""

    def test_the_creator_is_recorded_as_the_parent(self) -> None:
        rheos = Rheos()
        alice = rheos.connect("rheos")
        alice.send(wire.create(ALICE, b"sport") + wire.create(BOB, b"sport") + wire.create(BOB))
        assert alice.take() == wire.topic_ack("sport") + FAILED * 2
        assert dict(rheos.store.items(PARENTS)) == {"sport": ALICE}

    def test_creating_needs_one_of_the_two_permissions(self) -> None:
        rheos = Rheos(allow_publish="p*", allow_subscribe="s*")
        alice = rheos.connect("rheos")
        alice.send(
            wire.create(ALICE, b"p1") + wire.create(ALICE, b"s1") + wire.create(ALICE, b"x1")
        )
        assert alice.take() == wire.topic_ack("p1") + wire.topic_ack("s1") + FAILED
        assert rheos.refused("not-authorized") == 1

    def test_topics_are_one_space_with_nsd(self) -> None:
        rheos = Rheos(also={"nsd": {}})
        eve, bob = rheos.connect("nsd"), rheos.connect("rheos")
        eve.send(b'{"_class":"OpenRequest","identity":"eve"}\n')
        eve.take()
        bob.send(wire.create(BOB, b"eve") + wire.subscribe(BOB, b"eve"))
        assert bob.take() == FAILED + wire.topic_ack("eve")
        message = b'{"_class":"Message","from":"eve","when":0,"body":"hi"}'
        eve.send(b'{"_class":"PublishRequest","identity":"eve","message":' + message + b"}\n")
        assert bob.take() == wire.response(uuid5(SENDERS, "eve").bytes, b"hi")
        bob.send(wire.publish(BOB, b"ho", name=b"eve"))
        eve.take()
        eve.send(b'{"_class":"GetRequest","identity":"eve","after":0}\n')
        assert f'"from":"{UUID(bytes=BOB)}"'.encode() in eve.take()

    def test_a_closed_topic_is_refused(self) -> None:
        rheos = Rheos()
        alice, bob = rheos.connect("rheos"), rheos.reader(BOB)
        topic = rheos.broker.topics.named("news")
        rheos.broker.queue_keys.close(topic, b"key", "fay", "fast")
        alice.send(wire.publish(ALICE, b"hi") + wire.subscribe(ALICE))
        assert alice.take() == FAILED * 2
        assert rheos.refused("not-authorized") == 2
        assert rheos.refused("revoked") == 1
        assert bob.take() == b""

    def test_a_grant_opens_a_closed_topic(self) -> None:
        rheos = Rheos(grant="news")
        alice, bob = rheos.connect("rheos"), rheos.reader(BOB)
        topic = rheos.broker.topics.named("news")
        rheos.broker.queue_keys.close(topic, b"key", "fay", "fast")
        alice.send(wire.publish(ALICE, b"hi"))
        assert bob.take() == wire.response(ALICE, b"hi")

    def test_a_topic_of_others_is_kept_only_by_a_client_with_the_right(self) -> None:
        data = wire.publish(ALICE, b"x", name=b"a") + wire.publish(ALICE, b"x", name=b"b")
        for request in (data, data * 2, wire.subscribe(ALICE, b"a")):
            for allowed in ("", "*"):
                rheos = Rheos(allow_publish=allowed, allow_subscribe=allowed)
                topics = rheos.broker.topics
                needed = ProvisionalTopics(topics, rheos.broker.router)
                for _ in needed.add(("a", "b")):
                    pass
                alice = rheos.connect("rheos")
                alice.send(request)
                assert (FAILED in alice.take()) is (not allowed)
                for _ in needed.withdraw():
                    pass
                assert ("a" in topics) is bool(allowed)


class FormatTests(SynchronousTestCase):
    """rheos §7: listeners of one broker with different formats"""

    def test_a_listener_accepts_its_own_format_only(self) -> None:
        rheos = Rheos(layout="original", checksum="crc32")
        alice = rheos.connect("rheos")
        alice.send(wire.sealed(wire.original(2, ALICE, b"news", b"hi")))
        data = alice.take()
        assert len(data) == 22
        assert wire.sealed(data[:18]) == data
        alice.send(wire.original(2, ALICE, b"news", b"hi") + bytes(4))
        assert alice.take() == wire.sealed(FAILED)
        assert alice.closed

    def test_the_log_names_the_settings_of_a_client_of_another_format(self) -> None:
        clients = {
            ("spec", "off"): wire.publish(ALICE, b"hi"),
            ("original", "off"): wire.original(2, ALICE, b"news", b"hi"),
            ("spec", "crc32"): wire.sealed(wire.publish(ALICE, b"hi")),
            ("original", "crc32"): wire.sealed(wire.original(2, ALICE, b"news", b"hi")),
        }
        lines = logged(self)
        for layout, checksum in clients:
            for (named, sealing), request in clients.items():
                # Two, as a missing checksum is noticed with the next request.
                rheos = Rheos(layout=layout, checksum=checksum)
                lines.clear()
                for _ in range(3):
                    client = rheos.connect("rheos")
                    client.send(request)
                    client.send(request)
                hints = [line for line in lines if "has another layout" in line]
                if (named, sealing) == (layout, checksum):
                    assert hints == []
                else:
                    (hint,) = hints
                    assert hint.startswith("rheos on tcp:7072:interface=127.0.0.1: a request of '")
                    assert hint.endswith(f", set layout={named} and checksum={sealing}")

    def test_a_damaged_request_has_no_hint(self) -> None:
        lines = logged(self)
        rheos = Rheos(layout="original", checksum="crc32")
        alice = rheos.connect("rheos")
        request = wire.original(2, ALICE, b"news", b"hi")
        alice.send(wire.sealed(request))
        alice.send(request + bytes(4))
        assert alice.closed
        assert not [line for line in lines if "layout" in line]
        # That of another client is still given.
        rheos.connect("rheos").send(request + bytes(4))
        (hint,) = [line for line in lines if "layout" in line]
        assert hint.endswith("set layout=original and checksum=off")

    def test_nonsense_has_no_hint(self) -> None:
        lines = logged(self)
        rheos = Rheos()
        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            wire.raw(3, ALICE, wire.body(b"news")),
            wire.raw(2, ALICE, b"!"),
        ):
            rheos.connect("rheos").send(data)
        assert rheos.broker.counters.refused == 3
        assert not [line for line in lines if "layout" in line]

    def test_a_message_too_long_for_the_envelope_is_dropped_and_counted(self) -> None:
        rheos = Rheos(envelope="topic", also={"cafe": {"channels": "1:news"}})
        bob, eve = rheos.reader(BOB), rheos.connect("cafe")
        eve.send(bytes.fromhex("fe ca 01 02 00 00 00 01 00"))
        for size in (65_536, 65_535):
            eve.send(b"\xfe\xca\x10" + pack("<I", size + 1) + b"\1" + bytes(size))
        sender = uuid5(SENDERS, "").bytes
        assert bob.take() == wire.response(sender, wire.body(b"news", bytes(65_535)))
        name = f"{UUID(bytes=BOB)}@192.0.2.1:40000"
        assert rheos.broker.counters.drops == {(name, "news", "too-large"): 1}


class LimitTests(SynchronousTestCase):
    """rheos §5.7"""

    def test_a_connection_over_quota_is_refused_at_accept(self) -> None:
        rheos = Rheos(max_connections_per_address=1)
        rheos.connect("rheos")
        second = rheos.connect("rheos")
        assert second.take() == FAILED
        assert second.closed

    def test_messages_over_the_rate_are_refused_one_by_one(self) -> None:
        rheos = Rheos(rate_messages=3)
        alice, bob = rheos.connect("rheos"), rheos.reader(BOB)
        alice.send(
            wire.publish(ALICE, b"1", b"2")
            + wire.create(ALICE)
            + wire.publish(ALICE, b"3", b"4", b"5")
        )
        data = alice.take()
        assert data[36:54] == FAILED
        assert data[72:] == FAILED * 2
        assert bob.take() == wire.response(ALICE, b"1", b"2", b"3")
        assert rheos.refused("rate-limited") == 2
        rheos.advance(1)
        alice.send(wire.publish(ALICE, b"6"))
        assert len(wire.message_ids(alice.take())) == 1

    def test_memory_at_its_bound_refuses_ids_and_subscriptions(self) -> None:
        bound = TOPIC_BYTES + 2 * CONNECTION_BYTES + CLIENT_BYTES + SUBSCRIPTION_BYTES
        rheos = Rheos(top={"history": 0, "max-memory": bound})
        alice = rheos.reader(ALICE)
        bob = rheos.connect("rheos")
        bob.send(wire.publish(BOB, b"hi") + wire.subscribe(BOB))
        assert bob.take() == FAILED * 2
        assert rheos.refused("memory") == 2
        alice.stream.lose()
        bob.send(wire.subscribe(BOB))
        assert bob.take() == wire.topic_ack()

    def test_an_incomplete_request_is_charged(self) -> None:
        rheos = Rheos()
        alice = rheos.connect("rheos")
        used = rheos.broker.memory.used
        request = wire.publish(ALICE, bytes(50_000))
        alice.send(request[:40_000])
        # The head of the request is remembered as well.
        assert rheos.broker.memory.used == used + 40_000 + HEAD_BYTES
        alice.send(request[40_000:])
        assert len(wire.message_ids(alice.take())) == 1
        assert rheos.broker.memory.used == used + CLIENT_BYTES + HEAD_BYTES

    def test_everything_is_released_at_the_end(self) -> None:
        rheos = Rheos()
        used = rheos.broker.memory.used
        clients = [rheos.reader(ALICE), rheos.reader(ALICE), rheos.reader(BOB)]
        clients[0].send(wire.subscribe(BOB) + wire.subscribe(CAROL))
        for client in clients:
            client.stream.lose()
        rheos.advance(61)
        assert rheos.broker.memory.used == used
        assert not rheos.broker.topics.named("news").groups


class FlowTests(SynchronousTestCase):
    """Clients that do not read"""

    def test_a_publisher_that_does_not_read_its_acknowledgments_is_not_read_from(self) -> None:
        rheos = Rheos()
        alice = rheos.connect("rheos")
        alice.stream.stop_reading()
        reads = 0
        while not alice.stream.paused:
            alice.send(wire.publish(ALICE, *[b""] * 1000))
            reads += 1
        assert reads < 10
        alice.stream.read()
        assert not alice.stream.paused
        assert len(wire.message_ids(alice.take())) == reads * 1000

    def test_a_slow_subscriber_holds_publishers(self) -> None:
        rheos = Rheos(slow_consumer="pause", slow_bytes="256K")
        alice, bob = rheos.connect("rheos"), rheos.reader(BOB)
        bob.stream.stop_reading()
        while not alice.stream.paused:
            alice.send(wire.publish(ALICE, bytes(50_000)))
        bob.stream.read()
        rheos.turn()
        assert not alice.stream.paused
        published = len(wire.message_ids(alice.take()))
        assert bob.take() == wire.response(ALICE, bytes(50_000)) * published

    def test_a_subscriber_too_slow_is_disconnected(self) -> None:
        rheos = Rheos(slow_bytes="100K", slow_consumer="disconnect")
        alice, bob = rheos.connect("rheos"), rheos.reader(BOB)
        bob.stream.stop_reading()
        for _ in range(4):
            alice.send(wire.publish(ALICE, bytes(60_000)))
        assert bob.stream.aborted
        alice.send(wire.publish(ALICE, b"hi"))
        assert len(wire.message_ids(alice.take())) == 5


class EndTests(SynchronousTestCase):
    """rheos §8"""

    def test_shutdown_flushes_and_sends_nothing_else(self) -> None:
        rheos = Rheos()
        rheos.start()
        alice, bob = rheos.connect("rheos"), rheos.reader(BOB)
        alice.stream.feed(wire.publish(ALICE, b"hi"))
        rheos.broker.stopService()
        assert bob.take() == wire.response(ALICE, b"hi")
        assert len(wire.message_ids(alice.take())) == 1
        assert alice.closed
        assert bob.closed

    def test_an_idle_client_is_closed_unless_it_repeats_a_subscribe(self) -> None:
        rheos = Rheos(idle_timeout=5)
        rheos.start()
        alice, bob = rheos.reader(ALICE), rheos.reader(BOB)
        for _ in range(3):
            rheos.advance(3)
            bob.send(wire.subscribe(BOB))
            assert bob.take() == wire.topic_ack()
        assert alice.closed
        assert alice.take() == b""
        assert not bob.closed

    def test_requests_after_the_end_do_nothing(self) -> None:
        rheos = Rheos()
        alice = rheos.connect("rheos")
        alice.send(b"\0" + wire.create(ALICE, b"sport"))
        alice.send(wire.create(ALICE, b"sport"))
        assert alice.take() == FAILED
        assert "sport" not in rheos.broker.topics
        assert len(rheos.clients) == 0
