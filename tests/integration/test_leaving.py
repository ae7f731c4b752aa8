"""How connections leave, over every kind of stream, with clients that read or do not."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from pathlib import Path

import pytest

from tests.integration.broker import HOST, TIMEOUT, Start, listen
from tests.integration.certificates import Stream, half_close
from tests.integration.clients import (
    ERROR,
    HANDSHAKE_ACK,
    PING,
    PONG,
    Cafe,
    Nsd,
    frame,
    handshake_pub,
    handshake_sub,
    message,
    publish,
    split,
)
from tests.integration.streams import (
    KINDS,
    PROXY_HEADER,
    Served,
    open_sockets,
    press,
    read_all,
    serve,
    wait_hang_up,
)
from tests.waiting import until

MIB = 1024 * 1024
# So long that only a limit of its own can end a connection.
PATIENT = ("--slow-seconds=600", "--stop-timeout=600")
UNSTORED = ("--slow-consumer=disconnect", "--durability=*=none")


def shake(sock: Stream, handshake: bytes) -> None:
    """Send a handshake and take its acknowledgment."""
    sock.sendall(handshake)
    received = b""
    while len(received) < 16:
        received += sock.recv(16 - len(received))
    assert split(received)[0].opcode == HANDSHAKE_ACK


def fill(stack: contextlib.ExitStack, served: Served, count: int) -> list[Stream]:
    """Return subscribers that do not read, with megabytes waiting for each of them."""
    subscribers = [stack.enter_context(served.connect()) for _ in range(count)]
    for subscriber in subscribers:
        shake(subscriber, handshake_sub())
    with served.connect() as publisher:
        shake(publisher, handshake_pub())
        for _ in range(6):
            publisher.sendall(publish(1, bytes(MIB - 9)))
        # The first PONG follows everything before it, the second one also the tick in which that is
        # written to the subscribers.
        for _ in range(2):
            publisher.sendall(frame(PING))
            assert split(publisher.recv(7)) == [(PONG, b"")]
    return subscribers


@pytest.mark.modes
def test_subscribers_that_half_close_and_do_not_read_are_gone_in_time(
    start: Start, tmp_path: Path
) -> None:
    broker, streams = serve(start, "cafe", tmp_path, KINDS, *UNSTORED, "--slow-seconds=4")
    before = open_sockets(broker)
    with contextlib.ExitStack() as stack:
        for served in streams:
            # At once, as they have been behind for some time.
            for subscriber in fill(stack, served, 5):
                half_close(subscriber)
        # Where the kernel has all that was written, it still offers that to the client.
        until(lambda: open_sockets(broker) == before, "the sockets are closed")


@pytest.mark.modes
def test_clients_that_do_not_take_their_last_bytes_are_gone_in_time(
    start: Start, tmp_path: Path
) -> None:
    broker, streams = serve(start, "nsd", tmp_path, KINDS, "--slow-seconds=3", "--stop-timeout=600")
    request = b'{"_class":"Nonsense","text":"%s"}\n' % (b"x" * 150)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(served.connect()) for served in streams]
        for client in clients:
            client.settimeout(1)
            # Refusals that it does not read, until the broker reads no more.
            press(client.sendall, request * 400)
        broker.signal()
        for client in clients:
            wait_hang_up(client)
        assert broker.wait() in (0, -signal.SIGTERM)


@pytest.mark.modes
def test_clients_that_read_get_the_error_and_need_not_close(start: Start, tmp_path: Path) -> None:
    broker, streams = serve(start, "cafe", tmp_path, KINDS, *PATIENT)
    before = open_sockets(broker)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(served.connect()) for served in streams]
        for client in clients:
            shake(client, handshake_sub())
            client.sendall(b"garbage" + bytes(100))
            assert split(read_all(client))[0].opcode == ERROR
        until(lambda: open_sockets(broker) == before, "the sockets are closed", 20)


def test_a_stop_does_not_wait_for_those_that_have_left(start: Start, tmp_path: Path) -> None:
    broker, streams = serve(start, "cafe", tmp_path, KINDS, *UNSTORED, *PATIENT)
    with contextlib.ExitStack() as stack:
        for served in streams:
            for subscriber in fill(stack, served, 3):
                half_close(subscriber)
        broker.signal()
        assert broker.wait(TIMEOUT / 2) in (0, -signal.SIGTERM)


def test_a_stop_does_not_wait_for_those_that_neither_read_nor_close(
    start: Start, tmp_path: Path
) -> None:
    broker, streams = serve(start, "cafe", tmp_path, KINDS, *PATIENT)
    with contextlib.ExitStack() as stack:
        for served in streams:
            shake(stack.enter_context(served.connect()), handshake_sub())
            half = stack.enter_context(served.connect())
            shake(half, handshake_pub())
            half.sendall(publish(1, bytes(1000))[:-1])
        broker.signal()
        assert broker.wait(TIMEOUT / 2) in (0, -signal.SIGTERM)


@pytest.mark.modes
def test_nsd_answers_clients_that_have_closed_their_half(start: Start, tmp_path: Path) -> None:
    """The answer comes from the file, while the end of the input has been seen already."""
    options = f"--store=sqlite:{tmp_path / 'history.db'}", "--nsd-max-body=4000"
    bodies = [f"{number:05}" + "x" * 3900 for number in range(500)]
    broker = start(*listen("nsd"), *options)
    with Nsd.to(broker) as client:
        client.do("Open", "ada")
        for body in bodies:
            client.do("Publish", "ada", message=message(body))
    broker.stop()
    # The newest messages are not in memory after a start.
    _, streams = serve(start, "nsd", tmp_path, KINDS, *options)
    get = b'{"_class":"GetRequest","identity":"ada","after":0}\n'
    for served in streams * 3:
        with served.connect() as sock:
            sock.sendall(get + get)
            half_close(sock)
            answers = read_all(sock).splitlines()
            assert len(answers) == 2, served.kind
            for answer in answers:
                assert [m["body"] for m in json.loads(answer)["messages"]] == bodies


@pytest.mark.modes
def test_http_answers_clients_that_have_closed_their_half(start: Start) -> None:
    broker = start(*listen("cafe"), f"--admin-port=tcp:0:interface={HOST}")
    with socket.create_connection((HOST, broker.port("http"))) as client:
        client.sendall(b"GET /v1/bounds HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        head, _, body = read_all(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert json.loads(body)["next"] == 0


def test_frames_that_do_not_arrive_are_given_up(start: Start, tmp_path: Path) -> None:
    broker, streams = serve(start, "cafe", tmp_path, KINDS, "--frame-seconds=1")
    before = open_sockets(broker)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(served.connect()) for served in streams]
        for client in clients:
            shake(client, handshake_pub())
            client.sendall(publish(1, bytes(1000))[:-1])
        for client in clients:
            assert split(read_all(client)) == [(ERROR, b"\x07")]
        broker.wait_line("refused: 1 on cafe: frame-timeout")
        until(lambda: open_sockets(broker) == before, "the sockets are closed")


def test_handshakes_that_do_not_come_are_given_up(start: Start, tmp_path: Path) -> None:
    broker, streams = serve(start, "cafe", tmp_path, KINDS, "--handshake-seconds=3")
    before = open_sockets(broker)
    with contextlib.ExitStack() as stack:
        for client in [stack.enter_context(served.connect()) for served in streams]:
            assert split(read_all(client)) == [(ERROR, b"\x01")]
        broker.wait_line("refused: 1 on cafe: handshake-timeout")
        until(lambda: open_sockets(broker) == before, "the sockets are closed")


def test_transports_that_do_not_get_ready_are_given_up(start: Start, tmp_path: Path) -> None:
    """The handshake of TLS, and the header of a proxy, for a protocol without a handshake."""
    broker, streams = serve(
        start, "nsd", tmp_path, ("tls", "proxy", "proxy+tls"), "--handshake-seconds=3", *PATIENT
    )
    before = open_sockets(broker)
    beginnings = {
        "proxy": PROXY_HEADER[:20], "tls": b"\x16\x03\x01", "proxy+tls": PROXY_HEADER + b"\x16",
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        ready = [stack.enter_context(served.connect()) for served in streams]
        unready = [stack.enter_context(served.raw()) for served in (*streams, *streams)]
        for served, raw in zip(streams, unready, strict=False):
            raw.sendall(beginnings[served.kind])
        broker.wait_line("refused: 1 on nsd: handshake-timeout")
        until(lambda: open_sockets(broker) == before + len(ready), "the sockets are closed")
        for client in ready:
            client.sendall(b'{"_class":"OpenRequest","identity":"ada"}\n')
            assert client.recv(100) == b'{"_class":"SuccessResponse"}\n'


def test_half_sent_frames_do_not_keep_others_out(start: Start) -> None:
    broker = start(
        # Time enough to fill the memory before the first frame is given up.
        *listen("cafe"), "--history=1000,8M", "--max-memory=20M", "--frame-seconds=3",
        "--memory-seconds=600",
    )  # fmt: skip
    partial = publish(1, bytes(200_000))[:-1]

    def admitted() -> Cafe | None:
        client = stack.enter_context(Cafe(broker.port("cafe")))
        with contextlib.suppress(EOFError, ConnectionError):
            client.send(handshake_pub())
            if client.receive().opcode == HANDSHAKE_ACK:
                return client
        return None

    with contextlib.ExitStack() as stack:
        while client := admitted():
            client.send(partial)
        until(admitted, "a new client is admitted")
        broker.wait_line(": frame-timeout, last by ")


def test_udp_clients_do_not_hold_up_a_stop(start: Start) -> None:
    broker = start(*listen("cafe"), "--udp", *PATIENT)
    address = HOST, broker.port("cafe", "udp")
    with socket.socket(type=socket.SOCK_DGRAM) as reading, contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        for sock in (reading, silent):
            sock.settimeout(TIMEOUT)
            sock.sendto(handshake_sub(), address)
            assert split(sock.recv(100))[0].opcode == HANDSHAKE_ACK
        reading.sendto(publish(1, b"half")[:-1], address)
        assert split(reading.recv(100)) == [(ERROR, b"\x07")]
        broker.signal()
        assert broker.wait(TIMEOUT / 2) in (0, -signal.SIGTERM)
        assert split(silent.recv(100)) == [(0x04, b"")]


def test_keepalive_is_on(start: Start) -> None:
    """Of accepted sockets, as /proc shows their timers."""
    broker = start(*listen("nsd"))
    with Nsd.to(broker) as client:
        client.do("Open", "ada")
        ends = [f":{end[1]:04X}" for end in (client.sock.getpeername(), client.sock.getsockname())]
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        # Both ports, as another connection may have one of them.
        (timer,) = [row[5] for row in rows if [row[1][-5:], row[2][-5:]] == ends]
        # 2 is the keepalive timer.
        assert timer.startswith("02:")
