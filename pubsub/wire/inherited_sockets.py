"""Listening sockets that the service manager hands over, as sd_listen_fds(3) specifies.

Twisted finds them too, but not two of one name, such as a stream and a datagram socket of one unit.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from twisted.logger import Logger

from pubsub.errors import ConfigurationError

log = Logger()
_FIRST = 3
_NAMED = re.compile(r"systemd:(?:domain=\w+:)?name=([^:]+)(?::domain=\w+)?")
_INHERITED = re.compile(r"(?:haproxy:)?(systemd:.*)")


def name_in(endpoint: str) -> str | None:
    """Return the name in the endpoint ``systemd:name=NAME``; None for any other endpoint."""
    found = _NAMED.fullmatch(endpoint)
    return None if found is None else found[1]


def initial_environment() -> dict[str, str]:
    """Return the environment at the start of the process, where the system shows it.

    Twisted removes the variables of inherited sockets when it is imported.
    """
    try:
        items = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(item).partition("=") for item in items)
    return {name: value for name, _, value in pairs}


def find_inherited(
    name: str, kind: socket.SocketKind, environment: Mapping[str, str] | None = None
) -> int | None:
    """Return the descriptor of the inherited socket with this name and kind, or None.

    Raises ConfigurationError if there are several: clients of the others would wait forever.
    """
    places = enumerate(inherited_names(environment), _FIRST)
    found = [at for at, other in places if other == name and kind_of(at) == kind]
    if len(found) > 1:
        raise ConfigurationError(
            f"systemd:name={name}: the service manager has handed over {len(found)} such sockets; "
            "give each a unit and a FileDescriptorName= of its own"
        )
    return found[0] if found else None


def inherited_names(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the inherited sockets, in the order of their descriptors."""
    environment = initial_environment() if environment is None else environment
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return []
    text = environment.get("LISTEN_FDS", "")
    count = int(text) if text.isdecimal() else 0
    return environment.get("LISTEN_FDNAMES", "").split(":")[:count]


def warn_of_unused(endpoints: Iterable[str], environment: Mapping[str, str] | None = None) -> None:
    """Log a warning if there are inherited sockets that none of ``endpoints`` takes.

    The system accepts their connections nevertheless.
    """
    inherited = [found[1] for found in map(_INHERITED.fullmatch, endpoints) if found]
    taken = {name_in(endpoint) for endpoint in inherited}
    unused = sorted({*inherited_names(environment)} - taken)
    # One that is taken by its number has a name as well.
    if unused and None not in taken:
        log.warn(
            "systemd: no listener takes the socket {names}, whose clients wait in vain; stop its "
            "unit, or add a listener with the endpoint systemd:name=NAME",
            names=", ".join(unused),
        )


def kind_of(descriptor: int) -> int | None:
    """Return the kind of a socket; None for a descriptor that is not a socket."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            return copy.type
    except OSError:
        return None


def family_of(descriptor: int) -> socket.AddressFamily:
    """Return the address family of a socket; raises OSError."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        return socket.AddressFamily(copy.family)
