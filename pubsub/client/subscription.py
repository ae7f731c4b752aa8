"""A subscription of a client: an asynchronous iterator over messages or batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Generic, Never, TypeVar

from pubsub.client.client_errors import ClientError, NotExpressible
from pubsub.client.feed import Feed
from pubsub.client.messages import BATCHES, Message, MessageBatch, MixedBatch
from pubsub.client.notices import Notice
from pubsub.client.reader_session import ReaderPosition, ReaderSession, TakenMessages
from pubsub.client.runtime import Runtime, Waiter

if TYPE_CHECKING:
    # Python has defaults from 3.13 on.
    import typing_extensions

    NoticeItem = typing_extensions.TypeVar(
        "NoticeItem", bound=Notice, covariant=True, default=Never
    )
else:
    NoticeItem = TypeVar("NoticeItem", bound=Notice, covariant=True)
"""Notice with ``events=True``, else Never: then there are messages alone."""
_Item = TypeVar("_Item")


class Subscription(Generic[NoticeItem]):
    """Iterate with ``async for``; ``batches`` gives the messages as they arrive together.

    With ``events=True`` both also give notices (``pubsub.client.notices``) between the messages
    that they concern. As a context manager it ends with its block, and otherwise with ``close`` or
    when nothing references it any more. One coroutine may iterate; several may wait in
    ``next_item``, and each item is given to one of them. That of a reader has ``commit``.
    """

    def __init__(
        self,
        runtime: Runtime,
        feed: Feed,
        leave: Callable[[], None],
        reader: ReaderSession | None = None,
    ) -> None:
        self._runtime = runtime
        self._feed = feed
        self._leave = leave
        self._reader = reader
        self.taken = TakenMessages(reader is not None)
        self._waiters = _FeedWaiters()
        self._current: Iterator[Message] = iter(())
        # The rest of messages that arrived together, for `next_item` and `batches`.
        self._parts: Iterator[MessageBatch] = iter(())
        # Not a method of this object, which the feed would keep.
        feed.on_change = self._waiters.wake

    def __del__(self) -> None:
        # The broker would send messages that nobody can take, up to the limit at which the client
        # reads none for its other subscriptions either.
        if not self._feed.ended or self._feed.error is not None:
            self._runtime.call_from_any_thread(self._leave)

    async def __aenter__(self) -> Subscription[NoticeItem]:
        try:
            await self.accepted()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[Message | NoticeItem]:
        while True:
            # Those that are left when the loop ends are for the next one.
            for message in self._current:
                yield message
            if (item := self._get()) is None:
                item = await self._await_item(self._get, None)
            if item is None:
                return
            if isinstance(item, BATCHES):
                self._current = self.taken.each_of(item)
            else:
                yield item

    async def __anext__(self) -> Message | NoticeItem:
        for message in self._current:
            return message
        while True:
            item = await self.next_untaken()
            if item is None:
                raise StopAsyncIteration
            if not isinstance(item, BATCHES):
                return item
            self._current = self.taken.each_of(item)
            for message in self._current:
                return message

    async def batches(self) -> AsyncIterator[MessageBatch | NoticeItem]:
        """Yield the messages in batches, which is faster."""
        feed, new_waiter = self._feed, self._runtime.waiter
        while True:
            # As ``next_item``, without a coroutine for each.
            while (item := self._get_part()) is None and not feed.ended:
                await self._changed(new_waiter())
            if item is None:
                return
            self.taken.add(item)
            yield item

    async def accepted(self) -> None:
        """Return when the broker has accepted the subscription. Raises ClientError."""
        ticket = self._feed.accepted
        await self._runtime.wait_for(ticket)
        if ticket.error is not None:
            raise ticket.error

    async def next_item(self, seconds: float | None = None) -> MessageBatch | NoticeItem | None:
        """Return the next batch or notice; None at the end.

        Raises TimeoutError after ``seconds``, and ClientError. Nothing is lost by either, nor if
        the caller is cancelled.
        """
        if (item := self._get_part()) is None:
            item = await self._await_item(self._get_part, seconds)
        self.taken.add(item)
        return item

    async def next_whole(
        self, seconds: float | None = None
    ) -> MessageBatch | MixedBatch | NoticeItem | None:
        """As ``next_item``; messages of several topics that arrived together are one item."""
        item = await self.next_untaken(seconds)
        self.taken.add(item)
        return item

    async def next_untaken(
        self, seconds: float | None = None
    ) -> MessageBatch | MixedBatch | NoticeItem | None:
        """As ``next_whole``, for a caller that adds its messages to ``taken``."""
        if (item := self._get()) is None:
            item = await self._await_item(self._get, seconds)
        return item

    async def commit(self) -> None:
        """Store the position of the reader behind the last message that the program has taken.

        Returns when it is on disk. The messages before it do not come again. Raises ClientError.
        """
        await self.commit_at(self.taken.position)

    async def commit_at(self, position: ReaderPosition | None) -> None:
        """As ``commit``, of a position that ``taken`` had."""
        if self._reader is None:
            raise NotExpressible("the subscription has no reader; subscribe with reader=")
        await self._reader.commit(position)

    async def _await_item(
        self, get: Callable[[], _Item | None], seconds: float | None
    ) -> _Item | None:
        """Return the next item, when there is nothing yet."""
        feed, runtime = self._feed, self._runtime
        deadline = None if seconds is None else runtime.now() + seconds
        item: _Item | None = None
        while item is None and not feed.ended:
            left = None if deadline is None else deadline - runtime.now()
            if left is not None and left <= 0:
                raise TimeoutError(f"no message within {seconds:g} s")
            waiter = runtime.waiter()
            cancel = None if left is None else runtime.call_later(left, waiter.wake)
            try:
                await self._changed(waiter)
            finally:
                if cancel is not None:
                    cancel()
            item = get()
        return item

    def _get_part(self) -> MessageBatch | NoticeItem | None:
        """Return the next item for ``next_item``, if there is one."""
        item = self._get()
        if isinstance(item, MixedBatch):
            self._parts = item.parts()
            return next(self._parts)
        return item

    def _get(self) -> MessageBatch | MixedBatch | NoticeItem | None:
        if (part := next(self._parts, None)) is not None:
            return part
        try:
            # A feed has no notices unless it was made with ``events``.
            return self._feed.get()  # type: ignore[return-value]
        except ClientError:
            # It may have a connection of its own.
            self._leave()
            raise

    def close(self) -> None:
        """End the subscription; messages that have not been iterated over are dropped."""
        self._parts = iter(())
        self._leave()

    async def _changed(self, waiter: Waiter) -> None:
        """Return when the feed has changed, or ``waiter`` was woken."""
        self._waiters.add(waiter)
        try:
            await waiter.awaitable
        finally:
            self._waiters.discard(waiter)


class _FeedWaiters:
    """The calls that wait for a change of a feed. They keep their subscription."""

    def __init__(self) -> None:
        self._waiters: list[Waiter] = []

    def add(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)

    def discard(self, waiter: Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def wake(self) -> None:
        """Wake all: one that was woken for an item may have been cancelled meanwhile."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake()
