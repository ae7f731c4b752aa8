"""Connections that are not accepted, counted instead of logged one by one."""

from __future__ import annotations

import errno
import os
import resource
import socket
import sys
from collections.abc import Callable

from twisted.internet import tcp
from twisted.logger import ILogObserver, LogEvent, Logger
from zope.interface import provider

NO_DESCRIPTORS = "file-descriptors"
"""The reason of a connection that was closed because the process has too many open files."""
NOT_ACCEPTED = "not-accepted"
"""The reason of a connection that the system could not accept, as for lack of memory."""
# Descriptors that no connection gets: the history has to open files at any time. It is a quarter of
# a small limit.
_RESERVED = 32
# The part of them that connections of operators get nevertheless.
_SPARED = 4
# Connections that are refused for that in one tick.
_REFUSED = 32


def count_accept_errors(port: tcp.Port, refuse: Callable[[str, str], object]) -> None:
    """Call ``refuse`` with a reason and the client, instead of logging each event of ``port``.

    At the limit of open files Twisted logs three lines for each connection, and a client can
    connect again at once.
    """

    @provider(ILogObserver)
    def observe(event: LogEvent) -> None:
        if "address" in event:
            refuse(NO_DESCRIPTORS, _label(event["address"]))
        elif "acceptError" in event:
            refuse(NOT_ACCEPTED, event["acceptError"])

    # The log that ``Port`` fills while it accepts; another version of Twisted may have another.
    if hasattr(port, "_logger"):
        port._logger = Logger(observer=observe)


def reserve_descriptors(
    port: tcp.Port,
    refuse: Callable[[str, str], object],
    spares_next: Callable[[], bool] = lambda: False,
) -> None:
    """Call ``refuse`` for a connection at ``port`` that would take one of the last descriptors.

    ``spares_next`` returns whether the next one may take some of these.
    """

    class Accepting(socket.socket):
        __slots__ = ()

        def accept(self) -> tuple[socket.socket, object]:
            for _ in range(_REFUSED):
                client, address = super().accept()
                # The system gives the smallest descriptor that is free.
                if client.fileno() < connection_descriptors(spares_next()):
                    return client, address
                client.close()
                refuse(NO_DESCRIPTORS, _label(address))
            # The others have their turn in the next tick.
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    port.socket.__class__ = Accepting


def connection_descriptors(spared: bool = False) -> int:
    """Return the descriptor before which those of connections are."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    reserved = min(_RESERVED, limit // 4)
    return limit - reserved + (reserved // _SPARED if spared else 0)


def _label(address: object) -> str:
    return ":".join(map(str, address[:2])) if isinstance(address, tuple) and address else "unix"
