"""The callers of a blocking subscription: interrupted, forked, or in the thread of the loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from threading import Thread
from typing import Any
from unittest.mock import patch

import pytest
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from pubsub.client import ClientClosed, blocking
from pubsub.client.messages import MixedBatch
from pubsub.kernel import Columns
from pubsub.testing import start_broker
from pubsub.wire.client_events import MixedMessages
from tests.unit.raising import raised
from tests.waiting import until

SECONDS = 60.0
Subscription = blocking.Subscription[Any]


class _LateInterrupt:
    """A future whose caller is interrupted when the work is done, and does not get the result."""

    def __init__(self, future: Any) -> None:
        self._future = future
        self.cancel = future.cancel

    def result(self) -> None:
        self._future.result()
        raise KeyboardInterrupt


@contextmanager
def interrupted() -> Iterator[None]:
    """Let each call of a blocking client be interrupted at its end."""
    submit = asyncio.run_coroutine_threadsafe

    def submitted(*arguments: Any) -> Any:
        return _LateInterrupt(submit(*arguments))

    with patch.object(asyncio, "run_coroutine_threadsafe", submitted):
        yield


class _InterruptedSubmit:
    """``run_coroutine_threadsafe`` whose caller is interrupted, before its work or behind it."""

    def __init__(self, behind: bool) -> None:
        self._submit = asyncio.run_coroutine_threadsafe
        self._behind = behind

    def __call__(self, *arguments: Any) -> Any:
        if self._behind:
            self._submit(*arguments)
        raise KeyboardInterrupt


class _SlowCaller:
    """A future whose caller goes on later than another thread, which tries to take the result."""

    def __init__(self, future: Any, take: Callable[[], object]) -> None:
        self._future = future
        self._take = take
        self.cancel = future.cancel

    def result(self) -> None:
        self._future.result()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self._take).exception()


class _LateInterruptedLock:
    """A lock whose caller is interrupted once, when it has acquired it."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release
        self._is_interrupted = False

    def acquire(self, timeout: float) -> bool:
        acquired: bool = self._lock.acquire(timeout=timeout)
        if not self._is_interrupted:
            self._is_interrupted = True
            raise KeyboardInterrupt
        return acquired


def is_free(lock: Any) -> bool:
    """Return whether a thread could acquire ``lock``."""
    if lock.acquire(blocking=False):
        lock.release()
        return True
    return False


@contextmanager
def waiting(messages: Subscription) -> Iterator[list[Any]]:
    """Let another thread wait for the next message, which is in the list then."""
    found: list[Any] = []
    thread = Thread(target=lambda: found.append(messages.next(SECONDS)))
    thread.start()
    try:
        until(lambda: not is_free(messages._turn), "a thread that waits")
        yield found
    finally:
        thread.join(SECONDS)


