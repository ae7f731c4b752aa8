"""The closing of a stream: carries out the steps of its life cycle on its transport.

The same for all protocols and HTTP, and for TCP, TLS, UNIX sockets and streams behind a proxy. One
timer is active from the first step until the transport is gone. It ticks once a second, as not
every transport reports when the kernel has taken everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from twisted.internet.interfaces import ISSLTransport
from twisted.protocols.policies import ProtocolWrapper

from pubsub.wire.life_cycle import Action, Event, LifeCycle, State, Wait
from pubsub.wire.unsent_bytes import TransportCharge, bottom_of, unsent_bytes, untaken_bytes

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, ITCPTransport

    from pubsub.broker.listeners.listener import Listener
    from pubsub.wire.direct_transport import StreamTransport

LINGER = 2.0
"""Seconds that a client has to close once the kernel has the last bytes.

If the stream were closed with unread input, the kernel would send a reset, which can overtake the
last bytes.
"""
_TICK = 1.0
# The events after which the client would be sent the last bytes.
_CLOSING = (Event.CLOSE, Event.DRAIN)


class Leaver(Protocol):
    """A connection that is leaving, as its departure uses it."""

    def discard_input(self) -> None:
        """Handle no further input."""

    def owes_answers(self) -> bool:
        """Return whether something has to be sent before the end."""

    def send_last(self, data: bytes) -> None:
        """Send the last bytes, behind all others."""

    def end(self) -> None:
        """End the session and release its memory; nothing more is sent. Called once."""

    def evict(self, reason: str) -> None:
        """See ``MemoryHolder``."""

    def discarded(self, nbytes: int) -> None:
        """The client has not taken the last ``nbytes`` bytes that were written, and will not."""

    def timed_out(self, seconds: float) -> None:
        """The client has not taken the sent bytes for ``seconds``; it is disconnected."""


class Departure:
    """The end of one stream, from the first event that makes it leave."""

    __slots__ = (
        "_charge",
        "_client_seconds",
        "_clock",
        "_due",
        "_ended",
        "_leaver",
        "_life",
        "_stream",
        "_timer",
        "last",
        "undrained",
    )

    def __init__(self, leaver: Leaver, stream: StreamTransport, listener: Listener) -> None:
        self._leaver = leaver
        self._stream = stream
        self._clock = listener.clock
        self._client_seconds = max(listener.slow.seconds, LINGER)
        self._charge = TransportCharge(leaver.evict, listener.memory)
        self._life = LifeCycle()
        self._timer: IDelayedCall | None = None
        self._due = 0.0
        self._ended = False
        self.last: Callable[[], bytes] | None = None
        """Returns the last bytes to send, if there are any."""
        self.undrained = False
        """True while the subscriber's outbox has to be sent first."""

    @property
    def state(self) -> State:
        """The state of the connection."""
        return self._life.state

    def on(self, event: Event) -> None:
        """Take ``event`` and carry out the step."""
        if event in _CLOSING and _awaits_tls(self._stream):
            # The client cannot be told anything. To wait for it would keep its socket and the
            # memory of its TLS, and a client that is refused is counted for neither.
            event = Event.ABORT
        step = self._life.on(event)
        if step is None:
            return
        if step.wait is not None:
            self._wait(step.wait)
        for action in step.actions:
            if self._life.state is step.state:
                # Otherwise an action before this one has caused another event.
                _ACTIONS[action](self)
        self._look()

    def settle(self) -> None:
        """Pending output has been sent: continue if it was the last."""
        if not (self.undrained or self._leaver.owes_answers()):
            self.on(Event.ANSWERED)

    def outbox_drained(self) -> None:
        """The subscriber's outbox has been sent."""
        self.undrained = False
        self.settle()

    def _look(self) -> None:
        """After a step: whether the condition for the next one is met already."""
        if self._life.state is State.ANSWERING:
            self.settle()
        else:
            self._measure()

    # Actions

    def _discard_input(self) -> None:
        self._leaver.discard_input()

    def _send_last(self) -> None:
        data = b"" if self.last is None else self.last()
        if data:
            self._leaver.send_last(data)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._leaver.end()

    def _finish(self) -> None:
        """Close after the written bytes; input is read and discarded until then."""
        stream = self._stream
        stream.unregisterProducer()
        if not self._life.input_ended:
            stream.resumeProducing()
        if ISSLTransport.providedBy(stream):
            # TLS has no half-closed state; it ends with an exchange of its own.
            stream.loseConnection()
        else:
            cast("ITCPTransport", stream).loseWriteConnection()

    def _close(self) -> None:
        # Not by way of TLS, which would wait for the client.
        bottom_of(self._stream).loseConnection()

    def _abort(self) -> None:
        self._leaver.discarded(untaken_bytes(self._stream))
        self._stream.abortConnection()

    def _release(self) -> None:
        # The client has left; after an abort, this has been reported.
        self._leaver.discarded(unsent_bytes(self._stream))
        self._charge.set(0)
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()

    # Time

    def _wait(self, wait: Wait) -> None:
        seconds = LINGER if wait is Wait.LINGER else self._client_seconds
        self._due = self._clock.seconds() + seconds
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None or not self._timer.active():
            # Every deadline is further away than the next tick.
            left = max(self._due - self._clock.seconds(), 0.0)
            self._timer = self._clock.callLater(min(left, _TICK), self._tick)

    def _tick(self) -> None:
        if self._clock.seconds() < self._due:
            self._set_timer()
            self._measure()
            return
        if self._life.state in (State.ANSWERING, State.FLUSHING):
            self._leaver.timed_out(self._client_seconds)
        self.on(Event.DEADLINE)

    def _measure(self) -> None:
        """Charge the bytes that the transport still holds; report when there are none."""
        if self._life.state is State.FLUSHING:
            nbytes = unsent_bytes(self._stream)
            self._charge.set(nbytes)
            if not nbytes:
                self.on(Event.DRAINED)


def _awaits_tls(transport: object) -> bool:
    """Return whether ``transport`` is over TLS, with a handshake that is not done."""
    while isinstance(transport, ProtocolWrapper):
        if not getattr(transport, "_handshakeDone", True):
            return True
        transport = transport.transport
    return False


_ACTIONS: dict[Action, Callable[[Departure], None]] = {
    Action.DISCARD_INPUT: Departure._discard_input,
    Action.SEND_LAST: Departure._send_last,
    Action.END: Departure._end,
    Action.FINISH: Departure._finish,
    Action.CLOSE: Departure._close,
    Action.ABORT: Departure._abort,
    Action.RELEASE: Departure._release,
}
