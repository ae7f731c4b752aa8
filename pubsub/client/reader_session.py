"""A reader of a client: its lease, its stored position, and the place that a program has reached.

One program at a time has a reader: the session holds a lease of its name, which ends by itself
within seconds of the death of the program.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4

from pubsub.client.api_requests import ApiRequests, is_passing, seconds_in
from pubsub.client.client_errors import (
    ClientClosed,
    ClientError,
    ConnectFailed,
    ReaderHeld,
    RequestRefused,
    SubscriptionRefused,
)
from pubsub.client.client_url import ClientUrl
from pubsub.client.link_timing import Timing
from pubsub.client.messages import Message, MessageBatch, MixedBatch
from pubsub.client.runtime import Cancel, Runtime, Waiter
from pubsub.client.tickets import Ticket

_log = logging.getLogger("pubsub.client")
_Result = TypeVar("_Result")
# A lease is renewed this often while it lasts.
_RENEWALS = 4
_POLL_SECONDS, _LEAST_SECONDS = 1.0, 0.05
# The longest wait for a commit and the end of the lease, which ends by itself too.
_RELEASE_SECONDS = 1.0
_IN_USE, _NO_POSITION, _OTHER_HISTORY = "reader-in-use", "not-found", "epoch"


class ReaderPosition(NamedTuple):
    """The next message that a reader needs."""

    epoch: str
    offset: int


class TakenMessages:
    """The messages that a program has taken from a subscription, if it is that of a reader."""

    def __init__(self, is_counted: bool) -> None:
        self.position: ReaderPosition | None = None
        """Behind the last of them that is stored."""
        self._is_counted = is_counted

    def add(self, item: object) -> None:
        """All messages of ``item`` are taken, if it has some."""
        if self._is_counted and isinstance(item, MessageBatch):
            offset = item.last_offset()
            if item.epoch is not None and offset is not None:
                self.position = ReaderPosition(item.epoch, offset + 1)

    def each_of(self, item: MessageBatch | MixedBatch) -> Iterator[Message]:
        """Return the messages of ``item``, each of which is taken with it."""
        if self._is_counted and isinstance(item, MessageBatch):
            return self._each(item)
        return iter(item)

    def _each(self, batch: MessageBatch) -> Iterator[Message]:
        epoch = batch.epoch
        for message in batch:
            if epoch is not None and message.offset is not None:
                self.position = ReaderPosition(epoch, message.offset + 1)
            yield message


class ReaderSession:
    """The reader ``name`` of one subscription.

    It uses the first of the ``apis`` that answers. ``begin`` is called with the position at which
    it begins, as ``epoch:offset``, and ``fail`` with an error that ends it. ``start`` is the first
    offset of a reader without a position, None for the end of the history. Passing failures are
    repeated for ``timeout`` seconds; ``is_proved`` returns whether those of the first request are.
    """

    def __init__(
        self,
        runtime: Runtime,
        apis: Sequence[ApiRequests],
        name: str,
        start: int | None,
        begin: Callable[[str], None],
        fail: Callable[[ClientError], None],
        is_proved: Callable[[], bool],
        timing: Timing,
        timeout: float,
    ) -> None:
        self.name = name
        self.gone: Ticket[None] = Ticket()
        """Done when the name is released, or has to end by itself."""
        self._runtime = runtime
        self._apis = apis
        self._api = apis[0]
        self._start = start
        self._begin = begin
        self._fail = fail
        self._is_proved = is_proved
        self._timing = timing
        self._timeout = timeout
        self._holder = uuid4().hex
        self._path = f"/v1/readers/{quote(name, safe='')}"
        self._lease = f"/v1/leases/{quote(name, safe='')}"
        self._is_held = False
        # When the lease ends unless it is renewed, and the seconds of a lease.
        self._lease_end, self._seconds = 0.0, 0.0
        self._is_closed = False
        self._pauses: set[Waiter] = set()
        self._error: ClientError | None = None
        self._stored: ReaderPosition | None = None
        self._committing: Ticket[None] | None = None

    @property
    def target(self) -> ClientUrl:
        """The broker that it uses."""
        return self._api.target

    # The life of the session

    async def run(self) -> None:
        """Hold the name until ``close``."""
        try:
            try:
                await self._hold()
                if not self._is_closed:
                    await self._find_position()
                await self._renew_until_closed()
            except ClientError as error:
                self._error = error
                self._fail(error)
            if self._committing is not None:
                # Another program would begin at the position before it.
                await self._runtime.wait_for(self._committing)
            if self._is_held:
                await self._release()
        finally:
            self.gone.succeed(None)

    def close(self, why: ClientError | None = None) -> None:
        """Release the name. Later commits raise ``why``."""
        if not self._is_closed:
            self._is_closed = True
            self._error = self._error or why
            for waiter in self._pauses:
                waiter.wake()
            # The broker may not answer.
            cancel = self._runtime.call_later(_RELEASE_SECONDS, self._give_up)
            self.gone.when_done(partial(_call, cancel))

    def _give_up(self) -> None:
        self._api.close("the subscription was closed")
        self.gone.succeed(None)

    async def _hold(self) -> None:
        """Hold the name, after the lease that a killed program has left behind."""
        left = math.inf
        while not self._is_closed:
            try:
                await self._accepted(self._begin_lease)
                self._is_held = True
                return
            except ReaderHeld as error:
                # Leases are those of one broker.
                self._apis = (self._api,)
                seconds = error.seconds
                if seconds >= left:
                    # The lease was renewed: the other program runs.
                    raise
                left = seconds
            await self._pause(min(max(left, _LEAST_SECONDS), _POLL_SECONDS))

    async def _begin_lease(self) -> None:
        """Begin the lease at the first broker that answers. Raises ReaderHeld, ConnectFailed."""
        failures: list[str] = []
        for api in self._apis:
            self._api = api
            try:
                return await self._renew()
            except ConnectFailed as error:
                failures.append(str(error))
        raise ConnectFailed("; ".join(failures))

    async def _renew(self) -> None:
        """Begin or renew the lease. Raises ReaderHeld."""
        now = self._runtime.now()
        try:
            found = await self._api.json("PUT", self._lease, {"holder": self._holder})
        except RequestRefused as error:
            if error.code != _IN_USE:
                raise
            raise ReaderHeld(
                f"{self._api.target}: another program holds the reader {self.name!r}; choose "
                "another name, or stop that program",
                seconds_in(error.details),
            ) from None
        self._seconds = seconds_in(found)
        if not self._seconds:
            raise self._api.foreign()
        self._lease_end = now + self._seconds

    async def _renew_until_closed(self) -> None:
        while not self._is_closed:
            await self._pause(max(self._seconds / _RENEWALS, _LEAST_SECONDS))
            if self._is_closed:
                return
            try:
                await self._renew()
            except ReaderHeld:
                raise
            except ClientError as error:
                # The lease may last until the next time.
                _log.info("cannot renew the lease of reader %s: %s", self.name, error)

    async def _release(self) -> None:
        path = f"{self._lease}?{urlencode({'holder': self._holder})}"
        try:
            await self._api.call("DELETE", path, seconds=_RELEASE_SECONDS)
        except ClientError as error:
            _log.info("cannot release the reader %s: %s", self.name, error)

    async def _pause(self, seconds: float) -> None:
        """Return after ``seconds``, or when the session is closed."""
        if self._is_closed:
            return
        waiter = self._runtime.waiter()
        cancel = self._runtime.call_later(seconds, waiter.wake)
        self._pauses.add(waiter)
        try:
            await waiter.awaitable
        finally:
            self._pauses.discard(waiter)
            cancel()

    # Positions

    async def _find_position(self) -> None:
        """Begin at the stored position; store the first one of a reader without it.

        A program that is killed before its first commit gets its messages again.
        """
        found = await self._accepted(self._find)
        if found is not None:
            position = self._position_of(found, "offset")
        else:
            bounds = await self._accepted(lambda: self._api.json("GET", "/v1/bounds"))
            position = self._position_of(bounds, "next")
            if self._start is not None:
                position = position._replace(offset=self._start)
            await self._accepted(lambda: self._store(position))
        if not self._is_closed:
            self._begin(f"{position.epoch}:{position.offset}")

    async def _find(self) -> Mapping[str, object] | None:
        """Return the stored position, None without one."""
        try:
            return await self._api.json("GET", self._path)
        except RequestRefused as error:
            if error.code != _NO_POSITION:
                raise
            return None

    def _position_of(self, found: Mapping[str, object], name: str) -> ReaderPosition:
        epoch, offset = found.get("epoch"), found.get(name)
        if not isinstance(epoch, str) or not isinstance(offset, int):
            raise self._api.foreign()
        return ReaderPosition(epoch, offset)

    async def _accepted(self, request: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return the result of a request for the start; raises the error for the subscription."""
        try:
            return await self._insist(request, self._is_proved())
        except RequestRefused as error:
            text = f"the subscription with the reader {self.name!r} was refused: {error}"
            raise SubscriptionRefused(text) from None

    async def _store(self, position: ReaderPosition) -> None:
        body = {"offset": position.offset, "epoch": position.epoch}
        await self._api.call("PUT", self._path, body=body)

    async def commit(self, position: ReaderPosition | None) -> None:
        """Store ``position``, unless it is stored. Raises ClientError.

        Calls take turns, so that none replaces a later position.
        """
        while self._committing is not None:
            await self._runtime.wait_for(self._committing)
        if self._error is not None:
            raise copy(self._error)
        if self._is_closed:
            raise ClientClosed("the subscription was closed")
        if position is None or self._has(position):
            return
        turn = self._committing = Ticket()
        try:
            await self._insist(lambda: self._commit(position), True)
            self._stored = position
        finally:
            self._committing = None
            turn.succeed(None)

    def _has(self, position: ReaderPosition) -> bool:
        stored = self._stored
        return (
            stored is not None
            and stored.epoch == position.epoch
            and stored.offset >= position.offset
        )

    async def _commit(self, position: ReaderPosition) -> None:
        if self._runtime.now() >= self._lease_end:
            # The program was slow, and another one may have the name.
            await self._renew()
        try:
            await self._store(position)
        except RequestRefused as error:
            if error.code != _OTHER_HISTORY:
                raise
            # A crash of the broker has lost the message, and a Gap tells. Others get offsets again.
            _log.warning("the position of reader %s is not stored: %s", self.name, error)

    async def _insist(self, request: Callable[[], Awaitable[_Result]], repeats: bool) -> _Result:
        """Return the result of ``request``, which is repeated while it fails for the moment."""
        end, attempt = self._runtime.now() + self._timeout, 0
        while True:
            try:
                return await request()
            except (RequestRefused, ConnectFailed) as error:
                attempt += 1
                pause = self._timing.pause(attempt, random.random)
                late = self._runtime.now() + pause >= end
                if not (repeats and is_passing(error)) or late or self._is_closed:
                    raise
            await self._pause(pause)


def _call(cancel: Cancel) -> None:
    cancel()
