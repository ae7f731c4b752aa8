"""The wall clock: the time of messages and of retention, steady when the system's clock is set.

Timers, deadlines and rates use the reactor's clock, which is monotonic. The system's clock can be
set in either direction, and these rules limit the effect:

- A timestamp is never smaller than the one before it, nor than the last stored one. While the
  system's clock is behind, timestamps stand still.
- A jump forward of more than JUMP seconds is accepted after LASTING seconds. Until then the
  time advances with the monotonic clock.
- A restart changes nothing about this, as long as the computer has not been started again: the
  difference of the two clocks is remembered. Without it, nothing shows whether the clock is right.
  If the first reading is then more than JUMP seconds after the last stored message, retention goes
  on from that message for LASTING seconds.
- The last stored message may be one of another broker, whose clock can be wrong. So a limit above
  the timestamps of this broker is stored before they reach it, and a start is not bound beyond it.

Tokens are valid by the system's clock as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor
from typing import Protocol

from twisted.logger import Logger

log = Logger()
MICROSECONDS = 1_000_000
# As a float, which is faster to multiply a float by.
_MICROSECONDS = float(MICROSECONDS)
JUMP = 60.0
"""Seconds by which the system's clock may run ahead at once."""
LASTING = 600.0
"""Seconds that a jump forward has to last before it counts."""
# Seconds by which a clock is set back that are reported. Corrections by NTP are smaller.
_REPORTED = 1.0


class Ticks(Protocol):
    """The ticks of the reactor.

    ``number`` is another one for each tick, and 0 while it is not known which tick it is.
    """

    @property
    def number(self) -> int: ...


class UnknownTicks:
    """The ticks of a clock that does not report them."""

    number = 0