class CallerTests(TestCase):
    timeout = SECONDS

    def with_subscription(self, work: Callable[[blocking.Client, Subscription], None]) -> Any:
        """Call ``work`` in a thread; the broker is in this one."""
        broker = start_broker(self)

        def call() -> None:
            with (
                blocking.connect(broker.url("cafe")) as client,
                client.subscribe("cafe/7") as messages,
            ):
                work(client, messages)

        return deferToThread(call)

    async def test_the_end_of_a_block_closes_the_client(self) -> None:
        broker = start_broker(self)

        def work() -> None:
            for error in (None, RuntimeError):
                client = blocking.connect(broker.url("cafe"))
                with contextlib.suppress(RuntimeError), client:
                    client.publish("cafe/7", b"x", confirm=True)
                    if error is not None:
                        raise error
                assert not client._runtime.is_open
                raised(ClientClosed, client.publish, "cafe/7", b"x")

        await deferToThread(work)

    async def test_an_interrupted_call_loses_no_message(self) -> None:
        def work(client: blocking.Client, messages: Subscription) -> None:
            for take in (messages.next, messages.next_item):
                for number in range(3):
                    client.publish("cafe/7", b"%d" % number, confirm=True)
                with interrupted():
                    raised(KeyboardInterrupt, take, SECONDS)
                found = [messages.next(SECONDS) for _ in range(3)]
                assert [one.payload for one in found if one] == [b"0", b"1", b"2"]
                raised(TimeoutError, messages.next, 0.01)

        await self.with_subscription(work)

    async def test_work_that_was_interrupted_before_it_began_leaves_no_warning(self) -> None:
        """Python writes one for a coroutine that nobody has awaited."""

        def work(client: blocking.Client, messages: Subscription) -> None:
            # What other tests have left, such as open sockets, is not for the list.
            gc.collect()
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("ignore")
                warnings.filterwarnings("always", "coroutine .* was never awaited")
                for behind in (False, True):
                    submit = _InterruptedSubmit(behind)
                    with patch.object(asyncio, "run_coroutine_threadsafe", submit):
                        raised(KeyboardInterrupt, client.publish, "cafe/8", b"x")
                    client.publish("cafe/7", b"last", confirm=True)
                gc.collect()
            assert [str(one.message) for one in found] == []
            assert [one.payload for one in islice(messages, 2)] == [b"last", b"last"]

        await self.with_subscription(work)

    async def test_work_that_is_no_coroutine(self) -> None:
        def work(client: blocking.Client, messages: Subscription) -> None:
            errors: list[Any] = []
            loop = client._thread._loop
            loop.set_exception_handler(lambda _, context: errors.append(context))
            call: Any = client.call
            try:
                raised(TypeError, call, lambda _: None)
                client.publish("cafe/7", b"x", confirm=True)
            finally:
                loop.set_exception_handler(None)
            assert errors == []

        await self.with_subscription(work)

    async def test_messages_of_several_topics(self) -> None:
        sent = [("a", b"1"), ("b", b"2"), ("b", b"3"), ("a", b"4")]
        columns = Columns.of([payload for _, payload in sent], [0, 1, 1, 0])

        def work(client: blocking.Client, messages: Subscription) -> None:
            async def put() -> None:
                messages._inner._feed.put(MixedBatch(MixedMessages(("a", "b"), columns)))

            def taken(count: int) -> list[tuple[str, bytes]]:
                found = [messages.next(SECONDS) for _ in range(count)]
                return [(one.topic, one.payload) for one in found if one]

            def runs(count: int) -> list[tuple[str, list[bytes]]]:
                found = [messages.next_item(SECONDS) for _ in range(count)]
                return [(one.topic, one.payloads) for one in found if one]

            messages._thread.run(put())
            assert taken(4) == sent
            messages._thread.run(put())
            assert runs(3) == [("a", [b"1"]), ("b", [b"2", b"3"]), ("a", [b"4"])]
            messages._thread.run(put())
            assert (runs(1), taken(3)) == ([("a", [b"1"])], sent[1:])
            messages._thread.run(put())
            with interrupted():
                raised(KeyboardInterrupt, messages.next, SECONDS)
            assert (runs(2), taken(1)) == ([("a", [b"1"]), ("b", [b"2", b"3"])], sent[3:])

        await self.with_subscription(work)

    async def test_an_item_that_came_for_another_thread_is_not_taken(self) -> None:
        submit = asyncio.run_coroutine_threadsafe

        def work(client: blocking.Client, messages: Subscription) -> None:
            def submitted(*arguments: Any) -> Any:
                return _SlowCaller(submit(*arguments), lambda: messages.next_item(0.01))

            for take in (messages.next, messages.next_item):
                client.publish("cafe/7", b"x", confirm=True)
                with patch.object(asyncio, "run_coroutine_threadsafe", submitted):
                    assert take(SECONDS) is not None

        await self.with_subscription(work)

    async def test_a_thread_that_is_interrupted_does_not_keep_the_turn(self) -> None:
        def work(client: blocking.Client, messages: Subscription) -> None:
            for take in (messages.next, messages.next_item):
                lock = messages._turn
                messages._turn = _LateInterruptedLock(lock)  # type: ignore[assignment]
                raised(KeyboardInterrupt, take, SECONDS)
                messages._turn = lock
                client.publish("cafe/7", b"x", confirm=True)
                with ThreadPoolExecutor(1) as pool:
                    assert pool.submit(take, SECONDS / 4).result() is not None

        await self.with_subscription(work)

    async def test_two_threads_wait_for_items(self) -> None:
        columns = Columns.of([b"1", b"2"], [0, 1])

        def work(client: blocking.Client, messages: Subscription) -> None:
            async def put() -> None:
                messages._inner._feed.put(MixedBatch(MixedMessages(("a", "b"), columns)))

            with ThreadPoolExecutor(2) as pool:
                waiting = [pool.submit(messages.next_item, SECONDS / 4) for _ in range(2)]
                messages._thread.run(put())
                found = {item.topic for one in waiting if (item := one.result()) is not None}
            assert found == {"a", "b"}

        await self.with_subscription(work)

    async def test_a_message_of_an_interrupted_call_is_dropped_at_the_end(self) -> None:
        def work(client: blocking.Client, messages: Subscription) -> None:
            client.publish("cafe/7", b"x", confirm=True)
            with interrupted():
                raised(KeyboardInterrupt, messages.next, SECONDS)
            messages.close()
            assert messages.next(SECONDS) is None

        await self.with_subscription(work)

    async def test_a_program_that_exits_in_the_thread_of_the_loop(self) -> None:
        async def leave(kind: type[BaseException]) -> None:
            raise kind

        def work(client: blocking.Client, messages: Subscription) -> None:
            for kind in (SystemExit, KeyboardInterrupt):
                # Another thread, as a wait for a loop that has ended would have no end.
                other = ThreadPoolExecutor(1)
                future = other.submit(client.call, lambda _, kind=kind: leave(kind))
                with pytest.raises(kind):
                    future.result(5)
                client.publish("cafe/7", b"x", confirm=True)
                assert messages.next(SECONDS)

        await self.with_subscription(work)

    async def test_a_program_that_exits_in_on_event(self) -> None:
        broker = start_broker(self)
        events: list[str] = []

        def exits(notice: object) -> None:
            events.append(type(notice).__name__)
            sys.exit(3)

        async def lose(client: Any) -> None:
            client._links._subscribing.attempt.transport.abort()

        def work() -> None:
            with (
                blocking.connect(broker.url("cafe"), on_event=exits) as client,
                client.subscribe("cafe/7") as messages,
            ):
                client.call(lose)
                until(lambda: "Reconnected" in events, "the next connection")
                client.publish("cafe/7", b"x", confirm=True)
                assert messages.next(SECONDS)
            assert events == ["Disconnected", "Gap", "Reconnected"]

        await deferToThread(work)

    async def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent(self) -> None:
        def work(client: blocking.Client, messages: Subscription) -> None:
            with waiting(messages) as found:
                with patch.object(client._thread, "pid", -1), pytest.raises(ClientClosed):
                    messages.next(0.1)
                client.publish("cafe/7", b"x")
            assert found[0].payload == b"x"

        await self.with_subscription(work)

    async def test_on_event_does_not_wait_for_another_thread(self) -> None:
        def work(client: blocking.Client, messages: Subscription) -> None:
            async def take(_: object) -> None:
                messages.next(0.1)

            with waiting(messages) as found:
                with pytest.raises(RuntimeError, match="cannot be used in on_event and call"):
                    client.call(take)
                client.publish("cafe/7", b"x")
            assert found[0].payload == b"x"

        await self.with_subscription(work)
