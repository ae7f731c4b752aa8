"""A loop of asyncio for clients of the engine."""

from __future__ import annotations

import time
from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.selectreactor import SelectReactor

from tests.integration.broker import TIMEOUT


class Loop(SelectReactor):
    """A reactor of its own, which runs when the test waits."""

    def wait(self, condition: Callable[[], object]) -> None:
        """Run until ``condition`` is true."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, "nothing happens"
            self.iterate(0.05)

    def finish(self, *ends: Deferred[None]) -> None:
        """Run until all of ``ends`` have fired."""
        self.wait(lambda: all(end.called for end in ends))
