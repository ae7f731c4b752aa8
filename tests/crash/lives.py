"""Brokers that run one after another on one history, each killed at some moment under load."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.load import KINDS, Publisher, Record
from tests.crash.reader import Following, Reader
from tests.integration.broker import Broker, listen
from tests.unit.tokens import KEY
from tests.waiting import until

PROTOCOLS = ("cafe", "fast", "nsd", "rheos", "spot")
LONGEST = 0.4
# Losses are reported before the history can be used.
_STARTED = r"history: .*, epoch |pubsub: history: "


@dataclass(frozen=True)
class Result:
    """The outcome of a run."""

    lives: int
    published: int
    acknowledged: int
    stored: int


def check_same(earlier: Reader, now: Reader) -> None:
    """Check that messages that a reader has seen are stored, or reported as lost."""
    at = {offset: payload for payload, offset in now.offsets.items()}
    for payload, offset in earlier.offsets.items():
        if at.get(offset) != payload:
            assert offset not in at, f"{offset} was {payload!r} and is {at[offset]!r}"
            assert any(start <= offset < stop for start, stop in now.damaged), f"{offset} is gone"
    assert earlier.position == now.position


class Lives:
    """``seed`` determines the time of each kill, but not what the broker does at that time."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.path = directory / "history"
        self.record = Record()
        self.reader = Reader(self.path)
        self.environment: Mapping[str, str] = {}
        self._directory = directory
        self._secret = directory / "secret"
        self._secret.touch(mode=0o600)
        self._secret.write_bytes(KEY)
        self._random = random.Random(seed)

    def start(self, *options: str) -> Broker:
        """Start a broker on the history."""
        broker = Broker(
            [
                *listen(*PROTOCOLS),
                f"--store=log:{self.path}",
                "--durability=sync/*=sync",
                # Some lives read segments that others have compressed, and the other way round.
                f"--compression={self._random.choice(('off', 'zstd'))}",
                "--nsd-max-body=100000",
                "--udp",
                f"--secret-file={self._secret}",
                *options,
            ],
            self._directory,
            self.environment,
        )
        try:
            broker.wait_line(_STARTED)
        except BaseException:
            broker.discard()
            raise
        return broker

    def live(
        self,
        number: int,
        kinds: Sequence[type[Publisher]] = KINDS,
        meanwhile: Callable[[Broker], None] = lambda broker: None,
    ) -> None:
        """Start, load, kill; ``meanwhile`` is called under load."""
        broker = self.start()
        try:
            following = Following(self.reader)
            following.start()
            publishers = [
                kind(broker, f"{kind.__name__}{index}.{number}", self.record, self._fork())
                for index, kind in enumerate(kinds)
            ]
            for publisher in publishers:
                publisher.start()
            if number % 2:
                # However slow the machine is, half of the lives have had a load.
                self.await_load(broker)
            # The kill comes at a random moment, so there is no event to wait for.
            time.sleep(self._random.uniform(0.0, LONGEST))
            meanwhile(broker)
            broker.kill()
            for publisher in publishers:
                publisher.join()
            following.finish()
            broker.check()
        finally:
            broker.discard()

    def await_load(self, broker: Broker) -> None:
        """Wait until some further messages are acknowledged by ``broker``."""
        before = len(self.record.acknowledged)

        def is_loaded() -> bool:
            assert broker.alive, broker.output
            return len(self.record.acknowledged) > before + 20

        until(is_loaded, "acknowledgments")

    def _fork(self) -> random.Random:
        return random.Random(self._random.random())

    def check(self) -> None:
        """Check that every confirmed message is there once, and nothing that was not published.

        Messages that readers have seen may be lost with the power; no others have their offsets.
        """
        broker = self.start()
        fresh = Reader(self.path)
        try:
            self.reader.read(lambda: True)
            fresh.read(lambda: True)
        finally:
            broker.stop()
            broker.discard()
        assert not self.record.broken, self.record.broken
        stored = fresh.offsets.keys()
        self.record.check_order(fresh.offsets, bool(fresh.damaged))
        lost = self.record.acknowledged - stored
        assert not lost, f"acknowledged and not there: {sorted(lost)[:5]} of {len(lost)}"
        strange = stored - self.record.published
        assert not strange, f"there and not published: {sorted(strange)[:5]} of {len(strange)}"
        check_same(self.reader, fresh)

    def result(self, lives: int) -> Result:
        """Return the numbers so far."""
        return Result(
            lives,
            len(self.record.published),
            len(self.record.acknowledged),
            len(self.reader.offsets),
        )


def crash(
    directory: Path,
    loops: int,
    seed: int,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Kill ``loops`` brokers in turn; raises AssertionError at the first broken promise."""
    lives = Lives(directory, seed)
    for number in range(loops):
        lives.live(number)
        # Regularly, so that a defect is found near its cause; less often when the history is long,
        # as the check reads all of it.
        if (number + 1) % (10 if number < 100 else 50) == 0 or number == loops - 1:
            lives.check()
            on_result(lives.result(number + 1))
    return lives.result(loops)
