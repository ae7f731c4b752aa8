"""Subscribers that do not read: the policies auto, pause, drop and disconnect, and bounded memory.
Messages are numbered, so that losses, duplicates and reordering are detected.
"""

from __future__ import annotations

import pytest

from tests.integration.broker import Broker, Start, listen
from tests.integration.clients import DISCONNECT, MESSAGE, Cafe, publish
from tests.integration.slow_reading import (
    FLOOD,
    MIB,
    SIZE,
    flood,
    numbered,
    numbers,
    read_numbers,
    send_until_blocked,
)
from tests.integration.threads import background


def flood_in_step(source: Cafe, quick: Cafe) -> None:
    """Publish everything in step with ``quick``, so that it is never a slow subscriber."""
    for number, each in enumerate(numbered(0, FLOOD)):
        source.send(each)
        assert read_numbers(quick, 1) == [number]


def stuck(broker: Broker, client: bytes = b"stuck") -> Cafe:
    """Return a subscriber of channel 1 with a small window that does not read."""
    return Cafe.subscriber(broker, b"\x01", client, receive_buffer=16 * 1024)


@pytest.mark.modes
def test_auto_holds_no_publisher_and_loses_nothing(start: Start) -> None:
    broker = start(*listen("cafe"), "--slow-seconds=1")
    with stuck(broker) as slow, Cafe.subscriber(broker) as quick, Cafe.publisher(broker) as source:
        with background(read_numbers, quick, FLOOD) as all_of_quick:
            flood(source)
        assert all_of_quick.result() == list(range(FLOOD))
        # It reads the history, with the messages of that time; then it is live.
        with background(read_numbers, slow, FLOOD) as all_of_slow:
            source.send(*numbered(FLOOD, 10))
        assert all_of_slow.result() == list(range(FLOOD))
        assert read_numbers(slow, 10) == list(range(FLOOD, FLOOD + 10))
        source.send(*numbered(FLOOD + 10, 1))
        assert read_numbers(slow, 1) == [FLOOD + 10]
        assert read_numbers(quick, 11) == list(range(FLOOD, FLOOD + 11))
        assert source.sync() == slow.sync() == quick.sync() == []
    broker.stop()
    totals = broker.totals()
    assert totals["dropped"] == 0
    assert totals["delivered"] == 2 * (FLOOD + 11)


def test_a_subscriber_that_returns_without_reading_delays_no_client(start: Start) -> None:
    broker = start(*listen("cafe"))
    with Cafe.subscriber(broker) as quick, Cafe.publisher(broker) as source:
        slow = stuck(broker)
        for first in range(0, FLOOD, 256):
            with background(read_numbers, quick, 256) as numbers_of_quick:
                source.send(*numbered(first, 256))
                session = slow.session
                slow.reset()
                slow = Cafe.subscriber(
                    broker, b"", b"stuck;resume=%016x" % session, receive_buffer=16 * 1024
                )
            assert numbers_of_quick.result() == list(range(first, first + 256))
        assert source.sync() == quick.sync() == []
        slow.reset()


def test_catch_up_seconds_limit_the_time_behind(start: Start) -> None:
    broker = start(*listen("cafe"), "--catch-up-seconds=1", "--resume-window=0")
    with stuck(broker), Cafe.publisher(broker) as source:
        flood(source)
        broker.wait_line(
            r"'stuck@[\d.:]+' disconnected: slow consumer: has not caught up within 1 s"
        )
        broker.wait_line(r"dropped: \d+ for client 'stuck@[\d.:]+' on topic 'cafe/1': disconnected")


@pytest.mark.modes
def test_pause_holds_the_publisher_and_loses_nothing(start: Start) -> None:
    broker = start(*listen("cafe"), "--slow-consumer=pause")
    with stuck(broker) as slow, Cafe.subscriber(broker) as quick, Cafe.publisher(broker) as source:
        with background(read_numbers, quick, FLOOD) as all_of_quick:
            held_at, rest = send_until_blocked(source)
            # Neither other topics nor other publishers are held.
            with Cafe.subscriber(broker, b"\x02") as aside, Cafe.publisher(broker) as neighbour:
                neighbour.send(publish(2, b"passes"))
                assert aside.receive_texts(1) == [b"passes"]
            with background(source.send, rest, *numbered(held_at + 1, FLOOD - held_at - 1)):
                assert read_numbers(slow, FLOOD) == list(range(FLOOD))
        assert all_of_quick.result() == list(range(FLOOD))
        assert source.sync() == slow.sync() == quick.sync() == []
    broker.stop()
    totals = broker.totals()
    assert totals["dropped"] == 0
    assert totals["delivered"] == 2 * FLOOD + 1


