"""The site of the test: a broker in memory, whose work in each tick is counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count
from types import FrameType
from typing import Any, Protocol

from twisted.internet.address import IPv4Address
from twisted.internet.base import DelayedCall
from twisted.internet.defer import maybeDeferred
from twisted.internet.interfaces import IPushProducer, ITCPTransport
from twisted.internet.task import Clock

from pubsub.broker.listeners.listener_settings import SETTINGS
from pubsub.http_api.server import SETTINGS as ADMIN_SETTINGS
from pubsub.http_api.server import HttpApiFactory
from pubsub.settings import read_all
from tests.bench.requests.site import Held
from tests.unit.fakes import START
from tests.unit.streams import House, Stream
from tests.unit.web import WebStream

_LISTEN: dict[str, dict[str, object]] = {
    "cafe": {"channels": "0-254"},
    "nsd": {"max-subscriptions": 20_000},
    "rheos": {},
    "spot": {},
    "fast": {},
}


class TickClock(Clock):
    """A clock that runs calls as a reactor does: those that calls add are left to the next tick.

    A heap as in a reactor has the calls, because a sorted list makes each of 100,000 calls slow.
    """

    def __init__(self) -> None:
        super().__init__()
        self.added = 0
        self._heap: list[tuple[float, int, DelayedCall]] = []
        self._numbers = count()

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kw: object
    ) -> DelayedCall:
        """See IReactorTime."""
        time = self.seconds() + delay
        call = DelayedCall(time, callable, args, kw, lambda call: None, self._push, self.seconds)
        self.added += 1
        self._push(call)
        return call

    def _push(self, call: DelayedCall) -> None:
        heappush(self._heap, (call.getTime(), next(self._numbers), call))

    def tick(self) -> bool:
        """Run the calls that are due; return whether there were any."""
        due = list(self._take_due())
        for call in due:
            if call.active():
                call.called = 1
                call.func(*call.args, **call.kw)
        return bool(due)

    def _take_due(self) -> Iterator[DelayedCall]:
        while self._heap and self._heap[0][0] <= self.seconds():
            call = heappop(self._heap)[2]
            if call.active() and call.getTime() > self.seconds():
                self._push(call)
            elif call.active():
                yield call


class TickCounter(Protocol):
    """Measures the work of a tick."""

    def run(self, call: Callable[[], object]) -> float:
        """Return the measure of ``call``."""


class Counter:
    """Counts the lines of Python that run, and the functions of C that they call."""

    def __init__(self) -> None:
        self.count = 0

    def run(self, call: Callable[[], object]) -> int:
        """Return the count of ``call``."""
        self.count = 0
        before = sys.gettrace(), sys.getprofile()
        sys.settrace(self._trace)
        sys.setprofile(self._profile)
        try:
            call()
        finally:
            sys.settrace(before[0])
            sys.setprofile(before[1])
        return self.count

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        self.count += 1
        return self._trace

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "c_call":
            self.count += 1


class MemoryPeer:
    """A connection through a ``Stream``."""

    def __init__(self, site: CountedSite, stream: Stream) -> None:
        self._site = site
        self._stream = stream

    def send(self, data: bytes) -> None:
        self._site.do(lambda: self._stream.feed(data))

    def wait(self) -> None:
        self._site.settle()

    def take(self) -> bytes:
        data = bytes(self._stream.received)
        self._stream.received.clear()
        return data

    def lose(self) -> None:
        self._site.do(self._stream.lose)


class CountedSite:
    """A broker in memory with the secret in ``keys`` (see the configuration's ``[keys]``).

    All listeners also have the settings ``every``; ``make_counter`` makes the meter of a tick.
    """

    def __init__(
        self,
        keys: dict[str, object],
        every: Mapping[str, object] | None = None,
        make_counter: Callable[[], TickCounter] = Counter,
    ) -> None:
        every = every or {}
        listen = {name: {**settings, **every} for name, settings in _LISTEN.items()}
        self._make_counter = make_counter
        self._clock = TickClock()
        self._clock.rightNow = START
        top = {"max-topics": 10**6, "max-memory": "4G", "keys": keys}
        self._house = House(listen, clock=self._clock, top=top)
        broker = self._house.broker
        settings = {**read_all(SETTINGS, every), **read_all(ADMIN_SETTINGS, every)}
        listener = broker.make_listener("admin", settings)
        broker.add_listener(listener)
        self._admin = HttpApiFactory(listener, maybeDeferred)
        self._house.start()
        self._port = 30_000
        self._counter: TickCounter | None = None
        self._longest = 0.0

    def connect(self, wire: str) -> MemoryPeer:
        self._port += 1
        address = IPv4Address("TCP", "127.0.0.1", self._port)
        if wire == "http":
            stream: Stream = WebStream(self._clock, address, (ITCPTransport, IPushProducer))
            protocol: Any = self._admin.buildProtocol(address)
        else:
            stream = Stream(self._clock, address)
            protocol = self._house.factories[wire].buildProtocol(address)
        stream.protocol = protocol
        self.do(lambda: protocol.makeConnection(stream))
        return MemoryPeer(self, stream)

    def do(self, call: Callable[[], object]) -> None:
        """Do the work of one tick of the reactor."""
        if self._counter is None:
            call()
        else:
            self._longest = max(self._longest, self._counter.run(call))

    def settle(self) -> None:
        busy = True
        while busy:
            before = self._clock.added
            found: list[bool] = []
            self.do(lambda found=found: found.append(self._clock.tick()))  # type: ignore[misc]
            busy = found[0] or self._clock.added > before

    def pass_time(self, seconds: float) -> None:
        """Let time pass; calls that are due then run in the next ticks."""
        self._clock.rightNow += seconds
        self.settle()

    def longest(self, action: Callable[[], object]) -> Held:
        self._counter, self._longest = self._make_counter(), 0.0
        action()
        self.settle()
        self._counter = None
        return Held(self._longest)
