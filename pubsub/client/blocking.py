"""The client library for programs without an event loop, such as scripts and Spark's workers.

    with connect("nsd://127.0.0.1:7071", client_id="bob") as client:
        with client.subscribe("orders") as messages:
            client.publish("orders", "hello", confirm=True)
            for message in messages:
                print(message.payload)

The connections live in a thread (``loop_thread.py``). A client may be used by several threads, and
does not survive a fork: the new process makes its own.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Generic, Literal, Never, TypeVar, overload

from pubsub.client import asyncio_runtime, base_client, subscription
from pubsub.client.client_options import ClientOptions, takes_options
from pubsub.client.loop_thread import LoopThread, loop_thread
from pubsub.client.messages import BATCHES, Message, MessageBatch, MixedBatch
from pubsub.client.notices import Notice
from pubsub.client.request_checks import BytesLike
from pubsub.client.runtime import Cancel, Ending
from pubsub.client.subscription import NoticeItem
from pubsub.wire.client_events import Level
from pubsub.wire.client_wire import Headers

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")
_Whole = MessageBatch | MixedBatch | Notice

__all__ = ["Client", "Subscription", "connect"]


@takes_options
def connect(options: ClientOptions) -> Client:
    """Return a client of the broker at ``url``; the options are those of ``pubsub.client``.

    Nothing is connected yet. ``on_event`` is called in the client's thread, in which the methods of
    blocking clients raise RuntimeError. Raises InvalidUrl.
    """
    return Client(options)


class Client:
    """As ``pubsub.client.Client``, but methods return when their work is done."""

    def __init__(self, options: ClientOptions) -> None:
        self._thread = loop_thread()
        self._runtime, self._client = self._thread.run(self._make(options))

    async def _make(self, options: ClientOptions) -> tuple[_ThreadRuntime, base_client.Client]:
        runtime = _ThreadRuntime(self._thread)
        return runtime, base_client.Client(runtime, options)

    def __del__(self) -> None:
        # A client whose constructor failed has none. The thread would keep the connections open.
        runtime = getattr(self, "_runtime", None)
        if runtime is not None and runtime.is_open and not self._thread.is_over:
            self._thread.abandon(runtime.end)
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return repr(self._client)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.close(flush=error is None)

    @overload
    def publish(
        self, topic: str, payload: BytesLike | str, *, confirm: Literal[False] = ...,
        sender: BytesLike | str | None = ..., headers: Headers | None = ...,
    ) -> None: ...  # fmt: skip

    @overload
    def publish(
        self, topic: str, payload: BytesLike | str, *, confirm: Literal[True] | Level,
        sender: BytesLike | str | None = ..., headers: Headers | None = ...,
    ) -> Level: ...  # fmt: skip

    @overload
    def publish(
        self, topic: str, payload: BytesLike | str, *, confirm: bool | Level,
        sender: BytesLike | str | None = ..., headers: Headers | None = ...,
    ) -> Level | None: ...  # fmt: skip

    def publish(
        self,
        topic: str,
        payload: BytesLike | str,
        *,
        confirm: bool | Level = False,
        sender: BytesLike | str | None = None,
        headers: Headers | None = None,
    ) -> Level | None:
        """See ``pubsub.client.Client.publish``."""
        work = self._client.publish(topic, payload, confirm=confirm, sender=sender, headers=headers)
        return self._thread.run(work)

    @overload
    def publish_many(
        self, topic: str, payloads: Sequence[BytesLike | str], confirm: Literal[False] = ..., *,
        sender: BytesLike | str | None = ..., headers: Headers | None = ...,
    ) -> None: ...  # fmt: skip

    @overload
    def publish_many(
        self, topic: str, payloads: Sequence[BytesLike | str], confirm: bool | Level, *,
        sender: BytesLike | str | None = ..., headers: Headers | None = ...,
    ) -> Level | None: ...  # fmt: skip

    def publish_many(
        self,
        topic: str,
        payloads: Sequence[BytesLike | str],
        confirm: bool | Level = False,
        *,
        sender: BytesLike | str | None = None,
        headers: Headers | None = None,
    ) -> Level | None:
        """See ``pubsub.client.Client.publish_many``."""
        work = self._client.publish_many(topic, payloads, confirm, sender=sender, headers=headers)
        return self._thread.run(work)

    def call(self, work: Callable[[base_client.Client], Coroutine[Any, Any, _Result]]) -> _Result:
        """Return the result of ``work(client)``, which runs in the client's thread.

        Many requests in one call cost less than one call for each.
        """
        return self._thread.run(work(self._client))

    def flush(self) -> None:
        """See ``pubsub.client.Client.flush``."""
        self._thread.run(self._client.flush())

    @overload
    def subscribe(
        self, *topics: str, start: int | None = ..., prefixes: Sequence[str] = ...,
        events: Literal[False] = ...,
    ) -> Subscription[Never]: ...  # fmt: skip

    @overload
    def subscribe(
        self, *topics: str, start: int | None = ..., prefixes: Sequence[str] = ..., events: bool
    ) -> Subscription[Notice]: ...

    def subscribe(
        self,
        *topics: str,
        start: int | None = None,
        prefixes: Sequence[str] = (),
        events: bool = False,
    ) -> Subscription[Notice]:
        """See ``pubsub.client.Client.subscribe``; returns when the broker has accepted it."""
        made = self._thread.run(self._subscribe(topics, start, prefixes, events))
        return Subscription(self, self._thread, made)

    async def _subscribe(
        self, topics: Sequence[str], start: int | None, prefixes: Sequence[str], events: bool
    ) -> subscription.Subscription[Notice]:
        made = self._client.subscribe(*topics, start=start, prefixes=prefixes, events=events)
        try:
            await made.accepted()
        except BaseException:
            made.close()
            raise
        return made

    def close(self, flush: bool = True) -> None:
        """See ``pubsub.client.Client.close``. In a process that was forked it does nothing."""
        if not self._thread.is_over:
            self._thread.run(self._client.close(flush))


class Subscription(Generic[NoticeItem]):
    """Iterate over messages, or over ``batches``; see ``pubsub.client.Subscription``."""

    def __init__(
        self, client: Client, thread: LoopThread, inner: subscription.Subscription[NoticeItem]
    ) -> None:
        # A client that is not used any more is closed.
        self._client = client
        self._thread = thread
        self._inner = inner
        self._current: Iterator[Message] = iter(())
        # One thread waits for an item; the others, for what it leaves of it. It knows its owner: an
        # exception of a signal handler can come at any moment, also when it has just been acquired.
        self._turn = threading.RLock()
        # Items that the loop has given out and no caller has got yet: an exception in a caller's
        # thread, such as KeyboardInterrupt, can come in between.
        self._taken: deque[_Whole] = deque()

    def __enter__(self) -> Subscription[NoticeItem]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message | NoticeItem]:
        while (item := self.next()) is not None:
            yield item
            # Those that are left when the loop ends are for the next one.
            yield from self._current

    def next(self, seconds: float | None = None) -> Message | NoticeItem | None:
        """Return the next message; None at the end. Raises TimeoutError after ``seconds``.

        Several threads may call it: each message is given to one. ``next_item`` and ``batches`` do
        not give the messages of a batch that was begun here, or by iterating.
        """
        return self._in_turn(self._next_message, seconds)

    def batches(self) -> Iterator[MessageBatch | NoticeItem]:
        """Yield the messages in batches, which is faster."""
        while (item := self.next_item()) is not None:
            yield item

    def next_item(self, seconds: float | None = None) -> MessageBatch | NoticeItem | None:
        """Return the next batch or notice; None at the end.

        Raises TimeoutError after ``seconds``, and ClientError. Nothing is lost by an exception that
        interrupts the wait, such as KeyboardInterrupt. Several threads may call it.
        """
        return self._in_turn(self._next_part, seconds)

    def _in_turn(self, take: Callable[[float | None], _Item], seconds: float | None) -> _Item:
        """Return the result of ``take``, which one thread calls at a time, until ``seconds``."""
        # Where it would wait for ever: the thread that has the turn may be in another process.
        self._thread.check_caller()
        until = None if seconds is None else monotonic() + seconds
        try:
            if not self._turn.acquire(timeout=_left(until)):
                raise TimeoutError
            item = take(until)
            self._turn.release()
        except BaseException as error:
            # Unless this thread does not have it.
            with suppress(RuntimeError):
                while True:
                    self._turn.release()
            if type(error) is TimeoutError and seconds is not None:
                raise TimeoutError(f"no message within {seconds:g} s") from None
            raise
        return item

    def _next_message(self, until: float | None) -> Message | NoticeItem | None:
        for message in self._current:
            return message
        item = self._next_of(_begun, until)
        if not isinstance(item, Iterator):
            # A feed has no notices unless it was made with ``events``.
            return item  # type: ignore[return-value]
        self._current = item
        return next(item)

    def _next_part(self, until: float | None) -> MessageBatch | NoticeItem | None:
        return self._next_of(_divided, until)  # type: ignore[return-value]

    def _next_of(
        self, divide: Callable[[_Whole], tuple[_Item, Sequence[_Whole]]], until: float | None
    ) -> _Item | None:
        """Return what ``divide`` takes of the next item; the rest is for later calls.

        Returns None at the end. Raises TimeoutError, and ClientError.
        """
        if not self._taken:
            self._thread.run(self._take(None if until is None else _left(until)))
        # Another thread may close the subscription.
        with suppress(IndexError):
            # It is divided before it is taken, because an exception could come in between.
            item, rest = divide(self._taken[0])
            self._taken.popleft()
            self._taken.extendleft(reversed(rest))
            return item
        return None

    async def _take(self, seconds: float | None) -> None:
        item = await self._inner.next_whole(seconds)
        if item is not None:
            self._taken.append(item)

    def close(self) -> None:
        """See ``pubsub.client.Subscription.close`` and ``Client.close``."""
        if not self._thread.is_over:
            self._thread.run(self._close())

    async def _close(self) -> None:
        self._inner.close()
        self._taken.clear()


def _begun(item: _Whole) -> tuple[Iterator[Message] | Notice, tuple[()]]:
    """Return the messages of an item, or the notice, and no rest."""
    return (iter(item) if isinstance(item, BATCHES) else item), ()


def _divided(item: _Whole) -> tuple[MessageBatch | Notice, Sequence[MessageBatch]]:
    """Return the first messages of an item, which are of one topic, or the notice, and the rest."""
    if not isinstance(item, MixedBatch):
        return item, ()
    first, *rest = item.parts()
    return first, rest


def _left(until: float | None) -> float:
    """Return the seconds until then, for a lock: -1 for no limit."""
    return -1 if until is None else min(max(until - monotonic(), 0.0), threading.TIMEOUT_MAX)


class _ThreadRuntime(asyncio_runtime.AsyncioRuntime):
    """The loop of ``thread``, which runs until the program ends."""

    callback_errors = (Exception, SystemExit)

    def __init__(self, thread: LoopThread) -> None:
        super().__init__()
        self._thread = thread

    @property
    def is_open(self) -> bool:
        """False once the client is closed."""
        return self.end in self._thread.at_end

    def at_end(self, end: Ending) -> Cancel:
        """See ``Runtime``."""
        self.end = end
        self._thread.at_end.add(end)
        return lambda: self._thread.at_end.discard(end)

    def call_from_any_thread(self, function: Callable[[], None]) -> None:
        """See ``Runtime``. The connections of a process that was forked are those of its parent."""
        if not self._thread.is_over:
            super().call_from_any_thread(function)