def test_pause_ends_with_the_disconnection_of_the_slow_subscriber(start: Start) -> None:
    # Longer than a busy machine delays the quick subscriber.
    broker = start(
        *listen("cafe"), "--slow-consumer=pause", "--slow-seconds=3", "--resume-window=0"
    )
    with stuck(broker) as slow, Cafe.subscriber(broker) as quick, Cafe.publisher(broker) as source:
        with background(read_numbers, quick, FLOOD) as all_of_quick, background(flood, source):
            broker.wait_line(
                r"cafe client 'stuck@[\d.:]+' disconnected: slow consumer: behind for 3 s"
            )
        assert all_of_quick.result() == list(range(FLOOD))
        assert quick.sync() == []
        broker.wait_line("dropped:")
        received = numbers(slow.receive_until_reset())
        assert received == list(range(len(received)))
    assert broker.output.count(" disconnected: ") == 1


@pytest.mark.modes
def test_drop_counts_dropped_messages(start: Start) -> None:
    broker = start(*listen("cafe"), "--slow-consumer=drop", "--slow-bytes=256K")
    with stuck(broker) as slow, Cafe.subscriber(broker) as quick, Cafe.publisher(broker) as source:
        flood_in_step(source, quick)
        broker.wait_line(
            r"dropped: \d+ for client 'stuck@[\d.:]+' on topic 'cafe/1': slow-consumer"
        )
        broker.signal()
        frames = slow.receive_rest()
        assert frames.pop().opcode == DISCONNECT
        received = numbers(frames)
        # Messages arrive in order and once; missing messages are counted.
        assert received == sorted(set(received))
    broker.stop()
    totals = broker.totals()
    assert totals["published"] == FLOOD
    assert totals["dropped"] == FLOOD - len(received) > 0
    assert totals["delivered"] == FLOOD + len(received)


@pytest.mark.modes
def test_disconnect_holds_no_publisher(start: Start) -> None:
    broker = start(
        *listen("cafe"), "--slow-consumer=disconnect", "--slow-bytes=512K", "--resume-window=0"
    )
    with stuck(broker) as slow, Cafe.subscriber(broker) as quick, Cafe.publisher(broker) as source:
        flood_in_step(source, quick)
        broker.wait_line(r"'stuck@[\d.:]+' disconnected: slow consumer: over 524288 bytes behind")
        received = numbers(slow.receive_until_reset())
        assert received == list(range(len(received)))
    broker.stop()
    totals = broker.totals()
    assert totals["dropped"] > 0
    # Messages in the kernel and in the transport count as dropped, too.
    assert totals["delivered"] == FLOOD + len(received)


def test_disconnect_after_slow_seconds(start: Start) -> None:
    broker = start(*listen("cafe"), "--slow-consumer=disconnect", "--slow-seconds=1")
    with stuck(broker), Cafe.publisher(broker) as source:
        # Enough to fill the sockets, far below the limit in bytes.
        source.send(*numbered(0, 12 * MIB // SIZE))
        broker.wait_line(r"'stuck@[\d.:]+' disconnected: slow consumer: behind for 1 s")
        assert source.sync() == []


@pytest.mark.modes
def test_a_client_that_does_not_read_its_replies_is_not_read(start: Start) -> None:
    """Each frame has an error as its reply; these must not accumulate without bound."""
    broker = start(*listen("cafe"), "--allow-publish=other")
    before = broker.memory()
    with Cafe(broker.port("cafe"), receive_buffer=4096) as client:
        client.shake(bytes.fromhex("feca02020000000000"))
        client.sock.settimeout(2)
        with pytest.raises(TimeoutError):
            client.send(publish(1, b"") * 10_000_000)
        assert broker.memory() - before < 48 * MIB
        with Cafe.subscriber(broker) as other:
            other.sync()


@pytest.mark.modes
def test_memory_is_bounded_and_its_largest_holder_is_evicted(start: Start) -> None:
    bound = 32 * MIB
    broker = start(
        *listen("cafe"), "--history=0", f"--max-memory={bound}", "--memory-seconds=1",
        "--slow-consumer=drop", "--slow-bytes=10G", "--resume-window=0",
    )  # fmt: skip
    before = broker.memory()
    with stuck(broker), Cafe.publisher(broker) as source, background(flood, source):
        broker.wait_line("memory bound reached: ")
        broker.wait_line(r"'stuck@[\d.:]+' disconnected: memory bound")
    with Cafe.subscriber(broker) as after, Cafe.publisher(broker) as source:
        source.send(publish(1, b"goes on"))
        assert after.receive_texts(1) == [b"goes on"]
    assert broker.memory("VmHWM") - before < bound + 64 * MIB


def test_memory_is_bounded_under_pause_with_many_slow_readers(start: Start) -> None:
    broker = start(
        *listen("cafe"), "--slow-consumer=pause",
        "--history=1000,8M", "--max-memory=40M", "--memory-seconds=1",
        "--slow-seconds=2", "--resume-window=0",
    )  # fmt: skip
    before = broker.memory()
    readers = [stuck(broker, b"stuck%d" % n) for n in range(40)]
    with Cafe.publisher(broker) as source:
        flood(source)
    assert broker.memory("VmHWM") - before < 40 * MIB + 64 * MIB
    for reader in readers:
        reader.reset()
    with Cafe.subscriber(broker) as after, Cafe.publisher(broker) as source:
        source.send(publish(1, b"goes on"))
        assert after.receive().opcode == MESSAGE
