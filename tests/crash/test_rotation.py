"""Queue keys that are rotated at the moment at which the broker is killed."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from tests.integration.broker import Broker, Start, listen
from tests.integration.fast_client import (
    KEY_UPDATE,
    NEWS,
    Fast,
    Packet,
    create,
    publish,
    rotate,
    subscribe,
)
from tests.unit.tokens import KEY, token

LIVES = max(int(os.environ.get("PUBSUB_CRASHES", "30")) // 3, 1)
# Seconds from a rotation until the kill, at most: about as long as it takes to write the key.
LATEST = 0.03
WRONG_KEY = 2


class Keys:
    """The keys of the topic, and a broker that knows the last one that was in use."""

    def __init__(self, start: Start, directory: Path) -> None:
        self._start = start
        secret = directory / "secret"
        secret.touch(mode=0o600)
        secret.write_bytes(KEY)
        self._options = (
            *listen("fast"),
            f"--store=log:{directory / 'history'}",
            f"--secret-file={secret}",
        )
        self.number = 0

    def start(self) -> Broker:
        return self._start(*self._options)

    def create(self) -> Broker:
        """Create the topic, and rotate its key: then both are on disk."""
        broker = self.start()
        raw = self.token(0)
        with Fast.to(broker, create(raw), subscribe(raw), rotate(raw, b"k1")) as client:
            assert client.receive() == Packet(KEY_UPDATE, NEWS, b"k1")
        self.number = 1
        return broker

    def token(self, number: int) -> bytes:
        return token({"queue_key": f"k{number}", "permissions": "*"})

    def knows(self, client: Fast, number: int) -> bool:
        """Whether the broker accepts this key."""
        raw = self.token(number)
        client.send(publish(raw, b"x"))
        return client.sync(raw) == []

    @contextlib.contextmanager
    def rotating(self, broker: Broker) -> Iterator[Fast]:
        """Send the request that sets the next key; yield a subscriber, which is to be told."""
        now = self.token(self.number)
        with Fast.to(broker, subscribe(now)) as reader, Fast(broker.port("fast")) as owner:
            assert reader.sync(now) == []
            owner.send(rotate(now, b"k%d" % (self.number + 1)))
            yield reader

    def check(self, broker: Broker, *possible: int) -> None:
        """The broker accepts exactly one of the keys that are ``possible``."""
        with Fast(broker.port("fast")) as client:
            known = [number for number in range(self.number + 2) if self.knows(client, number)]
        assert len(known) == 1, known
        assert known[0] in possible, (known, possible)
        self.number = known[0]


def is_told(reader: Fast) -> bool:
    """Whether the subscriber gets the new key before its connection ends."""
    with contextlib.suppress(EOFError, ConnectionError):
        return reader.receive().kind == KEY_UPDATE
    return False


def test_a_key_that_a_subscriber_has_got_is_known_after_a_kill(
    start: Start, tmp_path: Path
) -> None:
    keys = Keys(start, tmp_path)
    broker = keys.create()
    for _ in range(LIVES):
        with keys.rotating(broker) as reader:
            assert reader.receive().kind == KEY_UPDATE
            broker.kill()
        broker = keys.start()
        keys.check(broker, keys.number + 1)


def test_a_kill_at_any_moment_of_a_rotation(start: Start, tmp_path: Path) -> None:
    keys, draw = Keys(start, tmp_path), random.Random(1)
    broker = keys.create()
    for _ in range(LIVES):
        with keys.rotating(broker) as reader:
            time.sleep(draw.random() * LATEST)
            broker.kill()
            told = is_told(reader)
        broker = keys.start()
        keys.check(broker, *[keys.number] * (not told), keys.number + 1)


def test_a_broker_that_stops_tells_the_key_that_is_being_written(
    start: Start, tmp_path: Path
) -> None:
    keys, draw = Keys(start, tmp_path), random.Random(1)
    broker = keys.create()
    for _ in range(LIVES):
        with keys.rotating(broker) as reader:
            time.sleep(draw.random() * LATEST)
            broker.signal()
            told = is_told(reader)
        broker.wait()
        broker = keys.start()
        # It may have stopped before it read the request.
        keys.check(broker, keys.number + told)


def test_one_of_the_rotations_at_the_same_time_takes_effect(start: Start, tmp_path: Path) -> None:
    keys = Keys(start, tmp_path)
    broker = keys.create()
    now, numbers = keys.token(1), range(2, 7)
    with Fast.to(broker, subscribe(now)) as reader, contextlib.ExitStack() as stack:
        assert reader.sync(now) == []
        owners = [stack.enter_context(Fast(broker.port("fast"))) for _ in numbers]
        for number, owner in zip(numbers, owners, strict=True):
            owner.send(rotate(now, b"k%d" % number))
        refused = [[(p.offending, p.code) for p in owner.sync(now)] for owner in owners]
        (update,) = reader.sync(now)
        assert sorted(refused) == [[], *[[(0x07, WRONG_KEY)]] * 4]
        first = numbers[refused.index([])]
        assert update == Packet(KEY_UPDATE, NEWS, b"k%d" % first)
        broker.kill()
    keys.number = max(numbers)
    keys.check(keys.start(), first)
