"""Limits and access rules of a listener: the replies and the log."""

from __future__ import annotations

import urllib.request

import pytest

from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.clients import (
    ERROR,
    HANDSHAKE_ACK,
    PING,
    PONG,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Cafe,
    Client,
    Nsd,
    frame,
    handshake_pub,
    handshake_sub,
    message,
    publish,
)
from tests.waiting import until

LIMITED = (ERROR, b"\x04")


def assert_refused(client: Cafe, answer: tuple[int, bytes]) -> None:
    """Check that the client gets the refusal before the connection ends."""
    with client:
        assert client.receive_rest() == [answer]


def is_admitted(broker: Broker) -> bool:
    """Return whether one more connection is admitted."""
    with Cafe(broker.port("cafe")) as client:
        client.send(frame(PING))
        return client.receive().opcode == PONG


def refused(code: int) -> tuple[int, bytes]:
    """Return a failed acknowledgment."""
    return HANDSHAKE_ACK, bytes([code]) + bytes(8)


def test_the_rate_of_messages_is_limited(start: Start) -> None:
    """Each refused message has its own error; the connection stays open."""
    broker = start(*listen("cafe"), "--rate-messages=5")
    with Cafe.subscriber(broker) as subscriber, Cafe.publisher(broker, 1, b"hasty") as publisher:
        publisher.send(*[publish(1, b"%d" % n) for n in range(1000)])
        errors = publisher.sync()
        assert set(errors) == {LIMITED}
        accepted = [int(t) for t in subscriber.receive_texts(1000 - len(errors))]
        assert accepted[:5] == list(range(5))
        assert accepted == sorted(set(accepted))
        # More only on a machine so slow that tokens were added meanwhile.
        assert len(accepted) < 500
        assert subscriber.sync() == []
    broker.wait_line(r"refused: \d+ on cafe: rate-limited, last by 'hasty@[\d.:]+'")
    broker.stop()
    assert broker.totals()["refused"] == len(errors)
    assert broker.totals()["published"] == len(accepted)


def test_each_connection_has_its_own_rate(start: Start) -> None:
    broker = start(*listen("cafe"), "--rate-messages=1000")
    with Cafe.publisher(broker) as hasty, Cafe.publisher(broker) as patient:
        hasty.send(publish(1, b"") * 50_000)
        assert LIMITED in hasty.sync()
        patient.send(publish(1, b"") * 100)
        assert patient.sync() == []


def test_the_connections_of_a_listener_can_share_a_rate(start: Start) -> None:
    broker = start(*listen("cafe", "cafe"), "--listener-rate-messages=100")
    first, second = broker.ports("cafe")
    with Cafe(first) as one, Cafe(first) as two, Cafe(second) as elsewhere:
        for client in (one, two, elsewhere):
            client.shake(handshake_pub())
        one.send(publish(1, b"") * 20_000)
        assert LIMITED in one.sync()
        two.send(publish(1, b"") * 20_000)
        assert LIMITED in two.sync()
        elsewhere.send(publish(1, b"") * 50)
        assert elsewhere.sync() == []


def test_the_rate_of_bytes_is_limited(start: Start) -> None:
    """A message larger than the bytes of a second is admitted now and then."""
    broker = start(*listen("cafe"), "--rate-bytes=10K")
    with Cafe.publisher(broker) as publisher:
        publisher.send(publish(1, bytes(200_000)) * 2)
        assert publisher.sync() == [LIMITED]
    broker.wait_line("refused: 1 on cafe: rate-limited")


def test_rates_apply_to_nsd(start: Start) -> None:
    broker = start(*listen("nsd"), "--rate-messages=2")
    with Nsd.to(broker) as client:
        client.do("Open", "ada")
        answers = [client.ask("Publish", "ada", message=message(str(n))) for n in range(50)]
        errors = [a["error"] for a in answers if a["_class"] == "ErrorResponse"]
        assert set(errors) == {"RATE LIMIT EXCEEDED"}
        # A refused message uses no `when`.
        received = client.get("ada")
        assert [m["when"] for m in received] == list(range(1, 51 - len(errors)))
    broker.wait_line("refused: 1 on nsd: rate-limited")


