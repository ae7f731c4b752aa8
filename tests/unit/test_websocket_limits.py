"""The WebSocket endpoint: clients that are slow, silent, too fast, or gone; and its end."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import INPUT
from pubsub.http_api.reading.live_response import HEARTBEAT_SECONDS
from pubsub.store.memory_store import MemoryStore
from pubsub.wire.departure import LINGER
from tests.unit.fakes import Held
from tests.unit.slow_store import Slow
from tests.unit.web import WebHouse
from tests.unit.web_sockets import SocketClient, connected

BIG = b"x" * 60_000


def unread(house: WebHouse, count: int) -> SocketClient:
    """Return a client that does not read the ``count`` messages published to its topic."""
    client = connected(house)
    client.ask("subscribe", topic="a")
    client.stream.stop_reading()
    for _ in range(count):
        house.publish("a", BIG)
        house.clock.advance(0)
    return client


def frame_of(client: SocketClient, op: str, **members: object) -> bytes:
    """Return the frame of a request that is not sent."""
    client.frames.send_text(json.dumps({"id": 1, "op": op, **members}).encode())
    return b"".join(client.frames.data_to_send())


class FrameTests(SynchronousTestCase):
    """Frames that are not valid, too large or too slow"""

    def setUp(self) -> None:
        self.house = WebHouse(max_message="4K")
        self.client = connected(self.house)

    def test_frames_that_break_the_protocol(self) -> None:
        for data, code in (
            (b"\x81\x00", 1002),  # not masked
            (b"\xc1\x80abcd", 1002),  # a reserved bit
            (b"\x83\x80abcd", 1002),  # an unknown opcode
            (b"\x80\x80abcd", 1002),  # a continuation of nothing
            (b"\x89\xfe\x00\x80abcd" + bytes(128), 1002),  # a long ping
            (b"\x81\x82\0\0\0\0{\xff", 1007),  # text that is not UTF-8
            (b"\x82\xfe\x10\x01abcd", 1009),  # a long message
            (b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff", 1009),
        ):
            client = connected(self.house)
            client.client.send(data)
            assert client.close_code == code, data
            assert client.client.closed
        assert self.house.broker.counters.refusals["http", "malformed"] == 8

    def test_messages_come_before_the_close(self) -> None:
        for rest in (b"\xc1\x80abcd", b"\x81\x82\0\0\0\0{\xff", b"\x88\x82\0\0\0\0\x03\xe8"):
            client = connected(self.house)
            client.ask("subscribe", topic="a")
            client.stream.feed(frame_of(client, "publish", topic="a", value="x") + rest)
            self.house.clock.advance(0)
            assert client.values() == ["x"]
            assert client.close_code in (1000, 1002, 1007)
        assert self.house.broker.counters.dropped == 0

    def test_requests_before_text_that_is_not_utf8_are_carried_out(self) -> None:
        for rest in (b"", b"\xc1\x80abcd"):
            house = WebHouse()
            client = connected(house)
            client.frames.send_text(b'{"id": 1, "op": "publish", "topic": "a", "value": "x"}')
            data = b"".join(client.frames.data_to_send())
            client.client.send(data + b"\x81\x82\0\0\0\0{\xff" + rest)
            assert client.close_code == (1002 if rest else 1007)
            assert house.store.next_offset == 1
            assert house.broker.counters.refusals["http", "malformed"] == 1

    def test_the_message_before_a_connect_is_short(self) -> None:
        house = WebHouse()
        for head in (b"\x81\xff" + (2**20).to_bytes(8, "big"), b"\x01\xfe\xff\xff"):
            client = SocketClient(house)
            client.client.send(head + b"abcd" + b"x" * 16_000)
            assert client.close_code is None
            client.client.send(b"x" * 16_000)
            client.client.send(b"x" * 16_000)
            assert client.close_code == 1009
            assert client.client.closed
        assert house.broker.counters.refusals["http", "too-large"] == 2
        client = connected(house)
        client.client.send(b"\x81\xff" + (10**6).to_bytes(8, "big") + b"abcd" + b"x" * 50_000)
        assert client.close_code is None

    def test_a_long_message_may_follow_a_connect_at_once(self) -> None:
        client = SocketClient(WebHouse())
        data = frame_of(client, "connect") + frame_of(
            client, "publish", topic="a", value="x" * 10**5
        )
        client.client.send(data)
        assert [one["id"] for one in client.pull()] == [1, 1]

    def test_fragments_together_are_limited(self) -> None:
        frames = self.client.frames
        frames.send_text(b" " * 3000, fin=False)
        frames.send_continuation(b" " * 3000, fin=True)
        self.client.push()
        assert self.client.close_code == 1009

    def test_many_refused_requests_take_turns(self) -> None:
        empty = b"\x81\x80abcd"
        self.client.stream.feed(empty * 500)
        assert len(self.client.stream.received.split(b"invalid-request")) <= 30
        assert self.client.stream.paused
        assert len(self.client.pull()) == 500
        assert not self.client.stream.paused

    def test_only_a_long_frame_is_read_in_larger_pieces(self) -> None:
        client = connected(WebHouse())
        size = client.stream.bufferSize
        client.client.send(b"\x01\x80abcd" + b"\x00\x84abcdabcd" * 2000)
        assert client.stream.bufferSize == size
        client.client.send(b"\x00\xfe\xff\xffabcd" + b"a" * (size + 1))
        assert size < client.stream.bufferSize <= 16 * 1024

    def test_fragments(self) -> None:
        frames = self.client.frames
        frames.send_text(b'{"id": 7, ', fin=False)
        frames.send_ping(b"between")
        frames.send_continuation(b'"op": "ping"', fin=False)
        frames.send_continuation(b"}", fin=True)
        self.client.push()
        assert self.client.pull() == [{"id": 7, "ok": {}}]

    def test_byte_by_byte(self) -> None:
        self.client.frames.send_text(b'{"id": 7, "op": "ping"}')
        (data,) = self.client.frames.data_to_send()
        for at in range(len(data)):
            self.client.client.send(data[at : at + 1])
        assert self.client.pull() == [{"id": 7, "ok": {}}]

    def test_a_message_that_does_not_arrive(self) -> None:
        used = self.house.broker.memory.used
        self.client.client.send(b"\x82\xfe\x0f\x00abcd" + bytes(1000))
        assert self.house.broker.memory.used >= used + 1000
        assert self.house.broker.memory.held[INPUT] >= 1000
        self.house.pass_time(19)
        assert self.client.close_code is None
        self.house.pass_time(3)
        assert self.client.close_code == 4008
        self.house.pass_time(LINGER)
        assert self.client.stream.lost
        assert self.house.broker.memory.used < used

    def test_small_fragments_take_little_memory(self) -> None:
        """Whatever their size: a message of 20 KB is kept as 20 KB, and empty ones as nothing."""
        for size in (0, 2):
            house = WebHouse()
            client = connected(house)
            first, more = [
                bytes((head, 0x80 | size)) + b"\0\0\0\0" + b"  "[:size] for head in (0x01, 0x00)
            ]
            client.client.send(first)
            used = house.broker.memory.used
            data = more * 100
            tracemalloc.start()
            self.addCleanup(tracemalloc.stop)
            for _ in range(100):
                client.client.send(data)
            kept, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert house.broker.memory.used - used == 10_000 * size
            assert kept < 10_000 * size * 2 + 20_000
            frames = client.frames
            frames.send_text(b"", fin=False)
            frames.data_to_send()
            frames.send_continuation(b'{"id": 7, "op": "ping"}', fin=True)
            client.push()
            assert client.pull() == [{"id": 7, "ok": {}}]

    def test_no_part_of_a_message_is_kept(self) -> None:
        """Neither after the last frame, nor after the end of a connection whose frame is partial"""
        gc.disable()
        self.addCleanup(gc.enable)
        house = WebHouse()
        ended, idle = connected(house), connected(house)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        ended.client.send(b"\x81\xff" + (10**6).to_bytes(8, "big") + b"abcd" + bytes(500_000))
        ended.stream.lose()
        idle.client.send(b"\x81\xff" + (500_000).to_bytes(8, "big") + b"abcd" + b"a" * 500_000)
        assert idle.pull()[0]["error"]["code"] == "invalid-request"
        kept, _ = tracemalloc.get_traced_memory()
        assert kept < 50_000

    def test_fragments_that_do_not_arrive(self) -> None:
        self.client.frames.send_text(b"{", fin=False)
        self.client.push()
        for _ in range(23):
            self.client.frames.send_ping(b"")
            self.client.push()
            self.house.pass_time(1)
        assert self.client.close_code == 4008

    def test_each_message_has_its_own_time(self) -> None:
        """In a stream without a pause, every read may end within a frame."""
        rest = b""
        for _ in range(60):
            frame = frame_of(self.client, "ping")
            self.client.client.send(rest + frame[:5])
            rest = frame[5:]
            self.house.pass_time(1)
        assert self.client.close_code is None


class TimeTests(SynchronousTestCase):
    """Pings"""

    def test_a_client_that_answers_stays(self) -> None:
        house = WebHouse()
        client = connected(house)
        for _ in range(10):
            house.pass_time(HEARTBEAT_SECONDS)
            client.pull()
            client.push()
        assert client.pings >= 8
        assert not client.client.closed

    def test_a_client_that_does_not_is_disconnected(self) -> None:
        house = WebHouse()
        client = connected(house)
        house.pass_time(2 * HEARTBEAT_SECONDS + 2)
        assert client.client.closed
        assert not house.broker.clients

    def test_idle_timeout(self) -> None:
        house = WebHouse(idle_timeout=10)
        client = connected(house)
        house.pass_time(9)
        client.ask("ping")
        house.pass_time(9)
        assert client.close_code is None
        house.pass_time(3)
        assert client.close_code == 4008


class SlowTests(SynchronousTestCase):
    """Clients that do not read"""

    def test_it_catches_up_from_the_history(self) -> None:
        house = WebHouse()
        slow, fast = connected(house), connected(house)
        for client in (slow, fast):
            client.ask("subscribe", topic="a")
        slow.stream.stop_reading()
        values: list[str] = []
        for number in range(60):
            house.publish("a", str(number).encode() + BIG)
            values += fast.values()
        assert len(values) == 60
        assert house.broker.memory.used < 2 * 2**20
        slow.stream.read()
        assert slow.values() == values
        assert not house.broker.counters.drops

    def test_retention_overtakes_it(self) -> None:
        house = WebHouse(MemoryStore(10, 2**26))
        client = unread(house, 60)
        client.stream.read()
        found = client.pull()
        (gap,) = [one["gap"] for one in found if "gap" in one]
        offsets = [one["message"]["offset"] for one in found if "message" in one]
        assert offsets == [*range(gap["start"]), *range(gap["stop"], 60)]

    def test_eviction(self) -> None:
        house = WebHouse(slow_consumer="disconnect", slow_bytes="256K")
        client = unread(house, 20)
        assert client.client.closed
        assert house.broker.memory.used < 200_000
        assert sum(house.broker.counters.drops.values()) > 0

    def test_a_client_that_does_not_read_its_replies_is_not_read_from(self) -> None:
        house = WebHouse()
        client = connected(house)
        client.stream.stop_reading()
        topic = "t" * 200
        sent = 0
        while not client.stream.paused and sent < 3000:
            client.send("unsubscribe", topic=topic)
            sent += 1
        assert client.stream.paused
        client.stream.read()
        assert not client.stream.paused
        assert len(client.pull()) == sent


class PressureTests(SynchronousTestCase):
    """Clients that publish faster than others take"""

    def test_a_blocked_topic_holds_the_connection(self) -> None:
        house = WebHouse()
        topic = house.broker.topics.create("a")
        blocker = Held()
        topic.block(blocker)
        client = connected(house)
        client.send("publish", topic="a", value="1")
        client.send("publish", topic="b", value="2")
        assert client.stream.paused
        assert client.pull() == []
        topic.unblock(blocker)
        assert [one["ok"]["offset"] for one in client.pull()] == [0, 1]
        assert not client.stream.paused

    def test_a_message_that_cannot_arrive_meanwhile(self) -> None:
        house = WebHouse()
        topic = house.broker.topics.create("a")
        blocker = Held()
        topic.block(blocker)
        client = connected(house)
        begun = b"\x82\xfe\x0f\x00abcd" + bytes(1000)
        client.client.send(frame_of(client, "publish", topic="a", value="1") + begun)
        assert client.stream.paused
        house.pass_time(10)
        topic.unblock(blocker)
        house.pass_time(15)
        assert [one["ok"]["offset"] for one in client.pull()] == [0]
        client.push()
        assert client.close_code is None
        house.pass_time(7)
        assert client.close_code == 4008

    def test_a_long_message_waits_for_memory(self) -> None:
        house = WebHouse(frame_seconds=20)
        memory = house.broker.memory
        client = connected(house)
        data = frame_of(client, "publish", topic="a", value="x" * 50_000)
        memory.limit = memory.used + 10_000
        client.client.send(data[:8000])
        assert not client.stream.paused
        client.client.send(data[8000:16_000])
        assert client.stream.paused
        memory.limit += 100_000
        memory.free(0)
        assert not client.stream.paused
        client.client.send(data[16_000:])
        (answer,) = client.pull()
        assert answer["ok"]["messages"] == 1
        assert memory.held[INPUT] == 0

    def test_memory_for_a_long_message_may_not_come(self) -> None:
        house = WebHouse(frame_seconds=20)
        memory = house.broker.memory
        waiting, other = connected(house), connected(house)
        data = frame_of(waiting, "publish", topic="a", value="x" * 50_000)
        memory.limit = memory.used + 10_000
        waiting.client.send(data[:16_000])
        # A short request is carried out, so that an operator can act.
        other.ask("ping")
        house.pass_time(19)
        assert waiting.close_code is None
        house.pass_time(3)
        waiting.pull()
        assert waiting.close_code == 1013
        assert house.broker.counters.refusals["http", "memory"] == 1
        assert memory.held[INPUT] == 0

    def test_many_unconfirmed_messages_hold_it(self) -> None:
        store = Slow()
        house = WebHouse(store)
        client = connected(house)
        sent = 0
        while not client.stream.paused and sent < 1000:
            client.send("publish", topic="a", value="1")
            sent += 1
        assert sent == 256
        while store.waiting:
            store.waiting.pop(0)(True)
        assert len(client.pull()) == sent
        assert not client.stream.paused


class EndTests(SynchronousTestCase):
    """The end"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.client = connected(self.house)
        self.client.ask("subscribe", topic="a")

    def has_readers(self) -> bool:
        """Return whether there is a subscriber."""
        topic = self.house.broker.topics.get("a")
        return topic is not None and topic.has_readers

    def test_the_client_closes(self) -> None:
        self.client.frames.send_close(1000, "bye")
        self.client.push()
        assert self.client.close_code == 1000
        assert not self.has_readers()
        self.house.pass_time(LINGER + 1)
        assert self.client.stream.lost
        assert self.house.broker.counters.connections == 0

    def test_requests_behind_a_close_are_not_carried_out(self) -> None:
        self.client.frames.send_text(b'{"op": "publish", "topic": "b", "value": "x"}')
        self.client.frames.send_close(1000, "bye")
        before, close, *_ = self.client.frames.data_to_send()
        self.client.client.send(close + before)
        assert self.house.store.next_offset == 0

    def test_the_client_is_gone(self) -> None:
        used = self.house.broker.memory.used
        self.client.stream.lose()
        self.house.pass_time(1)
        assert not self.has_readers()
        assert self.house.broker.memory.used < used

    def test_the_client_is_gone_while_its_request_waits(self) -> None:
        memory, holder = self.house.broker.memory, Held()
        self.house.broker.topics.create("b").block(holder)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        used = memory.used
        self.client.send_binary(b"x" * 1_000_000, op="publish", topic="b")
        self.client.stream.lose()
        self.house.pass_time(1)
        del self.client
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1_500_000
        assert memory.used > used + 900_000
        assert memory.largest() is None
        self.house.broker.topics.named("b").unblock(holder)
        self.house.clock.advance(0)
        assert memory.used < used
        assert memory.held[INPUT] == 0

    def test_the_client_closes_its_half(self) -> None:
        self.client.client.channel.readConnectionLost()
        self.house.pass_time(LINGER + 1)
        assert self.client.client.closed
        assert not self.has_readers()

    def test_the_broker_stops(self) -> None:
        slow = connected(self.house)
        slow.ask("subscribe", topic="a")
        slow.stream.stop_reading()
        self.house.publish("a", *[BIG] * 3)
        done: list[object] = []
        self.house.broker.stopService().addCallback(done.append)
        assert len(self.client.values()) == 3
        assert self.client.close_code == 1001
        assert slow.close_code is None
        slow.stream.read()
        assert len(slow.values()) == 3
        assert slow.close_code == 1001
        self.house.pass_time(LINGER + 1)
        assert done

    def test_an_administrator_disconnects(self) -> None:
        for reason, expected in (
            ("administrator: too noisy", "administrator: too noisy"),
            ("administrator: " + "ä" * 120, "administrator: " + "ä" * 54),
        ):
            client = connected(self.house)
            client.client.channel.dismiss(reason)
            assert (client.close_code, client.close_reason) == (1001, expected)

    def test_it_stops_while_a_message_is_being_stored(self) -> None:
        store = Slow()
        house = WebHouse(store)
        client = connected(house)
        client.send("publish", topic="a", value="1")
        house.broker.stopService()
        assert client.close_code is None
        store.waiting.pop(0)(True)
        (answer,) = client.pull()
        assert answer["ok"]["level"] == "stored"
        assert client.close_code == 1001

    def test_it_stops_and_the_client_does_not_read(self) -> None:
        self.client.stream.stop_reading()
        self.house.publish("a", *[BIG] * 3)
        done: list[object] = []
        self.house.broker.stopService().addCallback(done.append)
        self.house.pass_time(12)
        assert self.client.client.closed
        assert done

    def test_a_client_that_vanishes_while_it_publishes(self) -> None:
        topic = self.house.broker.topics.create("b")
        topic.block(Held())
        self.client.send("publish", topic="b", value="1")
        self.client.stream.lose()
        self.house.pass_time(30)
        assert self.house.store.next_offset == 0
        assert self.house.broker.counters.connections == 0

    def test_events(self) -> None:
        house = WebHouse(events=True)
        client = connected(house)
        client.ask("publish", topic="a", value="1")
        client.stream.lose()
        house.pass_time(2)
        token = house.token("admin")
        rows: list[Any] = house.get("/v1/topics/$SYS%2Fevents/messages", token=token).lines
        kinds = [json.loads(row["value"])["event"] for row in rows]
        assert kinds[:2] == ["connect", "disconnect"]


