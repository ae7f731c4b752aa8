"""Clients of the library with a broker in memory and a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from pubsub.client.base_client import Client
from pubsub.client.client_options import read_options
from pubsub.client.client_tls import TlsOptions
from pubsub.client.runtime import Cancel, Observer, Runtime
from pubsub.client.twisted_runtime import TwistedRuntime
from tests.unit.streams import House

_Result = TypeVar("_Result")


class Work(Generic[_Result]):
    """A coroutine that was started."""

    def __init__(self, work: Coroutine[Any, Any, _Result]) -> None:
        self._outcome: list[_Result | Failure] = []
        Deferred.fromCoroutine(work).addBoth(self._outcome.append)

    @property
    def done(self) -> bool:
        return bool(self._outcome)

    def result(self) -> _Result:
        """Return the result, which must be there. Raises the error."""
        assert self._outcome, "it still waits"
        (outcome,) = self._outcome
        if isinstance(outcome, Failure):
            outcome.raiseException()
        return outcome


class MemoryStream:
    """The client's end of a connection. ``sent`` is everything that it has written."""

    def __init__(self, house: House, protocol: str, observer: Observer) -> None:
        self.far = house.connect(protocol)
        self.observer = observer
        self.sent = b""
        self.reading = True
        self.closed = self.lost = False
        self._out: list[bytes] = []

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent += data
        self._out.append(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self._out.clear()
        self.closed = True

    def set_reading(self, reading: bool) -> None:
        self.reading = reading

    def carry(self) -> bool:
        """Transfer the output of both sides; return False if there was none."""
        if self.lost:
            return False
        out, self._out = self._out, []
        for data in out:
            self.far.stream.feed(data)
        if self.closed:
            self.lost = True
            self.far.stream.lose(clean=True)
            self.observer.lost("closed")
            return True
        back = self.far.take() if self.reading else b""
        if back:
            self.observer.received(back)
        elif self.far.closed:
            self.snap("the broker closed the connection")
            return True
        return bool(out or back)

    def snap(self, why: str = "broken") -> None:
        """Break the connection."""
        if not self.lost:
            self.lost = True
            self.far.stream.lose()
            self.observer.lost(why)


class MemoryRuntime(Runtime):
    """Connects to the listeners of ``house`` by the names of their protocols, as hosts.

    ``streams`` are all connections; ``down`` if no more can be made.
    """

    def __init__(self, house: House, clock: Clock | None = None) -> None:
        self.house = house
        self.streams: list[MemoryStream] = []
        self.down = False
        self._shell = TwistedRuntime(clock or house.clock)

    def now(self) -> float:
        return self._shell.now()

    def call_later(self, seconds: float, function: Callable[[], None]) -> Cancel:
        return self._shell.call_later(seconds, function)

    def call_from_any_thread(self, function: Callable[[], None]) -> None:
        self.call_later(0, function)

    def waiter(self) -> Any:
        return self._shell.waiter()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._shell.spawn(work)

    def connect(self, host: str, port: int, tls: TlsOptions | None, observer: Observer) -> Cancel:
        def arrive() -> None:
            if self.down:
                observer.lost("connection refused")
                return
            stream = MemoryStream(self.house, host, observer)
            self.streams.append(stream)
            observer.made(stream)

        return self.call_later(0, arrive)

    def settle(self) -> None:
        """End ticks and transfer output until nothing changes."""
        moved = True
        while moved:
            # Longer than the pause after a handshake, and than a commit.
            self.house.clock.advance(0.05)
            self.house.pump(3)
            moved = sum(stream.carry() for stream in self.streams) > 0

    def advance(self, seconds: float) -> None:
        """Advance the clock in steps, and transfer output."""
        end = self.now() + seconds
        while self.now() < end:
            self.house.clock.advance(min(0.5, end - self.now()))
            self.settle()

    def client(self, protocol: str, **options: Any) -> Client:
        """Return a client."""
        return Client(self, read_options(f"{protocol}://{protocol}:1", **options))

    def begin(self, work: Coroutine[Any, Any, _Result]) -> Work[_Result]:
        """Start ``work``."""
        begun = Work(work)
        self.settle()
        return begun

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Return the result of ``work``, which must not need time to pass."""
        return self.begin(work).result()
