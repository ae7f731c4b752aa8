"""Shutdown: accepted messages are delivered, then the goodbye is sent, within a deadline."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.broker import HOST, Broker, Start, listen
from tests.integration.clients import DISCONNECT, Cafe, Frame, Nsd, message, publish, text
from tests.integration.cluster import free_port
from tests.integration.streams import press
from tests.integration.threads import background
from tests.waiting import until

MIB = 1024 * 1024


def assert_stopping(broker: Broker) -> None:
    """Send SIGTERM and wait until the broker accepts no more."""
    broker.signal()
    # A connection made just before may stay in the kernel's queue and get no goodbye.
    for protocol in ("cafe", "nsd"):
        for port in broker.ports(protocol):
            broker.wait_line(rf"\(TCP Port {port} Closed\)")
            # The line is logged just before.
            deadline = time.monotonic() + 10
            while accepts(port):
                assert time.monotonic() < deadline


def accepts(port: int) -> bool:
    """Return whether the kernel accepts a connection."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def send_on(client: Cafe, first: int) -> None:
    """Send numbered messages until the broker closes the connection."""
    try:
        for number in range(first, 10_000_000, 100):
            client.send(*[publish(1, b"%d" % n) for n in range(number, number + 100)])
    except (BrokenPipeError, ConnectionResetError):
        pass


@pytest.mark.modes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_under_traffic(broker: Broker, number: signal.Signals) -> None:
    accepted = 5000
    subscribers = [Cafe.subscriber(broker) for _ in range(3)]
    rests: list[list[Frame]] = []
    with Cafe.publisher(broker) as publisher:
        publisher.send(*[publish(1, b"%d" % n) for n in range(accepted)])
        assert publisher.sync() == []
        with (
            background(send_on, publisher, accepted),
            background(subscribers[0].receive_rest) as one,
            background(subscribers[1].receive_rest) as two,
        ):
            broker.signal(number)
            rests.append(subscribers[2].receive_rest())
            assert publisher.receive_rest() == [(DISCONNECT, b"")]
        rests += [one.result(), two.result()]
    for subscriber in subscribers:
        subscriber.close()
    for rest in rests:
        assert rest.pop() == (DISCONNECT, b"")
        texts = [text(f) for f in rest]
        assert texts == [b"%d" % n for n in range(len(texts))]
        assert len(texts) >= accepted
    assert broker.wait() in (0, -number)
    totals = broker.totals()
    assert totals == {
        "published": len(texts), "delivered": 3 * len(texts), "dropped": 0, "refused": 0,
    }  # fmt: skip


def test_every_client_gets_the_goodbye(start: Start) -> None:
    """Publishers, subscribers and connections without a handshake; nsd has no goodbye."""
    broker = start(*listen("cafe", "nsd"))
    with (
        Cafe.publisher(broker) as publisher,
        Cafe.subscriber(broker) as subscriber,
        Cafe(broker.port("cafe")) as stranger,
        Nsd.to(broker) as nsd,
    ):
        stranger.sync()
        nsd.do("Open", "ada")
        broker.signal()
        for client in (publisher, subscriber, stranger):
            assert client.receive_rest() == [(DISCONNECT, b"")]
        assert nsd.at_end()
    broker.stop()


def test_no_connection_is_admitted_while_stopping(broker: Broker) -> None:
    with Cafe.subscriber(broker) as reader:
        port = broker.port("cafe")
        assert accepts(port)
        assert_stopping(broker)
        assert reader.receive() == (DISCONNECT, b"")


@pytest.mark.modes
def test_a_backlog_is_delivered_first(start: Start) -> None:
    """A subscriber that is behind at the signal still gets its queued messages."""
    broker = start(*listen("cafe"), "--slow-consumer=disconnect")
    with (
        Cafe.subscriber(broker, receive_buffer=16 * 1024) as slow,
        Cafe.publisher(broker) as publisher,
    ):
        sent = [b"%05d" % n + bytes(10_000) for n in range(1000)]
        publisher.send(*[publish(1, each) for each in sent])
        publisher.sync()
        first = slow.receive_texts(100)
        assert_stopping(broker)
        assert broker.alive
        rest = slow.receive_rest()
        assert rest.pop().opcode == DISCONNECT
        assert first + [text(f) for f in rest] == sent
    broker.stop()
    assert broker.totals()["dropped"] == 0


