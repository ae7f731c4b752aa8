"""Reports the state of the process to the service manager, as sd_notify(3) and sd_watchdog do.

The protocol is a datagram of lines ``NAME=VALUE`` to the UNIX socket in ``$NOTIFY_SOCKET``. Without
that variable nothing is sent.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted.application.service import Service
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

if TYPE_CHECKING:
    from pubsub.broker.service import BrokerService

_WATCHDOGS = 2
"""Signs of life in the time after which the process is killed."""
_HISTORY_SECONDS = 30
"""Seconds for the rest of the history, after the clients; as in the unit."""
_LOOK_SECONDS = 5
"""Seconds until the manager shows that the broker is not ready, or is again."""
Notify = Callable[[str], None]


def notifier(environment: Mapping[str, str]) -> Notify | None:
    """Return a function that sends a datagram to the service manager; None if there is none."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return None
    if address.startswith("@"):
        # The name of a socket that is not in the file system.
        address = "\0" + address[1:]

    def notify(state: str) -> None:
        # A manager that does not read must not stop the broker.
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        ):
            sender.sendto(state.encode(), address)

    return notify


def watchdog_seconds(environment: Mapping[str, str], pid: int) -> float:
    """Return the seconds after which a process without a sign of life is killed; 0: never."""
    text = environment.get("WATCHDOG_USEC", "")
    if not text.isdecimal() or environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    return int(text) / 1e6


class ServiceManager(Service):
    """Reports the start, reloads, the stop, signs of life and the readiness of ``broker``.

    Signs of life come from the reactor, so that a process whose reactor is stuck is restarted.
    """

    def __init__(
        self,
        broker: BrokerService,
        reactor: IReactorTime,
        notify: Notify,
        watchdog: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._reactor = reactor
        self._notify = notify
        self._monotonic = monotonic
        self._interval = watchdog / _WATCHDOGS
        self._alive = LoopingCall(notify, "WATCHDOG=1")
        self._alive.clock = reactor
        self._watch = LoopingCall(self._look)
        self._watch.clock = reactor
        self._shown = ""
        self._error = ""

    def startService(self) -> None:
        """Report READY once the reactor runs: everything has been started by then."""
        super().startService()  # type: ignore[no-untyped-call]
        self._reactor.callLater(0, self._started)

    def _started(self) -> None:
        if self.running:
            self._serving()
            if self._interval:
                self._alive.start(self._interval)

    def _serving(self) -> None:
        """Report READY, and from now on each change of the status."""
        self._shown = self._status()
        self._notify(f"READY=1\nSTATUS={self._shown}")
        if not self._watch.running:
            self._watch.start(_LOOK_SECONDS, now=False)

    def _look(self) -> None:
        if (status := self._status()) != self._shown:
            self._shown = status
            self._notify(f"STATUS={status}")

    def _status(self) -> str:
        """Return why the broker is not ready, as ``/readyz`` does, or what it serves."""
        count = len(self._broker.listeners)
        serving = f"serving {count} listener{'' if count == 1 else 's'}"
        obstacles = "; ".join(one.text for one in self._broker.readiness.obstacles())
        return (f"not ready: {obstacles}" if obstacles else serving) + self._error

    def reloading(self) -> None:
        """A reload begins."""
        self._end_watch()
        usec = int(self._monotonic() * 1e6)
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={usec}\nSTATUS=reloading the configuration")

    def reloaded(self, is_applied: bool) -> None:
        """The reload has ended; the manager takes the state for its success."""
        self._error = "" if is_applied else "; the last reload failed, see the log"
        self._serving()

    def _end_watch(self) -> None:
        if self._watch.running:
            self._watch.stop()

    def stopService(self) -> None:
        """Report that the stop has begun; signs of life continue until the process ends.

        The manager waits for the clients as long as the broker does.
        """
        super().stopService()  # type: ignore[no-untyped-call]
        self._end_watch()
        usec = int((self._broker.drainage.seconds + _HISTORY_SECONDS) * 1e6)
        self._notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={usec}\nSTATUS=draining the clients")
