"""The benchmark of mixed traffic: it passes with the broker, and detects a changed byte."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.bench import BenchError, throughput, traffic
from tests.bench.broker import twistd_broker
from tests.bench.plan import MIB
from tests.bench.poller import LIST, plain_messages
from tests.bench.rows import (
    CONNECTIONS,
    Row,
    chosen,
    live_rows,
    payload,
    stored_rows,
    stored_window,
)
from tests.bench.subscriber import FrameCheck
from tests.bench.traffic import measure
from tests.bench.traffic_clients import ListReceiver, Receiver
from tests.bench.wires import PEER_WIRES, WIRES, Frame

TWISTD = Path(sys.executable).with_name("twistd")
MESSAGES = [(0, 20), (1, 30), (0, 16), (2, 17)]
BOTH, ALL_THREE = frozenset({0, 1}), frozenset({0, 1, 2})
IN_TURN = Row("test", [MESSAGES], [(0, BOTH), (0, ALL_THREE), (0, frozenset({2}))])
IN_PARTS = Row("parts", [MESSAGES * 2], [(0, ALL_THREE), (0, frozenset({0}))], parts=4)
PAIRS = Row("pairs", [MESSAGES[:1], [(1, 40)]], [(0, frozenset({0})), (1, frozenset({1}))])
LONE = Row("lone", [[(0, 64)]] * 3, [(0, frozenset({0}))], lone=2)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (throughput, traffic):
        monkeypatch.setattr(module, "WARM_UP_SECONDS", 0.05)


@pytest.mark.parametrize("name", WIRES)
def test_messages_of_several_topics_arrive_in_order(name: str) -> None:
    with twistd_broker(TWISTD, WIRES[name], (), 0) as broker:
        assert measure(broker, WIRES[name], IN_TURN, seconds=0.2).deliveries > 0


@pytest.mark.parametrize("name", ["cafe", "rheos", "nsd"])
@pytest.mark.parametrize("row", [PAIRS, LONE, IN_PARTS], ids=str)
def test_several_publishers(name: str, row: Row) -> None:
    with twistd_broker(TWISTD, WIRES[name], (), 0) as broker:
        assert measure(broker, WIRES[name], row, seconds=0.2).deliveries > 0


class TestReceiver:
    """A subscriber of topics 0 and 2 over cafe"""

    def receiver(self) -> tuple[Receiver, socket.socket, bytes]:
        broker, sock = socket.socketpair()
        sock.setblocking(False)
        made = Receiver(sock, WIRES["cafe"], MESSAGES, frozenset({0, 2}), 0)
        return made, broker, made.cycle_bytes()

    def test_the_expected_bytes(self) -> None:
        receiver, broker, cycle = self.receiver()
        broker.sendall(cycle * 2 + cycle[:5])
        receiver.poll()
        assert receiver.received == 2 * len(cycle) + 5
        assert receiver.messages == 3

    def test_timestamps_differ(self) -> None:
        receiver, broker, cycle = self.receiver()
        broker.sendall(cycle[:8] + b"12345678" + cycle[16:])
        receiver.poll()
        assert receiver.received == len(cycle)

    def test_parts_of_a_batch(self) -> None:
        broker, sock = socket.socketpair()
        sock.setblocking(False)
        receiver = Receiver(sock, WIRES["cafe"], MESSAGES, frozenset({0, 2}), 0, parts=2)
        cycle = receiver.cycle_bytes()
        first = WIRES["cafe"].delivery(0, 20).size
        expected = [(first // 2, 0.5), (first, 1), (len(cycle), 2), (len(cycle) + first, 3)]
        for end, parts in expected:
            broker.sendall((cycle * 2)[receiver.received : end])
            receiver.poll()
            assert receiver.parts == parts
        assert receiver.messages == 1.5

    @pytest.mark.parametrize("place", [0, 7, 16, 35, 36, 60])
    def test_a_changed_byte_is_an_error(self, place: int) -> None:
        receiver, broker, cycle = self.receiver()
        changed = bytes([cycle[place] ^ 1])
        broker.sendall(cycle + cycle[:place] + changed + cycle[place + 1 :])
        with pytest.raises(BenchError, match=f"at byte {len(cycle) + place}$"):
            receiver.poll()

    def test_the_end_of_the_stream_is_an_error(self) -> None:
        receiver, broker, _ = self.receiver()
        broker.close()
        with pytest.raises(BenchError, match="closed"):
            receiver.poll()


class TestListReceiver:
    """A subscriber over nsd, which asks for lists"""

    def receiver(self) -> tuple[ListReceiver, socket.socket, list[bytes]]:
        broker, sock = socket.socketpair()
        sock.setblocking(False)
        made = ListReceiver(sock, WIRES["nsd"], MESSAGES, ALL_THREE, 0)
        made.request_with(lambda after: b"after %d\n" % after)
        messages = made.cycle_bytes().split(b"},")[:-1]
        return made, broker, [message + b"}" for message in messages]

    def answer(self, numbered: dict[int, bytes]) -> bytes:
        each = [m.replace(b'"when":1', b'"when":%d' % n) for n, m in numbered.items()]
        return LIST + b",".join(each) + b"]}\n"

    def test_the_next_request_names_the_last_number(self) -> None:
        receiver, broker, messages = self.receiver()
        broker.sendall(self.answer(dict(zip((8, 9, 10, 115), messages, strict=True))))
        receiver.poll()
        receiver.poll(behind=False)
        assert broker.recv(100) == b"after 0\n"
        assert receiver.parts == 1
        receiver.poll()
        assert broker.recv(100) == b"after 115\n"

    def test_another_order_is_an_error(self) -> None:
        receiver, broker, messages = self.receiver()
        broker.sendall(self.answer({1: messages[1], 2: messages[0]}))
        with pytest.raises(BenchError, match="something else"):
            receiver.poll()

    def test_a_list_may_be_empty_but_not_something_else(self) -> None:
        assert plain_messages(LIST + b"]}\n") == b""
        with pytest.raises(BenchError, match="instead of a list"):
            plain_messages(b'{"_class":"ErrorResponse"}\n')


def test_every_byte_of_frames_is_checked_except_keys_and_bytes_that_brokers_change() -> None:
    frame = Frame(b"head-time-", 12, b"\r\n", fixed=5)
    rest = b"xxxx\r\n"
    good = b"head-TIME!12345678" + rest
    FrameCheck({0: frame}, 8).check(good * 3)
    for bad in (b"Head-", good[:18] + b"y" + good[19:], good[:-1] + b"\r"):
        with pytest.raises(BenchError, match="something else"):
            FrameCheck({0: frame}, 8).check(good + bad.ljust(len(good), b"x"))


def test_a_message_has_the_topic_of_its_publisher() -> None:
    frames = {number: Frame(b"topic%d-" % number, 10, fixed=7) for number in range(2)}
    first, second = (
        frames[number].before + (number << 32 | 7).to_bytes(8, "little") + b"xx"
        for number in frames
    )
    FrameCheck(frames, 8).check(first + second + first)
    with pytest.raises(BenchError, match="something else at byte 5"):
        FrameCheck(frames, 8).check(first + second.replace(b"1", b"0"))
    with pytest.raises(BenchError, match="other publishers"):
        FrameCheck({0: frames[0], 2: frames[1]}, 8).check(second)


class TestRows:
    """The plan of rows"""

    def test_rows_are_the_same_in_each_call(self) -> None:
        for rows in (live_rows, stored_rows):
            assert [*rows()] == [*rows()]
            names = [row.name for row in rows()]
            assert len({*names}) == len(names)

    def test_every_publisher_has_subscribers_and_every_subscriber_messages(self) -> None:
        for row in live_rows():
            if row.lone:
                continue
            assert {publisher for publisher, _ in row.subscribers} == {*range(len(row.batches))}
            for publisher, topics in row.subscribers:
                assert topics <= {*row.topics(publisher)}

    def test_every_wire_has_enough_topics(self) -> None:
        most = max(max(row.topics(0)) for row in live_rows())
        assert all(wire.topics > most for wire in (*WIRES.values(), *PEER_WIRES.values()))

    def test_jetstream_lets_as_many_stored_messages_wait(self) -> None:
        for row in stored_rows():
            window = stored_window(row)
            assert window >= 2 * len(row.batches[0])
            assert window * len(row.batches) <= 10_000
            assert window * max(size for _, size in row.batches[0]) <= 8 * MIB
        assert len(chosen(stored_rows(), ["50 conn"])[0].batches) == CONNECTIONS

    def test_rows_are_chosen_by_a_part_of_their_name(self) -> None:
        rows = [*live_rows()]
        assert chosen(rows, []) == rows
        assert [row.name for row in chosen(rows, ["10 pairs", "two in"])] == [
            "10 pairs, 16 to 256 B",
            "50 to 1, two in flight each, 64 B",
        ]

    def test_payloads_differ_by_publisher_and_place(self) -> None:
        made = {payload(n, place, 16) for n in range(10) for place in range(100)}
        assert len(made) == 1000
        assert all(len(payload(0, 0, size, text=True)) == size for size in (1, 16, 17))
