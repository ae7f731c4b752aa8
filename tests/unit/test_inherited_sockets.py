"""Sockets that the service manager hands over, found by name and kind."""

from __future__ import annotations

import os
import socket

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.wire import inherited_sockets
from pubsub.wire.inherited_sockets import (
    family_of,
    find_inherited,
    initial_environment,
    kind_of,
    name_in,
    warn_of_unused,
)
from tests.unit.streams import logged

STREAM, DATAGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM


class NameTests(SynchronousTestCase):
    """name_in"""

    def test_endpoints(self) -> None:
        assert name_in("systemd:name=cafe") == "cafe"
        assert name_in("systemd:name=cafe.socket") == "cafe.socket"
        assert name_in("systemd:domain=INET:name=cafe") == "cafe"
        assert name_in("systemd:name=cafe:domain=INET6") == "cafe"
        assert name_in("systemd:domain=INET:index=0") is None
        assert name_in("tcp:7070") is None


class SocketTests(SynchronousTestCase):
    """find_inherited"""

    def setUp(self) -> None:
        self.sockets = [
            socket.socket(family, kind)
            for family, kind in (
                (socket.AF_INET, DATAGRAM),
                (socket.AF_INET, STREAM),
                (socket.AF_INET6, STREAM),
            )
        ]
        for one in self.sockets:
            self.addCleanup(one.close)
        # Far from those in use: a library with threads of its own does not survive that another
        # file takes the place of one of its descriptors.
        free = max(int(name) for name in os.listdir("/proc/self/fd")) + 100
        for place, one in enumerate(self.sockets):
            os.dup2(one.fileno(), free + place)
            self.addCleanup(os.close, free + place)
        self.first = free
        self.patch(inherited_sockets, "_FIRST", free)  # type: ignore[no-untyped-call]

    def find(self, name: str, kind: socket.SocketKind, **given: str) -> int | None:
        environment = {
            "LISTEN_PID": str(os.getpid()),
            "LISTEN_FDS": "3",
            "LISTEN_FDNAMES": "cafe:cafe:nsd",
            **given,
        }
        found = find_inherited(name, kind, environment)
        return None if found is None else found - self.first

    def test_two_of_one_name(self) -> None:
        assert self.find("cafe", DATAGRAM) == 0
        assert self.find("cafe", STREAM) == 1
        assert self.find("nsd", STREAM) == 2

    def test_two_of_one_name_and_kind(self) -> None:
        with pytest.raises(ConfigurationError, match=r"^systemd:name=nsd: .* 2 such sockets; give"):
            self.find("nsd", STREAM, LISTEN_FDNAMES="cafe:nsd:nsd")
        assert self.find("nsd", STREAM, LISTEN_FDNAMES="nsd:cafe:nsd") == 2

    def test_missing_sockets(self) -> None:
        assert self.find("nsd", DATAGRAM) is None
        assert self.find("spot", STREAM) is None
        assert self.find("nsd", STREAM, LISTEN_FDS="2") is None
        assert self.find("nsd", STREAM, LISTEN_FDS="x") is None
        assert self.find("nsd", STREAM, LISTEN_FDNAMES="cafe:cafe") is None

    def test_sockets_that_no_listener_takes(self) -> None:
        environment = {
            "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "3", "LISTEN_FDNAMES": "cafe:cafe:nsd",
        }  # fmt: skip
        lines = logged(self)
        for endpoints in (
            ("systemd:name=cafe", "haproxy:systemd:name=nsd", "tcp:7070"),
            ("systemd:domain=INET:index=0",),
        ):
            warn_of_unused(endpoints, environment)
        assert lines == []
        warn_of_unused(["haproxy:systemd:name=cafe", "tcp:7070"], environment)
        assert lines[0].startswith("systemd: no listener takes the socket nsd, whose clients ")
        warn_of_unused([], {})
        assert len(lines) == 1

    def test_sockets_of_another_process(self) -> None:
        assert self.find("nsd", STREAM, LISTEN_PID="1") is None

    def test_kinds_and_families(self) -> None:
        assert kind_of(self.first) == DATAGRAM
        assert kind_of(self.first + 500) is None
        assert family_of(self.first + 2) == socket.AF_INET6

    def test_the_environment_of_the_start(self) -> None:
        assert initial_environment().get("PATH") is not None
