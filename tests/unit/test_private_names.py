"""Names that are private to Twisted: another version without them is no reason to break."""

from __future__ import annotations

import time
from typing import Any, cast

from twisted.internet import tcp
from twisted.internet.abstract import FileDescriptor
from twisted.internet.base import ReactorBase
from twisted.trial.unittest import SynchronousTestCase

from pubsub.server.clocks import use_monotonic_timers
from pubsub.wire.accept_errors import count_accept_errors
from pubsub.wire.unsent_bytes import unsent_bytes
from tests.unit.streams import logged


class OtherReactor(ReactorBase):
    """A reactor that keeps its timers elsewhere."""

    def __init__(self) -> None:
        self.running = False


class OtherDescriptor(FileDescriptor):
    """A transport that keeps the latest output in another attribute."""

    def __init__(self) -> None:
        self.dataBuffer, self.offset = b"12345", 2


class OtherPort:
    """A port with another log."""


class PrivateNameTests(SynchronousTestCase):
    """Another version of Twisted"""

    def test_timers_that_are_kept_elsewhere_keep_their_clock(self) -> None:
        lines = logged(self)
        reactor = cast(Any, OtherReactor())
        before = reactor.seconds
        use_monotonic_timers(reactor)
        assert reactor.seconds == before
        assert before is not time.monotonic
        assert lines == [
            "clock: timers follow the system's clock, as this Twisted has them elsewhere"
        ]

    def test_bytes_that_are_kept_elsewhere_are_not_counted(self) -> None:
        assert unsent_bytes(OtherDescriptor()) == 3

    def test_errors_of_a_port_with_another_log_stay_with_twisted(self) -> None:
        port = OtherPort()
        count_accept_errors(cast(tcp.Port, port), lambda reason, client: None)
        assert vars(port) == {}