@pytest.mark.parametrize("option", ["--max-connections=2", "--max-connections-per-address=2"])
def test_connections_are_limited(start: Start, option: str) -> None:
    broker = start(*listen("cafe", "nsd"), option)
    # Each listener has its own limit.
    with Cafe.subscriber(broker), Cafe.subscriber(broker) as second:
        with Nsd.to(broker) as one, Nsd.to(broker) as two, Nsd.to(broker) as three:
            one.do("Open", "a")
            two.do("Open", "b")
            assert three.answer() == {"_class": "ErrorResponse", "error": "TOO MANY CONNECTIONS"}
            assert three.at_end()
        assert_refused(Cafe(broker.port("cafe")), LIMITED)
        second.send(frame(0x04))
        assert second.at_end()
        second.close()
        # There is room once the broker has seen the end of the connection.
        assert any(is_admitted(broker) for _ in range(1000))
    broker.wait_line(r"refused: 1 on cafe: limit-reached, last by '127\.0\.0\.1:\d+'")
    broker.wait_line(r"refused: 1 on nsd: limit-reached, last by '127\.0\.0\.1:\d+'")


def test_a_flood_of_connections_over_the_quota(start: Start) -> None:
    """Each is refused and closed, and the admitted connections are served."""
    broker = start(*listen("cafe"), "--max-connections=1")
    with Cafe.publisher(broker) as inside:
        outside = [Cafe(broker.port("cafe")) for _ in range(200)]
        for client in outside:
            client.send(handshake_pub())
        for client in outside:
            assert_refused(client, LIMITED)
        assert inside.sync() == []
    broker.stop()
    assert broker.totals()["refused"] == 200


def test_sessions_are_limited(start: Start) -> None:
    """The handshake over the limit fails with its own code."""
    broker = start(*listen("cafe"), "--max-sessions=1")
    with Cafe.subscriber(broker, b"\x01", b"first"), Cafe(broker.port("cafe")) as second:
        second.send(handshake_sub())
        assert second.receive_rest() == [refused(0x04)]
    broker.wait_line("refused: 1 on cafe: limit-reached")


def rules(start: Start) -> Broker:
    """Return a broker with channels 1, read only, and 2, write only."""
    return start(
        *listen("cafe", "nsd"), "--cafe-channels=1:news,2:mail",
        "--allow-publish=mail,own*", "--allow-subscribe=news,own*",
    )  # fmt: skip


def test_handshakes_are_checked(start: Start) -> None:
    broker = rules(start)
    for handshake, code in (
        (handshake_pub(1), 0x08),
        (handshake_pub(3), 0x02),
        (handshake_sub(b"\x01\x02"), 0x08),
        # An unknown channel precedes a missing permission.
        (handshake_sub(b"\x02\x03"), 0x02),
    ):
        with Cafe(broker.port("cafe")) as client:
            client.send(handshake)
            assert client.receive_rest() == [refused(code)]
    broker.wait_line("refused: 1 on cafe: not-authorized")
    broker.wait_line("refused: 1 on cafe: topic-not-found")


def test_requests_are_checked(start: Start) -> None:
    broker = rules(start)
    with Cafe.publisher(broker, 2) as publisher, Cafe.subscriber(broker) as subscriber:
        publisher.send(publish(1, b"x") * 3, publish(3, b"x") * 2, publish(2, b"fine"))
        assert publisher.sync() == [(ERROR, b"\x08")] * 3 + [(ERROR, b"\x02")] * 2
        subscriber.send(
            frame(SUBSCRIBE, b"\x02"), frame(SUBSCRIBE, b"\x03"), frame(UNSUBSCRIBE, b"\x03"),
            frame(UNSUBSCRIBE, b"\x02"),
        )  # fmt: skip
        assert [payload for _opcode, payload in subscriber.sync()] == [b"\x08", b"\x02", b"\x02"]
    broker.wait_line("refused: 3 on cafe: not-authorized, last by '127")
    broker.wait_line("refused: 2 on cafe: topic-not-found, last by '127")


