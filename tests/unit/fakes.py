"""Fakes around the domain: transports, connections, encodings, protocols.

They record calls and have no logic; the broker in these tests is the real one.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory

from twisted.internet.interfaces import IProtocolFactory
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from pubsub.broker.access_rules.access import AccessRules
from pubsub.broker.audit_log.audit import AuditLog
from pubsub.broker.credentials.issuer_key_refresh import Fetch
from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.broker.delivery.cursors import Cursors
from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.delivery.slow_policy import SlowPolicy
from pubsub.broker.figures.counters import Counters
from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.listeners.listener import Listener
from pubsub.broker.listeners.listener_settings import SETTINGS
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.publishing.publisher import Publisher
from pubsub.broker.routing.batch import Batch, Headers
from pubsub.broker.routing.encoders import make_encoder
from pubsub.broker.routing.router import Router
from pubsub.broker.service import BrokerService
from pubsub.broker.slices import Slices
from pubsub.broker.topic_space.topic_registry import TopicRegistry
from pubsub.broker.topic_space.topics import KeyChange, Topic
from pubsub.broker.wall_clock import WallClock
from pubsub.dissector.declaration import Declaration
from pubsub.interfaces import Encoding, IStore
from pubsub.kernel import Columns
from pubsub.plugin import IWireProtocol
from pubsub.settings import Setting, read_all
from pubsub.store.memory_store import MemoryStore

START = 1_700_000_000.0


def clock_at(seconds: float = START) -> Clock:
    """Return a clock at ``seconds``."""
    clock = Clock()
    clock.rightNow = seconds
    return clock


def drawing(*numbers: int) -> Callable[[int], int]:
    """Return a source of random bits: these numbers in turn, then 1000, 1001 and so on."""
    script = chain(numbers, count(1000))
    return lambda bits: next(script)


Recheck = Callable[[Topic, KeyChange | None], bool]


@dataclass
class Reader:
    """A ``Subscriber`` with these replies to a recheck and this reaction to an eviction."""

    label: str = "bob"
    recheck: Recheck = lambda topic, change: True
    evict: Callable[[str], None] = lambda reason: None
    receives: Callable[[Topic, Batch], bool] = lambda topic, batch: True


class Ruled(Reader):
    """A subscriber rechecked by the rules of ``listener``; ``revoked`` has the lost topics."""

    def __init__(self, listener: Listener) -> None:
        self.revoked: list[Topic] = []

        def recheck(topic: Topic, change: KeyChange | None) -> bool:
            if listener.may_continue(self.label, topic):
                return True
            self.revoked.append(topic)
            return False

        super().__init__(recheck=recheck)


@dataclass
class Owner:
    """The owner of a session, with this reaction to a takeover."""

    displaced: Callable[[], None] = lambda: None


class Transport:
    """A ``Consumer``. ``room`` counts the writes that it takes before it is full.

    Like a real transport it takes every write, and pauses the outbox when it is full.
    """

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.outbox: Outbox | None = None
        self.room: int | None = None

    @property
    def data(self) -> bytes:
        """All bytes written."""
        return b"".join(self.writes)

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        if self.room is not None:
            self.room -= 1
            if self.room <= 0:
                assert self.outbox is not None
                self.outbox.pause()

    def drain(self, room: int | None = None) -> None:
        """Send everything written; accept ``room`` more writes (None: any number)."""
        assert self.outbox is not None
        self.room = room
        self.outbox.resume()


class Held:
    """A publisher's connection, or any other ``Holdable``."""

    access: AccessRules | None = None

    def __init__(self) -> None:
        self.publisher: Publisher | None = None
        self.reasons: set[object] = set()
        self.releases = 0

    def hold(self, reason: object) -> None:
        self.reasons.add(reason)

    def release(self, reason: object) -> None:
        self.reasons.discard(reason)
        self.releases += 1


class Big:
    """A ``MemoryHolder``."""

    def __init__(self, held: int) -> None:
        self.held = held
        self.evicted: list[str] = []

    def evict(self, reason: str) -> None:
        self.evicted.append(reason)


class Guest:
    """A ``ConnectedClient`` of the broker."""

    is_listed = False

    accepted_by: object = None

    def __init__(self, broker: BrokerService, stubborn: bool = False) -> None:
        self.calls: list[str] = []
        self._broker = broker
        self._stubborn = stubborn
        self.mark = len(broker.clients) + 1
        broker.clients.add(self)

    def drain(self) -> None:
        self.calls.append("drain")
        if not self._stubborn:
            self._broker.clients.discard(self)

    def abort(self, reason: str) -> None:
        self.calls.append(f"abort: {reason}")
        self._broker.clients.discard(self)

    def sweep(self, now: float) -> None:
        self.calls.append(f"sweep {now}")

    def dismiss(self, reason: str) -> None:
        self.calls.append(f"dismiss: {reason}")


@dataclass(frozen=True)
class Lines:
    """An encoding of every message as ``tag``, payload and a line end."""

    tag: bytes = b""
    limit: int = 2**20
    batches: list[Batch] = field(default_factory=list, compare=False, repr=False)

    def encode(self, batch: Batch) -> bytes:
        self.batches.append(batch)
        return b"".join(self.tag + payload + b"\n" for payload in batch.payloads())


@implementer(IWireProtocol)
class Toy:
    """A protocol that has only settings."""

    client = dissect = contract_driver = None
    dissector: Declaration | None = None
    redacted: Sequence[bytes] = ()

    def __init__(self, name: str, port: int, settings: Sequence[Setting] = ()) -> None:
        self.name = name
        self.port = port
        self.summary = f"the protocol {name}"
        self.settings = settings

    def make_factory(self, listener: Listener) -> IProtocolFactory:
        """See IWireProtocol."""
        return Factory()


