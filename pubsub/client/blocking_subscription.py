"""A subscription of a blocking client: an iterator over messages, for any number of threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Generic, TypeVar

from pubsub.client import subscription
from pubsub.client.loop_thread import LoopThread
from pubsub.client.messages import BATCHES, Message, MessageBatch, MixedBatch
from pubsub.client.notices import Notice
from pubsub.client.subscription import NoticeItem

_Item = TypeVar("_Item")
_Whole = MessageBatch | MixedBatch | Notice


class Subscription(Generic[NoticeItem]):
    """Iterate over messages, or over ``batches``; see ``pubsub.client.Subscription``."""

    def __init__(
        self, client: object, thread: LoopThread, inner: subscription.Subscription[NoticeItem]
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
        item = self._next_of(self._begun, until)
        if not isinstance(item, Iterator):
            # A feed has no notices unless it was made with ``events``.
            return item  # type: ignore[return-value]
        self._current = item
        return next(item)

    def _next_part(self, until: float | None) -> MessageBatch | NoticeItem | None:
        item = self._next_of(_divided, until)
        self._inner.taken.add(item)
        return item  # type: ignore[return-value]

    def _begun(self, item: _Whole) -> tuple[Iterator[Message] | Notice, tuple[()]]:
        """Return the messages of an item, or the notice, and no rest."""
        return (self._inner.taken.each_of(item) if isinstance(item, BATCHES) else item), ()

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
        item = await self._inner.next_untaken(seconds)
        if item is not None:
            self._taken.append(item)

    def commit(self) -> None:
        """See ``pubsub.client.Subscription.commit``."""
        # That of now, as other threads may take messages meanwhile.
        self._thread.run(self._inner.commit_at(self._inner.taken.position))

    def close(self) -> None:
        """See ``pubsub.client.Subscription.close`` and ``Client.close``."""
        if not self._thread.is_over:
            self._thread.run(self._close())

    async def _close(self) -> None:
        self._inner.close()
        self._taken.clear()


def _divided(item: _Whole) -> tuple[MessageBatch | Notice, Sequence[MessageBatch]]:
    """Return the first messages of an item, which are of one topic, or the notice, and the rest."""
    if not isinstance(item, MixedBatch):
        return item, ()
    first, *rest = item.parts()
    return first, rest


def _left(until: float | None) -> float:
    """Return the seconds until then, for a lock: -1 for no limit."""
    return -1 if until is None else min(max(until - monotonic(), 0.0), threading.TIMEOUT_MAX)
