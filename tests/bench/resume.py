"""``python -m tests.bench.resume``: the rate at which a resumed cafe subscriber catches up.

The benchmark interrupts a session, publishes and commits messages, and resumes the session. It
measures the time from the handshake to the last message. Most messages come from the file, as only
the newest are in memory. With ``--lines``, a subscriber over HTTP reads them as lines of JSON.
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.broker import HOST, Broker, port_of, twistd_broker
from tests.bench.wires import WIRES
from tests.bench.wires.rheos import ACK_SIZE, CREATE, PUBLISH, request

_HEADER = struct.Struct("<HBI")
_HANDSHAKE_PUB, _HANDSHAKE_SUB, _PUBLISH, _PING = 0x01, 0x02, 0x10, 0x20
_CHANNEL, _TOPIC = 1, "cafe/1"
# MESSAGE: a header, the channel, a timestamp.
_MESSAGE_BYTES = _HEADER.size + 9
_READ = 1024**2
# Each message of JSON has this once.
_ID = b'"message_id"'
_BATCH = 1000


def _frame(opcode: int, payload: bytes = b"") -> bytes:
    return _HEADER.pack(0xCAFE, opcode, len(payload)) + payload


def _shake(broker: Broker, handshake: bytes) -> tuple[socket.socket, int]:
    """Return a connection with a session, and the id of the session."""
    sock = socket.create_connection(broker.address)
    sock.sendall(handshake)
    answer = sock.recv(_HEADER.size + 9, socket.MSG_WAITALL)
    status, session = struct.unpack_from("<BQ", answer, _HEADER.size)
    if status:
        raise SystemExit(f"the handshake was refused: {status}")
    return sock, session


def _subscribe(broker: Broker, client: bytes) -> tuple[socket.socket, int]:
    payload = bytes([1, _CHANNEL, len(client)]) + client
    return _shake(broker, _frame(_HANDSHAKE_SUB, payload))


def _publish(broker: Broker, count: int, size: int) -> None:
    sock, _ = _shake(broker, _frame(_HANDSHAKE_PUB, bytes([_CHANNEL, 0])))
    batch = _frame(_PUBLISH, bytes([_CHANNEL]) + bytes(size)) * _BATCH
    with sock:
        for _ in range(count // _BATCH):
            sock.sendall(batch)
        sock.sendall(_frame(_PING))
        # The broker replies after it has handled the messages before.
        sock.recv(_HEADER.size, socket.MSG_WAITALL)


def _publish_as(path: str, senders: int, count: int, size: int) -> None:
    """Publish as many ``senders`` in turn, over one connection of rheos."""
    clients = [b"device-" + number.to_bytes(9, "big") for number in range(senders)]
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(request(CREATE, clients[0], _TOPIC))
        batch = b"".join(
            request(PUBLISH, clients[number % senders], _TOPIC, bytes(size))
            for number in range(_BATCH)
        )
        left = ACK_SIZE
        for _ in range(count // _BATCH):
            sock.sendall(batch)
            left += _BATCH * ACK_SIZE
            while left:
                left -= len(sock.recv(left))


def _receive(sock: socket.socket, nbytes: int) -> None:
    buffer = bytearray(_READ)
    while nbytes:
        got = sock.recv_into(buffer, min(nbytes, _READ))
        if not got:
            raise SystemExit("the broker closed the connection")
        nbytes -= got


def _follow(broker: Broker, count: int) -> None:
    request = (
        f"GET /v1/topics/{_TOPIC.replace('/', '%2F')}/messages?follow=1&start=earliest HTTP/1.1\r\n"
        "Host: localhost\r\n\r\n"
    )
    with socket.create_connection((HOST, port_of(broker, "http"))) as sock:
        sock.sendall(request.encode())
        last = b""
        while count > 0:
            data = sock.recv(_READ)
            if not data:
                raise SystemExit("the broker closed the connection")
            # Of a name that is divided between two reads, no part is counted twice.
            count -= (last[1 - len(_ID) :] + data).count(_ID)
            last = data


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.resume", description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument(
        "--senders",
        type=int,
        default=1,
        help="of which each sends one message in turn (default: 1, all of them)",
    )
    parser.add_argument("--lines", action="store_true", help="read them over HTTP")
    options = parser.parse_args()
    count = options.messages // _BATCH * _BATCH
    os.sched_setaffinity(0, {1})
    twistd = Path(sys.executable).with_name("twistd")
    with tempfile.TemporaryDirectory(prefix="bench-resume-") as directory:
        store = [
            f"--store=log:{directory}/history",
            f"--listen=rheos=unix:{directory}/rheos",
            f"--admin-port=tcp:0:interface={HOST}",
        ]
        with twistd_broker(twistd, WIRES["cafe"], store, 0) as broker:
            sock, session = _subscribe(broker, b"reader")
            # After a connection reset the session can be resumed.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            if options.senders > 1:
                _publish_as(f"{directory}/rheos", options.senders, count, options.size)
            else:
                _publish(broker, count, options.size)
            used, began = broker.cpu_seconds(), time.perf_counter()
            if options.lines:
                _follow(broker, count)
            else:
                sock, _ = _subscribe(broker, b"reader;resume=%016x" % session)
                with sock:
                    _receive(sock, count * (_MESSAGE_BYTES + options.size))
            took, used = time.perf_counter() - began, broker.cpu_seconds() - used
    print(
        f"{count} messages of {options.size} B, senders: {options.senders}, {took:.2f} s: "
        f"{count / took / 1e6:.2f} million/s, {count / used / 1e6:.2f} million a broker CPU second"
    )


if __name__ == "__main__":
    main()
