"""spot: broker processes that share topics, with failures and restarts (§7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tests.integration.broker import HOST, Start
from tests.integration.clients import ERROR, Cafe, Frame, Nsd, handshake_pub, message, publish
from tests.integration.cluster import (
    Member,
    Open,
    Socket,
    free_port,
    mesh,
    sockets,
    subscribe,
)
from tests.integration.threads import background
from tests.waiting import until

CHANNEL = "--cafe-channels=1:orders"
UNREACHABLE = Frame(ERROR, b"\x02")


@pytest.fixture
def connect() -> Iterator[Open]:
    """Yield a function that opens pyzmq sockets."""
    with sockets() as opener:
        yield opener


def create(member: Member, topic: bytes, connect: Open) -> None:
    """Publish to ``topic`` at ``member``, so that it hosts the topic."""
    dealer = connect(zmq.DEALER, member.endpoint)
    dealer.send(b"", b"\x01", topic, b"the first")
    assert dealer.query() == [topic]


def host(member: Member, others: list[Member], connect: Open) -> None:
    """Make ``member`` host the topic ``orders``, and wait until the others know it."""
    create(member, b"orders", connect)
    for other in others:
        other.saw("hosts more topics: 1")


@pytest.mark.modes
def test_a_message_reaches_every_broker_once_from_every_protocol(
    start: Start, connect: Open
) -> None:
    a, b, c = members = mesh(start, 3, CHANNEL)
    host(b, [a, c], connect)
    readers = [subscribe(connect(zmq.DEALER, member.endpoint), b"orders") for member in members]
    with (
        Cafe.subscriber(a.broker) as far,
        Cafe.publisher(a.broker) as cafe,
        Nsd.to(c.broker) as nsd,
    ):
        nsd.do("Open", "orders")
        nsd.do("Subscribe", "ada", channel="orders")
        cafe.send(publish(1, b"cafe"))
        nsd.do("Publish", "orders", message=message("nsd"))
        connect(zmq.DEALER, c.endpoint).send(b"\x01", b"orders", b"spot")
        sub = connect(zmq.SUB, a.endpoint)
        sub.zmq.subscribe(b"ord")
        for reader in readers:
            got = {tuple(reader.receive()) for _ in range(3)}
            assert got == {(b"", b"\x01", b"orders", data) for data in (b"cafe", b"nsd", b"spot")}
        assert {far.receive().payload[9:] for _ in range(3)} == {b"cafe", b"nsd", b"spot"}
        # From the history of a broker that does not host the topic.
        until(
            lambda: (
                sorted(each["body"] for each in nsd.get("ada"))
                == ["cafe", "nsd", "spot", "the first"]
            ),
            "the history of c",
        )
    assert all(reader.nothing() for reader in readers)
    # Only its host lists a topic.
    assert [reader.query() for reader in readers] == [[], [b"orders"], []]


def test_a_broker_is_killed_and_restarted(start: Start, connect: Open) -> None:
    a, b, c = mesh(start, 3, CHANNEL)
    host(b, [a, c], connect)
    reader = subscribe(connect(zmq.DEALER, c.endpoint), b"orders")
    with Cafe(a.broker.port("cafe")) as cafe, Nsd.to(a.broker) as nsd:
        cafe.shake(handshake_pub())
        nsd.do("Open", "orders")

        def reached() -> bool:
            cafe.send(publish(1, b"probe"))
            return not reader.nothing(50)

        def skip_probes(payload: bytes) -> None:
            while (frames := reader.receive()) != [b"", b"\x01", b"orders", payload]:
                assert frames[-1] == b"probe"

        # No event shows when the subscription has reached the other broker.
        until(reached, "the subscription")
        cafe.send(publish(1, b"before"))
        skip_probes(b"before")
        b.kill()
        a.saw("is disconnected; its topics cannot be reached: 1")
        cafe.send(publish(1, b"lost"), publish(1, b"lost too"))
        assert [cafe.receive(), cafe.receive()] == [UNREACHABLE] * 2
        text = nsd.refused("Publish", "orders", message=message("lost"))
        assert text == "NO SUCH CHANNEL: orders"
        connect(zmq.DEALER, a.endpoint).send(b"\x01", b"orders", b"lost")
        a.saw("refused: 1 on spot: topic-unreachable")
        b.up()
        a.saw("is connected$", 3)
        c.saw("is connected$", 3)
        # The restarted broker has an empty history and hosts the topic again.
        until(lambda: connect(zmq.DEALER, b.endpoint).query() == [b"orders"], "the subscription")
        until(reached, "the subscription")
        cafe.send(publish(1, b"after"))
        assert cafe.sync() == []
        nsd.do("Publish", "orders", message=message("after, too"))
        skip_probes(b"after")
        assert reader.receive()[-1] == b"after, too"
        assert reader.nothing()


def test_losses_during_restarts_are_counted(start: Start, connect: Open) -> None:
    a, b = mesh(start, 2, CHANNEL)
    host(b, [a], connect)
    reader = subscribe(connect(zmq.DEALER, a.endpoint), b"orders")
    reader.zmq.rcvhwm = 0
    count = 20_000
    with Cafe.publisher(a.broker) as cafe:
        cafe.send(*(publish(1, b"%d" % number) for number in range(count)))
        got = [int(reader.receive()[-1]) for _ in range(count)]
        assert got == list(range(count))
        b.kill()
        a.saw("is disconnected; its topics cannot be reached: 1")
        cafe.send(*(publish(1, b"%d" % number) for number in range(100)))
        assert cafe.sync() == [UNREACHABLE] * 100
        b.up()
        a.saw("is connected$", 2)
        cafe.send(*(publish(1, b"%d" % number) for number in range(count)))
        got = [int(reader.receive()[-1]) for _ in range(count)]
        assert got == list(range(count))
    assert reader.nothing()


def test_a_local_topic_stays_local_with_a_warning(
    start: Start, connect: Open, tmp_path: Path
) -> None:
    ports = free_port(), free_port()
    stores = [f"--store=log:{tmp_path / str(port)}" for port in ports]
    for port, store in zip(ports, stores, strict=True):
        # Alone, as each broker would let the other host the topic.
        member = Member(start, HOST, port, [], [store])
        create(member, b"mine", connect)
        member.broker.stop()
    a, b = [
        Member(start, HOST, port, [f"tcp://{HOST}:{other}"], [store])
        for port, other, store in zip(ports, reversed(ports), stores, strict=True)
    ]
    for member, other in ((a, b), (b, a)):
        member.saw(f"topic 'mine' of {other.endpoint}: it is hosted here too; their messages")
        reader = subscribe(connect(zmq.DEALER, member.endpoint), b"mine")
        assert reader.query() == [b"mine"]
        reader.send(b"", b"\x01", b"mine", b"here")
        assert reader.receive() == [b"", b"\x01", b"mine", b"here"]
        assert reader.nothing()


def test_a_broker_does_not_connect_to_itself(start: Start, connect: Open) -> None:
    port = free_port()
    alone = Member(start, HOST, port, [f"tcp://{HOST}:{port}"])
    alone.saw("is this broker itself; no connection is made")
    reader = subscribe(connect(zmq.DEALER, alone.endpoint), b"t")
    reader.send(b"", b"\x01", b"t", b"once")
    assert reader.receive()[-1] == b"once"
    assert reader.nothing()


def test_a_node_of_the_original_implementation(start: Start, connect: Open) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as bare:
        node = Socket(bare)
        port = node.zmq.bind_to_random_port(f"tcp://{HOST}")
        a = Member(start, HOST, free_port(), [f"tcp://{HOST}:{port}"], [CHANNEL])
        peer, *request = node.receive()
        assert request == [b"", b"\x04"]
        node.send(peer, b"", b"\x05", b"\x02\0\0\0", b"orders", b"other")
        a.saw("hosts more topics: 2")
        reader = connect(zmq.DEALER, a.endpoint)
        reader.send(b"", b"\x02", b"orders")

        def asked() -> list[bytes]:
            while True:
                _, *frames = node.receive()
                if frames != [b"", b"\x04"]:
                    return frames

        assert asked() == [b"", b"\x02", b"orders"]
        # The original programs send PUBLISH without the delimiter.
        node.send(peer, b"\x01", b"orders", b"from there")
        assert reader.receive() == [b"", b"\x01", b"orders", b"from there"]
        with Cafe.publisher(a.broker) as cafe:
            cafe.send(publish(1, b"from here"))
            assert asked() == [b"", b"\x01", b"orders", b"from here"]
        reader.send(b"", b"\x03", b"orders")
        assert asked() == [b"", b"\x03", b"orders"]


def test_a_slow_reader_at_another_broker_holds_the_publisher(start: Start, connect: Open) -> None:
    a, b = mesh(start, 2, CHANNEL, "--slow-consumer=pause")
    host(b, [a], connect)
    count, size = 3000, 64 * 1024
    with Cafe.subscriber(a.broker, receive_buffer=4096) as far, Cafe.publisher(a.broker) as cafe:
        sent = 0

        def send() -> None:
            nonlocal sent
            for number in range(count):
                cafe.send(publish(1, b"%08d" % number + bytes(size)))
                sent += 1

        def stands() -> bool:
            """Return whether nothing more was sent while both brokers answered many requests."""
            before = sent
            for _ in range(50):
                for other in others:
                    other.query()
            return sent == before

        others = [connect(zmq.DEALER, member.endpoint) for member in (a, b)]
        # Through b and back, to a reader that does not read for now.
        with background(send):
            until(lambda: sent > 0 and stands(), "the publisher is held")
            assert sent < count
            assert a.broker.memory() < 256 * 1024**2
            got = [int(far.receive().payload[9:17]) for _ in range(count)]
        assert got == list(range(count))
        assert cafe.sync() == []
    for member in (a, b):
        assert "dropped" not in member.broker.output