class ManyTests(SynchronousTestCase):
    """Many clients"""

    def test_messages_are_encoded_once(self) -> None:
        house = WebHouse()
        clients = [connected(house) for _ in range(50)]
        for client in clients:
            client.ask("subscribe", topic="a")
        topic = house.broker.topics.named("a")
        assert len(topic.groups) == 1
        house.publish("a", b"1")
        assert [client.values() for client in clients] == [["1"]] * 50

    def test_handshakes_that_are_not_finished(self) -> None:
        house = WebHouse(max_connections=100)
        clients = [SocketClient(house) for _ in range(100)]
        assert house.get("/v1/limits").error == (503, "limit-reached")
        house.pass_time(15)
        assert {client.close_code for client in clients} == {4008}
        assert house.broker.counters.connections == 0


class NoiseTests(SynchronousTestCase):
    """Any input of a client is answered or ends its connection, and leaves nothing"""

    @given(st.lists(st.binary(max_size=300), max_size=5), st.booleans())
    def test_any_bytes(self, reads: list[bytes], shaken: bool) -> None:
        house = WebHouse(max_message="1K")
        client = connected(house) if shaken else SocketClient(house)
        for data in reads:
            client.client.send(data)
        house.pass_time(60)
        client.stream.lose()
        house.pass_time(60)
        assert house.broker.counters.connections == 0
        assert house.broker.memory.used == 0
        assert house.body_bytes == 0

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["connect", "subscribe", "unsubscribe", "publish", "acknowledge"]),
                st.dictionaries(
                    st.sampled_from(["topic", "value", "start", "reader", "offset", "token", "x"]),
                    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                ),
            ),
            max_size=10,
        )
    )
    def test_any_requests(self, requests: list[tuple[str, dict[str, object]]]) -> None:
        house = WebHouse()
        client = connected(house)
        for op, members in requests:
            number = client.send(op, **members)
            answers = [one for one in client.pull() if one.get("id") == number]
            assert len(answers) == 1
            assert ("ok" in answers[0]) != ("error" in answers[0])
            assert answers[0].get("error", {}).get("code") != "internal"
        client.stream.lose()
        house.pass_time(1)
        assert house.broker.counters.connections == 0


class GoneTests(SynchronousTestCase):
    """Clients that leave while a request waits"""

    def test_a_subscription_that_waits_for_its_start(self) -> None:
        house = WebHouse()
        client = connected(house)
        used = house.broker.memory.used
        start: Deferred[int] = Deferred()
        self.patch(house.store, "offset_at", lambda timestamp: start)  # type: ignore[no-untyped-call]
        client.send("subscribe", topic="a", timestamp=1)
        client.stream.lose()
        house.clock.advance(1)
        start.callback(0)
        house.clock.advance(1)
        assert house.broker.topics.get("a") is None
        assert house.broker.memory.used < used
