"""The life of a connection, as a table. Knows no transport, no protocol and no clock.

The states:

    open        requests are read and answered
    answering   no more is read, or no more will come; pending output is sent: replies that
                wait for the disk, a response in progress, at a stop the subscriber's messages
    flushing    the session has ended, everything has been written, the kernel does not have it yet
    lingering   the kernel has everything; input is discarded until the client closes too
    gone        the transport is closed, or is being closed without waiting for anything

The next state for each event; an event without one has no effect:

                open         answering    flushing     lingering    gone
    close       answering    answering    -            -            -
    half-close  answering    answering    flushing     gone         -
    drain       answering    answering    flushing     lingering    -
    answered    -            flushing     -            -            -
    drained     -            answering    lingering    -            -
    deadline    -            gone         gone         gone         -
    abort       gone         gone         gone         gone         -
    lost        gone         gone         gone         gone         gone

The events:

    close       the broker closes, after an error, a goodbye or a time limit
    half-close  the client sends nothing more
    drain       the broker stops
    answered    no output is pending any more
    drained     the kernel has taken everything that was written
    deadline    the time for the current state is over
    abort       the client is evicted, or must not wait
    lost        the transport is gone

A deadline is set from the first step out of ``open`` until the transport is gone. Each step says
the steps of the shell, in order, and the deadline that replaces the one before:

- CLIENT: the time for a client to read the bytes written for it. While replies are due, it
  begins again whenever the client has taken everything so far.
- LINGER: a short time for the client to close. At a stop it also replaces CLIENT for connections
  that were being flushed already, so that they do not delay it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """See the table."""

    OPEN = "open"
    ANSWERING = "answering"
    FLUSHING = "flushing"
    LINGERING = "lingering"
    GONE = "gone"


class Event(Enum):
    """See the table."""

    CLOSE = "close"
    HALF_CLOSE = "half-close"
    DRAIN = "drain"
    ANSWERED = "answered"
    DRAINED = "drained"
    DEADLINE = "deadline"
    ABORT = "abort"
    LOST = "lost"


class Action(Enum):
    """The actions of the shell of the connection."""

    DISCARD_INPUT = "handle no further input, not even what was received already"
    SEND_LAST = "send the last bytes"
    END = "end the session and release what it holds, unless that has been done"
    FINISH = "close the write half, or the connection, behind what was written"
    CLOSE = "close the connection"
    ABORT = "close the connection and discard what was written"
    RELEASE = "release what was held for the transport; no deadline is needed any more"


class Wait(Enum):
    """A deadline."""

    CLIENT = "client"
    LINGER = "linger"


@dataclass(frozen=True, slots=True)
class Step:
    """The next state, the actions on the way to it in order, and the new deadline if it changes."""

    state: State
    actions: tuple[Action, ...] = ()
    wait: Wait | None = None


_OPEN, _ANSWERING, _FLUSHING, _LINGERING, _GONE = State
_ABORTED = Step(_GONE, (Action.END, Action.ABORT), Wait.LINGER)
_CLOSED = Step(_GONE, (Action.CLOSE,), Wait.LINGER)
_LOST = Step(_GONE, (Action.END, Action.RELEASE))

TABLE: Mapping[tuple[State, Event], Step] = {
    (_OPEN, Event.CLOSE): Step(_ANSWERING, (Action.DISCARD_INPUT,), Wait.CLIENT),
    # Requests that were received before are still answered.
    (_OPEN, Event.HALF_CLOSE): Step(_ANSWERING, (), Wait.CLIENT),
    (_OPEN, Event.DRAIN): Step(_ANSWERING, (Action.DISCARD_INPUT,), Wait.CLIENT),
    (_OPEN, Event.ABORT): _ABORTED,
    (_OPEN, Event.LOST): _LOST,
    (_ANSWERING, Event.CLOSE): Step(_ANSWERING, (Action.DISCARD_INPUT,)),
    (_ANSWERING, Event.HALF_CLOSE): Step(_ANSWERING),
    (_ANSWERING, Event.DRAIN): Step(_ANSWERING, (Action.DISCARD_INPUT,)),
    (_ANSWERING, Event.DRAINED): Step(_ANSWERING, (), Wait.CLIENT),
    (_ANSWERING, Event.ANSWERED): Step(
        _FLUSHING, (Action.SEND_LAST, Action.END, Action.FINISH), Wait.CLIENT
    ),
    (_ANSWERING, Event.DEADLINE): _ABORTED,
    (_ANSWERING, Event.ABORT): _ABORTED,
    (_ANSWERING, Event.LOST): _LOST,
    (_FLUSHING, Event.HALF_CLOSE): Step(_FLUSHING),
    (_FLUSHING, Event.DRAIN): Step(_FLUSHING, (), Wait.LINGER),
    (_FLUSHING, Event.DRAINED): Step(_LINGERING, (), Wait.LINGER),
    (_FLUSHING, Event.DEADLINE): _ABORTED,
    (_FLUSHING, Event.ABORT): _ABORTED,
    (_FLUSHING, Event.LOST): _LOST,
    (_LINGERING, Event.HALF_CLOSE): _CLOSED,
    (_LINGERING, Event.DRAIN): Step(_LINGERING),
    # No abort: the kernel continues to send to a client that reads slowly.
    (_LINGERING, Event.DEADLINE): _CLOSED,
    (_LINGERING, Event.ABORT): _ABORTED,
    (_LINGERING, Event.LOST): _LOST,
    # Only if the transport was closed by the broker itself and is still there.
    (_GONE, Event.DEADLINE): Step(_GONE, (Action.ABORT,)),
    (_GONE, Event.LOST): _LOST,
}


class LifeCycle:
    """The state of one connection that has begun to leave, or is about to."""

    __slots__ = ("input_ended", "state")

    def __init__(self) -> None:
        self.state = State.OPEN
        self.input_ended = False
        """True if the client sends nothing more."""

    def on(self, event: Event) -> Step | None:
        """Take ``event``; return the step to carry out, or None if it has no effect."""
        if event is Event.HALF_CLOSE:
            self.input_ended = True
        step = TABLE.get((self.state, event))
        if step is not None and step.state is State.LINGERING and self.input_ended:
            # The client has closed its half already: there is nothing to wait for.
            step = TABLE[State.LINGERING, Event.HALF_CLOSE]
        if step is not None:
            self.state = step.state
        return step
