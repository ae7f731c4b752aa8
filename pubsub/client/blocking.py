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

import warnings
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, Never, TypeVar, overload

from pubsub.client import asyncio_runtime, base_client, subscription
from pubsub.client.blocking_subscription import Subscription
from pubsub.client.client_options import ClientOptions, takes_options
from pubsub.client.loop_thread import LoopThread, loop_thread
from pubsub.client.messages import Message
from pubsub.client.notices import Notice
from pubsub.client.request_checks import BytesLike
from pubsub.client.runtime import Cancel, Ending
from pubsub.wire.client_events import Level
from pubsub.wire.client_wire import Headers

_Result = TypeVar("_Result")

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
        events: Literal[False] = ..., reader: str | None = ...,
    ) -> Subscription[Never]: ...  # fmt: skip

    @overload
    def subscribe(
        self, *topics: str, start: int | None = ..., prefixes: Sequence[str] = ..., events: bool,
        reader: str | None = ...,
    ) -> Subscription[Notice]: ...  # fmt: skip

    def subscribe(
        self,
        *topics: str,
        start: int | None = None,
        prefixes: Sequence[str] = (),
        events: bool = False,
        reader: str | None = None,
    ) -> Subscription[Notice]:
        """See ``pubsub.client.Client.subscribe``; returns when the broker has accepted it."""
        made = self._thread.run(self._subscribe(topics, start, prefixes, events, reader))
        return Subscription(self, self._thread, made)

    async def _subscribe(
        self,
        topics: Sequence[str],
        start: int | None,
        prefixes: Sequence[str],
        events: bool,
        reader: str | None,
    ) -> subscription.Subscription[Notice]:
        made = self._client.subscribe(
            *topics, start=start, prefixes=prefixes, events=events, reader=reader
        )
        try:
            await made.accepted()
        except BaseException:
            made.close()
            raise
        return made

    def last(self, topic: str, count: int = 1) -> list[Message]:
        """See ``pubsub.client.Client.last``."""
        return self._thread.run(self._client.last(topic, count))

    def close(self, flush: bool = True) -> None:
        """See ``pubsub.client.Client.close``. In a process that was forked it does nothing."""
        if not self._thread.is_over:
            self._thread.run(self._client.close(flush))


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