def test_rules_apply_to_nsd(start: Start) -> None:
    broker = rules(start)
    with Nsd.to(broker) as client:
        assert client.refused("Open", "forbidden") == "NOT AUTHORIZED: forbidden"
        client.do("Open", "mail")
        client.do("Publish", "mail", message=message("write only"))
        assert client.get("mail") == []
        assert client.refused("Subscribe", "x", channel="mail") == "NOT AUTHORIZED: mail"
        client.do("Open", "news")
        assert client.refused("Publish", "news", message=message("x")) == "NOT AUTHORIZED: news"
        client.do("Open", "own/1")
        client.do("Publish", "own/1", message=message("mine"))
        assert [m["body"] for m in client.get("own/1")] == ["mine"]
        # Clients without the right cannot find out whether it exists.
        assert client.refused("Subscribe", "x", channel="cafe/3") == "NOT AUTHORIZED: cafe/3"
    broker.wait_line("refused: 1 on nsd: not-authorized")


def test_channels_stand_for_topics(start: Start) -> None:
    """One topic has different numbers on two listeners, and its name over nsd."""
    broker = start(
        "--listen=cafe=tcp:0:interface=127.0.0.1", *listen("nsd"), "--cafe-channels=0-3,9:orders"
    )
    with Cafe.subscriber(broker, b"\x09") as subscriber, Nsd.to(broker) as nsd:
        nsd.do("Open", "orders")
        nsd.do("Publish", "orders", message=message("one"))
        assert subscriber.receive_texts(1) == [b"one"]
    with Cafe(broker.port("cafe")) as refused_:
        refused_.send(handshake_sub(b"\x04"))
        assert refused_.receive_rest() == [refused(0x02)]


def test_quotas_apply_to_nsd(start: Start) -> None:
    broker = start(*listen("nsd"), "--nsd-max-identities=2", "--nsd-max-subscriptions=1")
    with Nsd.to(broker) as client:
        client.do("Open", "a")
        client.do("Open", "b")
        assert client.refused("Open", "c") == "LIMIT REACHED: identities"
        assert client.refused("Subscribe", "a", channel="b") == "LIMIT REACHED: subscriptions"
        client.do("Open", "a")
    broker.wait_line("refused: 1 on nsd: limit-reached")


def test_a_silent_connection_is_closed(start: Start) -> None:
    """With an idle timeout a connection that sends nothing gets DISCONNECT and is closed."""
    broker = start(*listen("cafe"), "--idle-timeout=1")
    with Cafe.subscriber(broker, b"\x01", b"quiet") as client:
        assert client.receive_rest() == [(0x04, b"")]
    broker.wait_line("refused: 1 on cafe: idle, last by 'quiet@")


def test_half_a_frame_does_not_extend_the_idle_timeout(start: Start) -> None:
    broker = start(*listen("cafe", "nsd"), "--idle-timeout=1")
    for port in (broker.port("cafe"), broker.port("nsd")):
        with Client(port) as client:
            client.send(b"\xfe\xca" if port == broker.port("cafe") else b"{")
            while client.sock.recv(100):
                pass


@pytest.mark.modes
def test_at_the_limit_of_open_files_operators_are_served(start: Start) -> None:
    broker = start(
        *listen("cafe"), f"--admin-port=tcp:0:interface={HOST}", before=("prlimit", "--nofile=64")
    )
    clients = [Client(broker.port("cafe")) for _ in range(100)]
    broker.wait_line(r"refused: 10 on cafe: file-descriptors")
    address = f"http://{HOST}:{broker.port('http')}"
    for path in ("/healthz", "/readyz", "/metrics"):
        with urllib.request.urlopen(address + path, timeout=TIMEOUT) as response:
            assert response.status == 200
    operators = [Client(broker.port("http")) for _ in range(20)]
    broker.wait_line("refused: 1 on http: file-descriptors")
    for client in (*clients, *operators):
        client.close()


@pytest.mark.modes
def test_at_the_limit_of_open_files_connections_are_refused_and_counted(start: Start) -> None:
    broker = start(*listen("cafe"), before=("prlimit", "--nofile=64"))
    clients = [Client(broker.port("cafe")) for _ in range(100)]
    broker.wait_line(r"refused: 10 on cafe: file-descriptors, last by '127.0.0.1:\d+'")
    for client in clients:
        client.close()

    def has_room() -> bool:
        try:
            return is_admitted(broker)
        except (EOFError, ConnectionError):
            return False

    until(has_room, "room for a connection")
    broker.stop()
    # Connections that were not accepted yet when the others left are admitted.
    assert 10 <= broker.totals()["refused"] < 100
    assert "EMFILE" not in broker.output
    assert broker.output.count("file-descriptors") == 2