def batch_of(
    payloads: Iterable[bytes],
    topic: str = "t",
    headers: Sequence[Headers] | None = None,
    sequence: int = 0,
    offset: int = -1,
) -> Batch:
    """Return a batch with these payloads."""
    return Batch(
        topics=(topic,),
        columns=Columns.of(list(payloads)),
        timestamp=1_700_000_000_000_000,
        sequence=sequence,
        sender=b"alice",
        protocol="toy",
        headers=headers,
        offset=offset,
    )


def mixed_batch(
    sent: Iterable[tuple[str, bytes]], topics: tuple[str, ...], offset: int = -1, sequence: int = 0
) -> Batch:
    """A batch of these messages, each with the name of its topic, which is one of ``topics``."""
    messages = list(sent)
    indexes = [topics.index(topic) for topic, _ in messages]
    return Batch(
        topics=topics,
        columns=Columns.of([payload for _, payload in messages], indexes),
        timestamp=1_700_000_000_000_000,
        sequence=sequence,
        sender=b"alice",
        protocol="toy",
        offset=offset,
    )


def encoded(encoding: Encoding, batch: Batch) -> bytes:
    """The frames of a batch of one topic."""
    return make_encoder([encoding]).encode(batch)[0]


def scratch(case: SynchronousTestCase) -> Path:
    """Return an empty directory that is removed after the test."""
    directory = TemporaryDirectory()
    case.addCleanup(directory.cleanup)
    return Path(directory.name)


def open_files(path: Path) -> list[str]:
    """The files in a directory that this process has open."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    names = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sorted(name for name in names if name.startswith(str(path)))


def copy_still(directory: Path, to: Path) -> None:
    """Copy a directory at a moment at which no thread changes it, as a crash would leave it."""

    def state() -> list[tuple[str, int, int]]:
        found = [(one.name, one.stat()) for one in sorted(directory.iterdir())]
        return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]

    for _ in range(1000):
        try:
            before = state()
            shutil.copytree(directory, to)
            if state() == before:
                return
        except (FileNotFoundError, shutil.Error):
            # A file was removed meanwhile.
            pass
        shutil.rmtree(to, ignore_errors=True)
    raise AssertionError(f"{directory} changes all the time")


class Bench:
    """A router with its counters and memory, and outboxes that write to fake transports."""

    def __init__(self, memory: int = 0) -> None:
        self.clock = clock_at()
        self.counters = Counters()
        self.memory = MemoryBudget(memory)
        self.ticks = 0
        self.router = Router(
            self.counters,
            self.memory,
            self.clock.seconds,
            self._at_tick_end,
            Slices(self._at_tick_end),
        )
        self.store = MemoryStore(1000, 2**26)
        self.topics = TopicRegistry(1000, self.memory)
        self.cursors = Cursors(self.clock, self.store, self.topics, self.router)
        self.closed: list[str] = []

    def _at_tick_end(self, call: Callable[[], None]) -> None:
        self.ticks += 1
        self.clock.callLater(0, call)

    def turn(self) -> None:
        """End the reactor tick."""
        self.clock.advance(0)

    def outbox(
        self,
        policy: SlowPolicy | None = None,
        label: str = "bob",
        recheck: Recheck = lambda topic, change: True,
    ) -> Transport:
        """Return a transport with an outbox, which is shut on eviction."""
        transport = Transport()

        def close(reason: str) -> None:
            self.closed.append(reason)
            box.shut("disconnected")

        box = Outbox(
            self.cursors,
            transport,
            policy or SlowPolicy(),
            Reader(label, recheck, close),
            self.counters.traffic["toy"],
        )
        transport.outbox = box
        return transport


def recheck_all(router: Router, topics: Iterable[Topic]) -> tuple[int, int]:
    """Recheck every subscription to ``topics``; return how many stay and how many end."""
    results: Counter[bool] = Counter()
    for _ in router.recheck_all(tuple(topics), results):
        pass
    return results[True], results[False]


def make_broker(
    clock: Clock | None = None,
    limits: BrokerLimits | None = None,
    store: IStore | None = None,
    draw: Callable[[int], int] | None = None,
    ring: SecretRing | None = None,
    audit: AuditLog | None = None,
    events: bool = False,
    redacted: Sequence[bytes] = (),
    wall: WallClock | None = None,
    fetch_keys: Fetch | None = None,
) -> BrokerService:
    """Return a broker at ``START`` with a history of 1000 messages and deterministic ids.

    The wall clock is ``clock`` unless ``wall`` is given.
    """
    clock = clock_at() if clock is None else clock
    return BrokerService(
        clock,
        wall or WallClock(clock.seconds, clock.seconds),
        MemoryStore(1000, 2**20) if store is None else store,
        limits,
        draw or drawing(),
        ring,
        audit,
        events=events,
        redacted=redacted,
        fetch_keys=fetch_keys,
    )


def make_listener(broker: BrokerService, **settings: object) -> Listener:
    """Return a listener of the protocol ``toy``; settings by name, with ``_`` for ``-``.

    It admits anonymous clients, as those of tests are at other addresses than loopback.
    """
    given: dict[str, object] = {"allow-anonymous": "on"}
    given |= {name.replace("_", "-"): value for name, value in settings.items()}
    return broker.make_listener("toy", read_all(SETTINGS, given))
