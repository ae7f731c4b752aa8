"""Connections that Twisted could not accept, counted instead of logged one by one."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet import tcp
from twisted.logger import ILogObserver, LogEvent, Logger
from zope.interface import provider

NO_DESCRIPTORS = "file-descriptors"
"""The reason of a connection that was closed because the process has too many open files."""
NOT_ACCEPTED = "not-accepted"
"""The reason of a connection that the system could not accept, as for lack of memory."""


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


def _label(address: object) -> str:
    return ":".join(map(str, address[:2])) if isinstance(address, tuple) and address else "unix"