@contextmanager
def stopping_with_unread_messages(broker: Broker) -> Iterator[Cafe]:
    """Send SIGTERM while a subscriber does not read; yield the subscriber."""
    with (
        Cafe.subscriber(broker, receive_buffer=16 * 1024) as stuck,
        Cafe.publisher(broker) as publisher,
    ):
        publisher.sock.settimeout(1)
        press(publisher.send, publish(1, bytes(MIB // 8)))
        broker.signal()
        yield stuck


@pytest.mark.modes
def test_a_subscriber_that_never_reads_is_aborted_at_the_deadline(start: Start) -> None:
    broker = start(*listen("cafe"), "--slow-consumer=pause", "--stop-timeout=1")
    with stopping_with_unread_messages(broker) as stuck:
        broker.wait_line(r"connections did not close in time: \d+")
        # Far less than any other time limit of the broker.
        assert broker.wait(20) in (0, -signal.SIGTERM)
        stuck.receive_until_reset()
    assert broker.totals()["dropped"] > 0


def test_a_client_that_never_closes_is_not_waited_for_long(start: Start) -> None:
    broker = start(*listen("cafe", "nsd"), "--stop-timeout=1")
    with Cafe.subscriber(broker) as idle, Nsd.to(broker) as nsd:
        nsd.do("Open", "ada")
        broker.signal()
        assert broker.wait(20) in (0, -signal.SIGTERM)
        assert idle.receive().opcode == DISCONNECT


@pytest.mark.parametrize("in_base64", [False, True], ids=["plain", "base64"])
def test_a_response_in_progress_is_finished(broker: Broker, in_base64: bool) -> None:
    with Cafe.publisher(broker) as publisher:
        publisher.send(*[publish(1, b"%05d" % n + b"x" * 10_000) for n in range(2000)])
        publisher.sync()
        with Nsd.to(broker, in_base64, receive_buffer=16 * 1024) as nsd:
            nsd.do("Subscribe", "ada", channel="cafe/1")
            nsd.put("Get", "ada", after=0)
            nsd.put("Open", "after-the-end")
            # The response has begun before the signal.
            assert nsd.sock.recv(1, socket.MSG_PEEK)
            assert_stopping(broker)
            messages = nsd.answer()["messages"]
            assert [m["body"][:5] for m in messages] == [f"{n:05}" for n in range(2000)]
            assert nsd.at_end()
    broker.stop()


@pytest.mark.modes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_wait(start: Start, number: signal.Signals) -> None:
    broker = start(
        *listen("cafe"), "--slow-consumer=pause", "--stop-timeout=600", "--slow-seconds=600"
    )
    again = f"{number.name} again: the broker does not wait for its clients"

    def signalled_again() -> bool:
        broker.signal(number)
        return again in broker.output

    with stopping_with_unread_messages(broker) as stuck:
        # Those within a second of the first are part of the same request.
        until(signalled_again, again)
        broker.wait_line(r"connections did not close in time: \d+")
        # By the last signal if that comes when the reactor has ended.
        assert broker.wait(20) in (-signal.SIGTERM, -signal.SIGINT)
        stuck.receive_until_reset()


def test_signals_at_the_same_time_are_one_request(start: Start) -> None:
    """timeout(1) sends two, and the broker has not begun to stop at the second."""
    broker = start(*listen("cafe"), "--slow-consumer=pause", "--stop-timeout=600")
    with Cafe.subscriber(broker) as subscriber:
        broker.signal(signal.SIGTERM)
        broker.signal(signal.SIGINT)
        assert subscriber.receive_rest() == [(DISCONNECT, b"")]
    assert broker.wait() in (-signal.SIGTERM, -signal.SIGINT)
    broker.wait_line("SIG(INT|TERM): the broker is stopping already; another one cuts clients off")


def test_the_end_of_a_response_is_not_cut_off_before_the_deadline(start: Start) -> None:
    """A client slower than the linger time, but within the stop timeout, gets all of it."""
    broker = start(*listen("cafe", "nsd"), "--stop-timeout=30")
    with Cafe.publisher(broker) as publisher:
        publisher.send(*[publish(1, b"x" * 60_000) for _ in range(4)])
        publisher.sync()
    with Nsd.to(broker, receive_buffer=2048) as nsd:
        nsd.do("Subscribe", "ada", channel="cafe/1")
        nsd.put("Get", "ada", after=0)
        assert nsd.sock.recv(1, socket.MSG_PEEK)
        broker.signal()
        with contextlib.suppress(subprocess.TimeoutExpired):
            # The client delays its reading.
            broker.wait(4)
        assert len(nsd.answer()["messages"]) == 4
        assert nsd.at_end()


def test_the_next_process_can_listen_on_the_same_port_at_once(start: Start) -> None:
    options = [f"--listen={name}=tcp:{free_port()}:interface={HOST}" for name in ("cafe", "nsd")]
    first = start(*options)
    clients = [Cafe.subscriber(first) for _ in range(20)]
    first.signal()
    for waiting in clients:
        waiting.receive_rest()
    # Connections that the broker closed are now in TIME_WAIT.
    first.stop()
    second = start(*options)
    with Cafe.subscriber(second, b"\x05") as subscriber, Nsd.to(second) as client:
        client.do("Open", "cafe/5")
        client.do("Publish", "cafe/5", message=message("fresh"))
        assert subscriber.receive_texts(1) == [b"fresh"]
        # The history was in memory.
        assert [m["when"] for m in client.get("cafe/5")] == [1]
    for closing in clients:
        closing.close()
