"""The reason for which a listener cannot listen, with a remedy, which the system does not give."""

from __future__ import annotations

import errno
import os
import re

from twisted.internet.error import CannotListenError

from pubsub.wire.inherited_sockets import inherited_names

_UNIX = re.compile(r"(haproxy:)?unix:")
_SYSTEMD = re.compile(r"(haproxy:)?systemd:")
_PLAIN_IPV6 = re.compile(r".*(?<!\\)::|.*interface=[0-9a-fA-F]+:")
_FIRST_UNPRIVILEGED = 1024


def remedy_for_endpoint(description: str) -> str:
    """Return a hint about an endpoint string that cannot be parsed, or an empty string."""
    if _SYSTEMD.match(description):
        names = inherited_names()
        if names:
            return f" (the service manager has handed over: {', '.join(names)})"
        return " (is the process started by a systemd socket unit?)"
    if _PLAIN_IPV6.match(description):
        return r" (in an IPv6 address, write \: for each colon, as in tcp:7070:interface=\:\:1)"
    return ""


def reason_of_listen_error(description: str, error: BaseException) -> str | None:
    """Return why ``description`` cannot be listened on; None for an error of the program."""
    if isinstance(error, OverflowError):
        return "a port is a number from 0 to 65535"
    cause: object = error
    if isinstance(error, CannotListenError):
        if not isinstance(error.socketError, OSError):
            return _lock_reason(error)
        cause = error.socketError
    if not isinstance(cause, OSError):
        return None
    reason = cause.strerror or (os.strerror(cause.errno) if cause.errno else str(cause))
    port = error.port if isinstance(error, CannotListenError) else None
    if cause.errno and reason != os.strerror(cause.errno):
        # Words of the check of a file, which say everything.
        return reason
    remedy = _remedy(cause, description, port)
    return f"{reason}; {remedy}" if remedy else reason


def _lock_reason(error: CannotListenError) -> str:
    """Twisted has a lock beside each UNIX socket: a symbolic link to the id of a process.

    After a crash of the machine, the id can be that of another program.
    """
    if not isinstance(error.port, bytes):
        return str(error.socketError)
    lock = os.fsdecode(error.port) + ".lock"
    try:
        process = os.readlink(lock)
        if process == str(os.getpid()):
            return "another listener of this process has the socket; choose another path"
        holder = f"process {process}"
    except OSError:
        holder = "another process"
    return (
        f"{holder} has the socket; stop it or choose another path, "
        f"or remove {lock} if that process does not listen there"
    )


def _remedy(error: OSError, description: str, port: object) -> str:
    """Return what the operator can do, or an empty string."""
    if _SYSTEMD.match(description):
        return {
            errno.EBADF: "another listener has this socket; give each one its own "
            "FileDescriptorName=",
            errno.EOPNOTSUPP: "the socket is one for datagrams; add ListenStream= to its unit",
        }.get(error.errno or 0, "")
    if _UNIX.match(description):
        return {
            errno.EADDRINUSE: "stop the program that listens there, or remove the file if "
            "none does",
            errno.ENOENT: "make the directory of the socket",
            errno.EACCES: "let the broker's user write to the directory of the socket",
            errno.EROFS: "choose a directory that can be written to, such as /run/pubsub",
        }.get(error.errno or 0, "" if error.errno else "choose a shorter path")
    if error.errno == errno.EACCES and isinstance(port, int) and 0 < port < _FIRST_UNPRIVILEGED:
        return (
            "ports below 1024 need root or CAP_NET_BIND_SERVICE; take the socket from systemd, "
            "or choose a higher port"
        )
    return {
        errno.EADDRINUSE: "stop the program that listens there, or choose another port",
        errno.EADDRNOTAVAIL: "this machine does not have the address; correct it, or wait for the "
        "network before the start",
        errno.EAFNOSUPPORT: "this machine has no such addresses; choose an IPv4 address",
    }.get(error.errno or 0, "")
