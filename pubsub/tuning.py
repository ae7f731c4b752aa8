"""The tricks on the path of a message: the list of them, and which are in use.

A trick makes the broker faster and has no other effect. ``--tuning=off`` turns all of them off.
Those that rest on the inside of Twisted are used only with versions of Twisted with which the tests
have been run. docs/tuning.md has the same list, and the way of a message that it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

TESTED_TWISTED = frozenset({"26.4.0", "26.10.0"})
"""Versions of Twisted for tricks that rest on its inside."""


@dataclass(frozen=True, slots=True)
class Trick:
    """One trick.

    ``rests_on`` names the parts of Twisted, CPython or the system that it needs, and ``figure``
    its effect. ``inside`` is True if it needs names or an order of calls that Twisted does not
    promise.
    """

    name: str
    module: str
    effect: str
    rests_on: str
    figure: str
    inside: bool = False


TICK_HOOK = Trick(
    "tick-hook",
    "pubsub/wire/reactor_tick.py",
    "Calls at the end of a tick follow the events of the tick, without a delayed call for each "
    "tick.",
    "`ReactorBase.mainLoop` calls `doIteration` of the instance",
    "1 to 1 and 50 to 1, one message at a time: 1.6, with plain-events, which needs it; in "
    "batches 1.4 to 1.5",
    inside=True,
)
PLAIN_EVENTS = Trick(
    "plain-events",
    "pubsub/wire/reactor_tick.py",
    "Events of epoll are handled without a logging context for each; nothing reads that context.",
    "`_poller`, `_selectables`, `_doReadOrWrite` and `_disconnectSelectable` of `EPollReactor`",
    "one message at a time: 1.1 to 1.4",
    inside=True,
)
DIRECT_TRANSPORT = Trick(
    "direct-transport",
    "pubsub/wire/direct_transport.py",
    "A write sends at once. Twisted's waits for the next writable event, which costs two calls of "
    "epoll_ctl and a tick.",
    "`dataBuffer`, `offset`, `_writeDisconnecting` and `_maybePauseProducer` of `FileDescriptor`",
    "one message at a time: 1.5, to ten subscribers 1.9; in batches 1.4 to 1.6",
    inside=True,
)
LIGHT_TRANSPORT = Trick(
    "light-transport",
    "pubsub/wire/light_transport.py",
    "A connection begins with a transport that has a file descriptor and no buffers. It needs "
    "direct-transport, which takes its place.",
    "`Port.transport` is called with the arguments of `tcp.Server`",
    "nothing for a delivery; 1,550 bytes for an idle connection instead of 880",
    inside=True,
)
KEPT_MEMORY = Trick(
    "kept-memory",
    "pubsub/server/memory_tuning.py",
    "Up to 64 MiB of freed memory stay with the process, in one heap, for the next large message.",
    "mallopt(3) of glibc",
    "1 MiB, not stored: 4.4; below 256 KiB nothing",
)
FROZEN_START = Trick(
    "frozen-start",
    "pubsub/server/memory_tuning.py",
    "The garbage collector does not traverse the objects of the start.",
    "`gc.freeze` of CPython",
    "nothing for a delivery; a full collection takes 30 ms, in which no message is handled",
)
FROZEN_GROWTH = Trick(
    "frozen-growth",
    "pubsub/server/frozen_growth.py",
    "The garbage collector does not traverse again what has survived a run of more than 5 ms.",
    "`gc.freeze` and `gc.callbacks` of CPython",
    "nothing for a delivery; with 100,000 topics, 0.12 s without messages after some 6,000 "
    "connections",
)
SHORT_SWITCHES = Trick(
    "short-switches",
    "pubsub/server/thread_tuning.py",
    "A thread that computes, such as one that encodes the history for a client, leaves the "
    "interpreter to the reactor after 0.2 ms instead of 5 ms.",
    "`sys.setswitchinterval` of CPython",
    "one message at a time beside a client that reads the history: p50 1 to 2.2, p99 1.3 to 1.6; "
    "otherwise nothing",
)
LOOPBACK_RENO = Trick(
    "loopback-reno",
    "pubsub/wire/listener_service.py",
    "Listeners on loopback addresses use the congestion control reno, which does not pace.",
    "TCP_CONGESTION of Linux",
    "where BBR is the default of a quiet system, up to 1.5 with several messages in flight; "
    "otherwise nothing",
)
UNCACHED_WRITES = Trick(
    "uncached-writes",
    "pubsub/store/segments/uncached_writes.py",
    "Records of 512 KiB or more leave the page cache once they are on disk, so that the next ones "
    "need no new memory. They are read from the disk later.",
    "RWF_DONTCACHE of Linux 6.16, where the file system has it, as ext4, xfs and btrfs do",
    "stored: 10 pairs 1.5, sizes mixed 1.2 to 1.5, 10 topics in turn 1.15, 65,000 bytes 1.2 to "
    "1.4; one message at a time nothing",
)

TRICKS: tuple[Trick, ...] = (
    TICK_HOOK,
    PLAIN_EVENTS,
    DIRECT_TRANSPORT,
    LIGHT_TRANSPORT,
    KEPT_MEMORY,
    FROZEN_START,
    FROZEN_GROWTH,
    SHORT_SWITCHES,
    LOOPBACK_RENO,
    UNCACHED_WRITES,
)


@dataclass(frozen=True, slots=True)
class Tuning:
    """The tricks in use, and those that are not because Twisted's version is not a tested one."""

    on: frozenset[Trick]
    untested: tuple[Trick, ...] = ()

    def __contains__(self, trick: Trick) -> bool:
        return trick in self.on

    def __str__(self) -> str:
        if not self.on:
            return "off"
        return "on in part" if self.untested else "on"


TUNED = Tuning(frozenset(TRICKS))
"""All tricks are in use."""


def choose(wanted: bool, twisted_version: str) -> Tuning:
    """Return the tricks to use with this version of Twisted; none if tuning is not ``wanted``."""
    if not wanted:
        return Tuning(frozenset())
    tested = twisted_version in TESTED_TWISTED
    on = frozenset(trick for trick in TRICKS if tested or not trick.inside)
    return Tuning(on, tuple(trick for trick in TRICKS if trick not in on))
