"""``ReactorLoop``: asyncio inside a reactor."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

from twisted.internet.selectreactor import SelectReactor
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine.reactor_loop import ReactorLoop

TIMEOUT = 30.0


class ReactorLoopTests(SynchronousTestCase):
    """A loop in a reactor that runs when the test waits"""

    def setUp(self) -> None:
        self.reactor = SelectReactor()
        self.passes: list[bool] = []
        self.loop = ReactorLoop(self.reactor, self.passed)
        self.begun = False
        self.done: list[object] = []

    def passed(self) -> None:
        self.passes.append(asyncio._get_running_loop() is None)

    def begin(self) -> None:
        """Begin; the loop ends with the test."""
        self.loop.call_soon(self.loop.stop)
        self.loop.begin(TIMEOUT)
        self.addCleanup(self.loop.end)

    def wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, "nothing happens"
            self.reactor.iterate(0.05)

    def test_it_begins_at_once(self) -> None:
        self.loop.create_task(self.answer(1))
        self.begin()
        assert self.done == [1]

    def test_the_beginning_is_limited(self) -> None:
        self.loop.begin(0.01)
        self.addCleanup(self.loop.end)
        assert self.passes

    async def answer(self, value: object) -> None:
        await asyncio.sleep(0)
        self.done.append(value)

    def test_what_is_scheduled_from_outside_runs(self) -> None:
        self.begin()
        self.loop.create_task(self.answer(1))
        assert self.done == []
        self.wait(lambda: self.done == [1])

    def test_a_pass_runs_calls_at_once(self) -> None:
        self.begin()
        self.loop.run_pass(partial(self.done.append, 1))
        assert self.done == [1]
        assert all(self.passes)

    def test_a_pass_ends_although_there_is_always_more(self) -> None:
        self.begin()

        def again() -> None:
            self.done.append(1)
            self.loop.call_soon(again)

        self.loop.run_pass(again)
        seen = len(self.done)
        assert 1 < seen < 100
        self.wait(lambda: len(self.done) > seen)

    def test_timers(self) -> None:
        self.begin()
        # From one moment on, as time passes between the calls.
        now = self.loop.time()
        for seconds in (0.03, 0.01, 0.02):
            self.loop.call_at(now + seconds, self.done.append, seconds)
        self.loop.call_later(0.005, self.done.append, "cancelled").cancel()
        self.wait(lambda: len(self.done) == 3)
        assert self.done == [0.01, 0.02, 0.03]

    def test_a_timer_from_before_the_beginning(self) -> None:
        self.loop.call_later(0.01, self.done.append, 1)
        self.begin()
        self.wait(lambda: self.done)

    def test_calls_of_other_threads(self) -> None:
        self.begin()
        thread = threading.Thread(target=self.loop.call_soon_threadsafe, args=(self.done.append, 1))
        thread.start()
        self.wait(lambda: self.done)
        thread.join()

    def test_an_executor(self) -> None:
        self.begin()

        async def ask() -> None:
            number = await asyncio.get_running_loop().run_in_executor(None, threading.get_ident)
            self.done.append(number != threading.get_ident())

        self.loop.create_task(ask())
        self.wait(lambda: self.done)
        assert self.done == [True]

    def test_a_connection(self) -> None:
        self.begin()

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        async def ask() -> None:
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello\n")
            self.done.append(await reader.read())
            writer.close()
            server.close()

        self.loop.create_task(ask())
        self.wait(lambda: self.done)
        assert self.done == [b"hello\n"]

    def test_a_reactor_that_runs_on_asyncio(self) -> None:
        async def outer() -> None:
            self.begin()
            self.loop.run_pass(lambda: self.done.append(asyncio.get_running_loop()))
            self.done.append(asyncio.get_running_loop())

        other = asyncio.new_event_loop()
        other.run_until_complete(outer())
        other.close()
        assert self.done == [self.loop, other]

    def test_an_error_of_a_call_is_handled(self) -> None:
        self.begin()
        self.loop.set_exception_handler(lambda _, context: self.done.append(context["exception"]))
        self.loop.run_pass(lambda: [][0])
        assert isinstance(self.done[0], IndexError)
        self.loop.run_pass(partial(self.done.append, 1))
        assert self.done[1] == 1

    def test_nothing_is_left_at_the_end(self) -> None:
        self.loop.call_later(3600, self.done.append, 1)
        self.loop.call_soon(self.loop.stop)
        self.loop.begin(TIMEOUT)
        self.loop.call_soon(self.done.append, 2)
        self.loop.end()
        assert self.loop.is_closed()
        assert self.done == [2]
        assert self.reactor.getDelayedCalls() == []
        assert not [one for one in self.reactor.getReaders() if one.logPrefix() == "backplane"]