class WallClock:
    """The time in seconds since the Unix epoch, from two clocks.

    ``system`` returns the system's time, which can jump. ``elapsed`` returns seconds that never
    decrease, from any beginning. ``jumps`` counts how often the system's clock jumped forward or
    was set back. ``moved`` is called when the accepted time has moved forward by a jump.

    ``boot`` identifies the beginning of ``elapsed``; it contains no space, and is empty if it is
    not known. ``remember`` is called with a text for the next ``start``.

    ``ticks`` are those of the reactor: what one tick reads had arrived when it began, or came while
    it was read, and gets one timestamp.
    """

    def __init__(
        self, system: Callable[[], float], elapsed: Callable[[], float], boot: str = ""
    ) -> None:
        self.system = system
        self.jumps = 0
        self.moved: Callable[[], object] = lambda: None
        self.remember: Callable[[str], object] = lambda text: None
        self.remember_limit: Callable[[int], object] = lambda limit: None
        self.ticks: Ticks = UnknownTicks()
        # The tick of the last timestamp.
        self._tick = 0
        self._elapsed = elapsed
        self._boot = boot
        # The accepted time when ``elapsed`` was 0, as it was remembered last.
        self._remembered: float | None = None
        # The last reading: the accepted time, and the elapsed time that belongs to it.
        self._accepted, self._read_at = system(), elapsed()
        self._jump: float | None = None
        self._jump_began = 0.0
        self._held: tuple[float, float] | None = None
        self._timestamp = 0
        # Times of the system from which on the last timestamp is not decreased, and until which
        # there is no jump.
        self._last = self._bound = 0.0
        # The limit that was remembered last.
        self._limit = 0.0

    def start(self, last: int, remembered: str = "", limit: int | None = None) -> None:
        """Start after a message that was stored at ``last``, in µs; 0 if there is none.

        ``remembered`` and ``limit`` are what ``remember`` and ``remember_limit`` were called with
        last.
        """
        reported = _REPORTED
        if limit is not None and limit < last:
            # The limit is up to JUMP seconds above the last timestamp.
            last, reported = limit, JUMP
        self._limit = 0.0
        continues = self._restore(remembered)
        self.now()
        self._raise_to(last)
        stored = last / MICROSECONDS
        behind = stored - self._accepted
        if behind > reported:
            self.jumps += 1
            log.warn(
                "clock: the last stored message is {seconds:.0f} s ahead of the system's clock; "
                "new messages get its timestamp until the clock has reached it",
                seconds=behind,
            )
        elif last and -behind > JUMP and not continues:
            self._held = (stored, self._read_at)

    def _restore(self, remembered: str) -> bool:
        """Continue with the time of the last run, if the clocks have run on since."""
        self._remembered = None
        boot, _, begin = remembered.partition(" ")
        if not self._boot or boot != self._boot:
            return False
        try:
            self._remembered = float(begin)
        except ValueError:
            return False
        self._read_at = self._elapsed()
        self._accepted = self._remembered + self._read_at
        return True

    def timestamp(self) -> int:
        """Return the time for a new message, in µs; never less than before."""
        tick = self.ticks.number
        if tick and tick == self._tick:
            return self._timestamp
        self._tick, now = tick, self.system()
        if self._last <= now < self._bound:
            self._last = now
            self._timestamp = timestamp = floor(now * _MICROSECONDS)
            return timestamp
        self._raise_to(int(self.now() * MICROSECONDS))
        if self._last >= self._limit:
            self._limit = self._last + JUMP
            self.remember_limit(int(self._limit * MICROSECONDS))
            self._set_bound()
        return self._timestamp

    def _set_bound(self) -> None:
        self._bound = min(self._accepted + JUMP, self._limit)

    def _raise_to(self, timestamp: int) -> None:
        self._timestamp = max(self._timestamp, timestamp)
        self._last = (self._timestamp + 1) / MICROSECONDS

    def now(self) -> float:
        """Read both clocks and return the accepted time; to be called about once a second."""
        system, elapsed = self.system(), self._elapsed()
        expected = self._accepted + elapsed - self._read_at
        ahead = system - expected
        waits = ahead > JUMP and not self._has_lasted(ahead, elapsed)
        self._accepted, self._read_at = expected if waits else system, elapsed
        self._set_bound()
        if not waits:
            self._report(ahead, elapsed)
        begin = self._accepted - elapsed
        if self._remembered is None or abs(begin - self._remembered) > _REPORTED:
            self._remembered = begin
            if self._boot:
                self.remember(f"{self._boot} {begin!r}")
        return self._accepted

    def retention_time(self) -> float:
        """Return the time at which the age of a message is judged."""
        now = self.now()
        if self._held is not None:
            stored, began = self._held
            passed = self._read_at - began
            if passed < LASTING:
                return min(now, stored + passed)
            self._held = None
        return now

    def _has_lasted(self, ahead: float, elapsed: float) -> bool:
        """Return whether a clock that is ``ahead`` seconds ahead has been so long enough."""
        if self._jump is None:
            self.jumps += 1
            log.warn(
                "clock: the system's clock jumped forward by {seconds:.0f} s; "
                "it is accepted if it lasts {lasting:.0f} s",
                seconds=ahead,
                lasting=LASTING,
            )
        if self._jump is None or ahead > self._jump + JUMP:
            self._jump, self._jump_began = ahead, elapsed
        self._jump = min(self._jump, ahead)
        return elapsed - self._jump_began >= LASTING

    def _report(self, ahead: float, elapsed: float) -> None:
        """Report how a jump ended, or that the system's clock was set back."""
        jump, self._jump = self._jump, None
        if ahead < -_REPORTED:
            self.jumps += 1
            log.warn(
                "clock: the system's clock was set back by {seconds:.0f} s; timestamps stand still "
                "until it has caught up",
                seconds=-ahead,
            )
        if jump is None:
            return
        if ahead <= JUMP:
            log.warn(
                "clock: the jump forward ended after {seconds:.0f} s and was not accepted",
                seconds=elapsed - self._jump_began,
            )
            return
        log.warn(
            "clock: the jump forward by {seconds:.0f} s has lasted {lasting:.0f} s and is accepted",
            seconds=ahead,
            lasting=LASTING,
        )
        self.moved()
