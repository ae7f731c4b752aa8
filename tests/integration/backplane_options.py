"""Options of brokers that share a backplane."""

from __future__ import annotations

import time
from contextlib import suppress

from tests.integration.broker import TIMEOUT
from tests.integration.clients import Cafe, publish


def shared(publisher: Cafe, subscriber: Cafe) -> None:
    """Wait until a message of ``publisher`` reaches ``subscriber``, at another broker."""
    subscriber.sock.settimeout(0.2)
    deadline = time.monotonic() + TIMEOUT
    for number in range(10_000):
        assert time.monotonic() < deadline
        publisher.send(publish(1, b"probe %d" % number))
        with suppress(TimeoutError):
            while (seen := subscriber.receive_texts(1)[0]) != b"probe %d" % number:
                assert seen.startswith(b"probe"), seen
            break
    subscriber.sock.settimeout(TIMEOUT)
