"""fast under a flood of forged tokens: valid clients continue, and memory does not grow."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from twisted.internet import threads
from twisted.internet.defer import Deferred

from pubsub.broker.credentials.verification_throttle import VERIFICATIONS
from pubsub.testing import LocalBroker
from tests.integration.broker import HOST, TIMEOUT
from tests.integration.fast_client import Fast, create, publish, subscribe
from tests.integration.reactor_tests import in_reactor

ATTACKERS = 20
ROUNDS, BATCH = 40, 50


def forgeries(attacker: int) -> Iterator[bytes]:
    """Yield requests with new forged tokens, a few at a time."""
    head = b"eyJhbGciOiJIUzI1NiJ9.eyJxdWV1ZV9rZXkiOiJrMSIsInBlcm1pc3Npb25zIjoiKiJ9."
    number = 0
    while True:
        signatures = [b"%021d%022d" % (attacker, number + n) for n in range(8)]
        yield b"".join(publish(head + signature, b"forged") for signature in signatures)
        number += 8


def attack(port: int, attacker: int, enough: threading.Event) -> int:
    """Send forgeries over one connection after another; return the number of connections."""
    connections = 0
    requests = forgeries(attacker)
    while not enough.is_set():
        with (
            contextlib.suppress(OSError),
            socket.create_connection((HOST, port), TIMEOUT) as sock,
        ):
            connections += 1
            # The first failures of a connection are not delayed; later ones are.
            for _ in range(1 + connections % 4):
                sock.sendall(next(requests))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65_536):
                pass
    return connections


def work(port: int, owner: bytes, reader: bytes) -> int:
    """Run a publisher and a subscriber for a fixed amount of work; return the messages."""
    with Fast(port) as publisher, Fast(port) as subscriber:
        publisher.send(create(owner))
        assert publisher.sync(owner) == []
        subscriber.send(subscribe(reader))
        assert subscriber.sync(reader) == []
        for number in range(ROUNDS):
            sent = [b"%d/%d" % (number, n) for n in range(BATCH)]
            publisher.send(publish(owner, *sent))
            assert subscriber.texts(BATCH) == sent
    return ROUNDS * BATCH


def under_attack(port: int, owner: bytes, reader: bytes) -> tuple[int, int]:
    """Return the numbers of messages and of hostile connections."""
    enough = threading.Event()
    with ThreadPoolExecutor(ATTACKERS) as pool:
        attacks = [pool.submit(attack, port, number, enough) for number in range(ATTACKERS)]
        try:
            done = work(port, owner, reader)
        finally:
            enough.set()
        return done, sum(attack.result(TIMEOUT) for attack in attacks)


@in_reactor
async def test_forged_tokens_do_not_stop_valid_clients(pubsub_broker: LocalBroker) -> None:
    owner = pubsub_broker.token().encode()
    reader = pubsub_broker.token("subscribe").encode()
    _, port = pubsub_broker.address("fast")
    broker = pubsub_broker.service.broker
    before = time.monotonic()
    deferred: Deferred[tuple[int, int]] = threads.deferToThread(under_attack, port, owner, reader)
    try:
        done, hostile = await deferred
    finally:
        elapsed = time.monotonic() - before
        await pubsub_broker.service.stopService()
    assert done == broker.counters.delivered == broker.counters.published
    assert hostile >= ATTACKERS
    assert broker.counters.refusals["fast", "bad-token"] > 0
    # Only the two valid tokens are cached, and verifications were throttled.
    assert len(broker.tokens) == 2
    assert broker.tokens.misses <= VERIFICATIONS * (elapsed + 1)
    assert not broker.memory.holders
