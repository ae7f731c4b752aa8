"""Sessions: resumption with missed messages, takeover, and refusals (cafe §4.6)."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

import pytest

from tests.integration.broker import Broker, Start, listen
from tests.integration.cafe_sessions import resuming
from tests.integration.clients import (
    DISCONNECT,
    HANDSHAKE_ACK,
    SUBSCRIBE,
    Cafe,
    frame,
    handshake_pub,
    handshake_sub,
    publish,
    text,
)
from tests.integration.threads import background

REFUSED = (HANDSHAKE_ACK, b"\x01" + bytes(8))


def resume(broker: Broker, session: int, channels: bytes = b"", client: bytes = b"bob") -> Cafe:
    """Return a subscriber with a resumed session."""
    made = Cafe.subscriber(broker, channels, resuming(session, client))
    assert made.session == session
    return made


def assert_refused(broker: Broker, handshake: bytes) -> None:
    """Check that the handshake fails with 0x01 and the connection ends."""
    with Cafe(broker.port("cafe")) as client:
        client.send(handshake)
        assert client.receive_rest() == [REFUSED]


@pytest.mark.parametrize("how", ["close", "reset"])
def test_missed_messages_arrive_once_and_in_order(broker: Broker, how: str) -> None:
    with Cafe.publisher(broker) as publisher:
        subscriber = Cafe.subscriber(broker, b"\x01\x02", b"bob")
        session = subscriber.session
        expected = 0
        for _ in range(3):
            publisher.send(*[publish(1 + n % 2, b"%d" % n) for n in range(expected, expected + 10)])
            publisher.sync()
            texts = sorted(int(text(f)) for f in subscriber.sync())
            texts += [int(t) for t in subscriber.receive_texts(10 - len(texts))]
            assert sorted(texts) == list(range(expected, expected + 10))
            getattr(subscriber, how)()
            broker_saw_it_go(broker)
            expected += 10
            publisher.send(
                *[publish(1 + n % 3, b"%d" % n) for n in range(expected, expected + 600)],
            )
            publisher.sync()
            subscriber = resume(broker, session)
            # Channel 3 is not among its subscriptions.
            missed = [b"%d" % n for n in range(expected, expected + 600) if n % 3 != 2]
            assert subscriber.receive_texts(len(missed)) == missed
            expected += 600
        assert subscriber.sync() == []
        subscriber.close()


@contextlib.contextmanager
def counting(publisher: Cafe) -> Iterator[None]:
    """Publish 0, 1, 2, ... on channel 1 until the context ends, and wait until all are handled."""
    enough = threading.Event()

    def count() -> None:
        numbers = itertools.count()
        while not enough.is_set():
            publisher.send(*[publish(1, b"%d" % n) for n in itertools.islice(numbers, 10)])
            assert publisher.sync() == []

    with background(count):
        try:
            yield
        finally:
            enough.set()


def broker_saw_it_go(broker: Broker) -> None:
    """Wait until the broker has handled the end of an earlier connection."""
    for _ in range(3):
        with Cafe(broker.port("cafe")) as barrier:
            barrier.sync()


@pytest.mark.modes
def test_live_messages_follow_the_missed_ones_under_traffic(broker: Broker) -> None:
    """A subscriber disconnects and resumes repeatedly under traffic: no gap, no repeat."""
    seen: list[int] = []
    with Cafe.publisher(broker) as publisher:
        subscriber = Cafe.subscriber(broker, b"\x01", b"bob")
        session = subscriber.session
        with counting(publisher):
            for _ in range(8):
                seen += [int(t) for t in subscriber.receive_texts(300)]
                subscriber.reset()
                subscriber = resume(broker, session)
        seen += [int(t) for t in map(text, subscriber.sync())]
        subscriber.close()
    # Messages written to a broken connection are lost; the others arrive in order and once.
    assert seen == sorted(set(seen))
    assert len(seen) >= 8 * 300


def test_channels_of_the_handshake_are_added(broker: Broker) -> None:
    with Cafe.publisher(broker) as publisher:
        subscriber = Cafe.subscriber(broker, b"\x01", b"bob")
        subscriber.send(frame(SUBSCRIBE, b"\x02"))
        subscriber.sync()
        session = subscriber.session
        subscriber.close()
        with resume(broker, session, b"\x03") as resumed:
            publisher.send(publish(1, b"1"), publish(2, b"2"), publish(3, b"3"), publish(4, b"4"))
            publisher.sync()
            assert sorted(resumed.receive_texts(3)) == [b"1", b"2", b"3"]
            assert resumed.sync() == []


def test_a_new_connection_takes_the_session_over(broker: Broker) -> None:
    with Cafe.subscriber(broker, b"\x01", b"bob") as old, Cafe.publisher(broker) as publisher:
        publisher.send(publish(1, b"before"))
        assert old.receive_texts(1) == [b"before"]
        with resume(broker, old.session) as new:
            with pytest.raises((EOFError, ConnectionResetError)):
                old.receive()
            publisher.send(publish(1, b"after"))
            assert new.receive_texts(1) == [b"after"]
            assert new.sync() == []
    broker.wait_line("its session was resumed by another connection")


def test_publishers_resume_too(broker: Broker) -> None:
    publisher = Cafe.publisher(broker, 1, b"alice")
    publisher.close()
    with Cafe(broker.port("cafe")) as again:
        again.shake(handshake_pub(1, resuming(publisher.session, b"alice")))
        assert again.session == publisher.session


def test_mismatched_handshakes_are_refused(broker: Broker) -> None:
    subscriber = Cafe.subscriber(broker, b"\x01", b"bob")
    session = subscriber.session
    for wrong in (
        handshake_sub(b"\x01", resuming(session ^ 1)),
        handshake_sub(b"\x01", resuming(session, b"rob")),
        handshake_sub(b"\x01", resuming(0)),
        handshake_sub(b"\x01", b"bob;resume="),
        handshake_sub(b"\x01", b"bob;resume=%x" % session + b"0"),
        handshake_sub(b"\x01", b"bob;resume=" + b"g" * 16),
        handshake_pub(1, resuming(session)),
    ):
        assert_refused(broker, wrong)
    # None of them changed the session.
    assert subscriber.sync() == []
    subscriber.close()
    with resume(broker, session):
        pass


def test_disconnect_ends_the_session(broker: Broker) -> None:
    with Cafe.subscriber(broker, b"\x01", b"bob") as subscriber:
        subscriber.send(frame(DISCONNECT))
        assert subscriber.at_end()
        assert_refused(broker, handshake_sub(b"", resuming(subscriber.session)))


def test_a_session_belongs_to_its_listener(start: Start) -> None:
    broker = start(*listen("cafe", "cafe"))
    first, second = broker.ports("cafe")
    with Cafe(first) as one, Cafe(second) as two:
        one.shake(handshake_sub(b"", b"bob"))
        two.send(handshake_sub(b"", resuming(one.session)))
        assert two.receive_rest() == [REFUSED]


def test_without_a_window_there_is_no_resumption(start: Start) -> None:
    broker = start(*listen("cafe"), "--resume-window=0")
    with Cafe.subscriber(broker, b"\x01", b"bob") as subscriber:
        # A live session cannot be taken over either: it ends with its connection.
        assert_refused(broker, handshake_sub(b"", resuming(subscriber.session)))
    assert_refused(broker, handshake_sub(b"", resuming(subscriber.session)))


def test_a_session_expires_after_its_window(start: Start) -> None:
    """Real time must pass; a longer delay does not matter."""
    broker = start(*listen("cafe"), "--resume-window=0.5")
    subscriber = Cafe.subscriber(broker, b"\x01", b"bob")
    with Cafe(broker.port("cafe")) as clock:
        subscriber.close()
        # The window begins when the broker handles the end of the connection.
        broker_saw_it_go(broker)
        clock.sock.settimeout(1.5)
        with pytest.raises(TimeoutError):
            clock.receive()
    assert_refused(broker, handshake_sub(b"", resuming(subscriber.session)))


def test_a_history_that_is_too_short_is_reported(start: Start) -> None:
    broker = start(*listen("cafe"), "--history=10")
    with Cafe.publisher(broker) as publisher:
        subscriber = Cafe.subscriber(broker, b"\x01", b"bob")
        session = subscriber.session
        subscriber.close()
        broker_saw_it_go(broker)
        for n in range(25):
            publisher.send(publish(1, b"%d" % n))
            publisher.sync()
        with resume(broker, session) as resumed:
            assert resumed.receive_texts(10) == [b"%d" % n for n in range(15, 25)]
            assert resumed.sync() == []
    broker.wait_line(r"dropped: 15 for client 'bob@[\d.:]+' on topic '.*': expired")


@pytest.mark.modes
@pytest.mark.parametrize("slow_bytes", ["128K", "1M"])
def test_an_evicted_slow_reader_resumes(start: Start, slow_bytes: str) -> None:
    """Messages not written to the old connection are delivered after resumption."""
    broker = start(*listen("cafe"), "--slow-consumer=disconnect", f"--slow-bytes={slow_bytes}")
    sent = [b"%05d" % n + bytes(20_000) for n in range(1200)]
    with Cafe.publisher(broker) as publisher:
        slow = Cafe.subscriber(broker, b"\x01", b"bob", receive_buffer=16 * 1024)
        publisher.send(*[publish(1, each) for each in sent])
        publisher.sync()
        broker.wait_line(r"'bob@[\d.:]+' disconnected: slow consumer")
        received = [text(f) for f in slow.receive_until_reset()]
        slow.close()
        with resume(broker, slow.session) as again:
            tail = again.receive_texts(1)
            while tail[-1] != sent[-1]:
                tail += again.receive_texts(1)
    first = sent.index(tail[0])
    # No gap after the point of resumption, and no duplicates before it.
    assert tail == sent[first:]
    assert received == sent[: len(received)]
    assert len(received) <= first
