"""The stream of shared histories in JetStream.

``NatsStream`` is the broker's side. ``HistoryStream`` runs on nats-py's event loop, and uses the
connection of the moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from nats.errors import Error as NatsError
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure

from pubsub.backplane.engine.engine_errors import text_of_error, text_of_status
from pubsub.backplane.engine.jetstream import make_stream
from pubsub.backplane.engine.nats_work import Unusable
from pubsub.backplane.history.replica_stream import FETCHED, StreamAway, StreamMessage

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.js import JetStreamContext
    from nats.js.api import ClusterInfo
    from twisted.internet.defer import Deferred

    from pubsub.backplane.history.replica_stream import StreamWatcher

STREAM, ROOT = "pubsub_history", "pubsub.v1.h."
# Seconds for a request, and for one about the stream itself, which the start of a broker waits for.
# Seconds for which one pull waits, between signs of life meanwhile, and without any after which the
# reader is given up. The reader itself is removed by the engine after _FORGOTTEN.
_REQUEST, _ABOUT, _PULL, _HEARTBEAT, _SILENT, _FORGOTTEN = 5.0, 2.0, 20, 2, 5.0, 60.0
_MESSAGES = 1024
_NANOSECONDS = 10**9
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The limits that the broker that creates the stream gives to it; 0: no limit."""

    replicas: int
    max_bytes: int
    max_seconds: float

    def configuration(self) -> StreamConfig:
        """Return the stream."""
        return StreamConfig(
            name=STREAM,
            subjects=[f"{ROOT}*"],
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.OLD,
            storage=StorageType.FILE,
            num_replicas=self.replicas,
            max_bytes=self.max_bytes or -1,
            max_age=self.max_seconds,
            duplicate_window=min(self.max_seconds or 120.0, 120.0),
            deny_delete=True,
        )


class HistoryStream:
    """The stream as nats-py's loop sees it. ``client`` is the connection, None while there is none.

    A reader is a pull consumer that the engine forgets when it is unused.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self.client: Client | None = None
        self.identity = ""
        self._js: JetStreamContext
        self._reader: _Puller | None = None

    async def prepare(self, client: Client) -> None:
        """Make the stream unless it is there; raise Unusable if it cannot be used."""
        js = client.jetstream(timeout=_ABOUT)
        wanted = self._options.configuration()
        settings = "backplane-replicas, backplane-history-bytes and the limits of the account"
        info = await make_stream(js, wanted, f"stream {STREAM!r}", settings)
        _check(info.config, wanted)

    def ended(self) -> None:
        """The connection has ended."""
        self.client = None
        if self._reader is not None:
            self._reader.end("the connection to the engine has ended")
            self._reader = None

    async def begin(self, after: int) -> int:
        """See ``ReplicaStream``."""
        client = self._connected()
        if self._reader is not None:
            await self._reader.stop()
            self._reader = None
        await self.prepare(client)
        self._js = client.jetstream(timeout=_REQUEST)
        info = await self._js.stream_info(STREAM)
        # The engine keeps the time to the nanosecond; all of its servers say the same.
        self.identity = "" if info.created is None else info.created.isoformat()
        state = info.state
        # Of a stream without messages, nothing arrives that could be waited for.
        last = int(state.last_seq if state.messages else min(state.last_seq, after))
        if last < after and not _is_agreed(info.cluster):
            raise StreamAway("a server of the engine that was cut off has not caught up yet")
        consumer = await self._js.add_consumer(
            STREAM,
            ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=after + 1,
                ack_policy=AckPolicy.NONE,
                inactive_threshold=_FORGOTTEN,
                num_replicas=1,
                mem_storage=True,
            ),
        )
        reader = _Puller(client, consumer.name)
        await reader.begin()
        self._reader = reader
        return last

    async def fetch(self) -> Sequence[StreamMessage]:
        """See ``ReplicaStream``."""
        if self._reader is None:
            raise StreamAway("the engine is away")
        return await self._reader.fetch()

    async def publish(self, origin: str, data: bytes) -> None:
        """See ``ReplicaStream``."""
        self._connected()
        # Without headers, which would count to the largest message.
        await self._js.publish(ROOT + origin, data, timeout=_REQUEST)

    def _connected(self) -> Client:
        if self.client is None:
            raise StreamAway("the engine is away")
        return self.client


async def others_share(client: Client) -> bool:
    """Return whether brokers read the stream at present, or have done so in the last minute."""
    try:
        info = await client.jetstream(timeout=_ABOUT).stream_info(STREAM)
    except APIError:
        return False
    return bool(info.state.consumer_count)


class _Puller:
    """Pulls messages; another pull begins when all of the one before were fetched."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._inbox = client.new_inbox()
        self._subscription: Subscription
        self._arrived: deque[StreamMessage] = deque()
        self._changed = asyncio.Event()
        self._left = 0
        self._problem = ""

    async def begin(self) -> None:
        """Begin to listen."""
        self._subscription = await self._client.subscribe(self._inbox, cb=self._received)

    async def fetch(self) -> Sequence[StreamMessage]:
        """Return the messages that have arrived, once there are some."""
        while not self._arrived:
            if self._problem:
                raise StreamAway(self._problem)
            if not self._left:
                await self._pull()
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), _SILENT)
        found = tuple(self._arrived)
        self._arrived.clear()
        return found

    async def _pull(self) -> None:
        self._left = _MESSAGES
        request = {
            "batch": _MESSAGES,
            "max_bytes": max(FETCHED, 2 * self._client.max_payload),
            "expires": _PULL * _NANOSECONDS,
            "idle_heartbeat": _HEARTBEAT * _NANOSECONDS,
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self._name}"
        await self._client.publish(subject, json.dumps(request).encode(), reply=self._inbox)

    async def _received(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status")
        if status is None:
            origin = message.subject.removeprefix(ROOT)
            sequence = message.metadata.sequence.stream
            self._arrived.append(StreamMessage(sequence, origin, message.data))
            self._left = max(self._left - 1, 0)
        elif status in ("404", "408") or (status == "409" and _ends_pull(message)):
            self._left = 0
        elif status != "100":
            self._problem = text_of_status(status, (message.headers or {}).get("Description", ""))
        self._changed.set()

    def end(self, reason: str) -> None:
        """Fail the waiting calls."""
        self._problem = reason
        self._arrived.clear()
        self._changed.set()

    async def stop(self) -> None:
        """Fail the waiting calls, and listen no more."""
        self.end("another reader has begun")
        with contextlib.suppress(NatsError, OSError):
            await self._subscription.unsubscribe()


def _ends_pull(message: Msg) -> bool:
    description = (message.headers or {}).get("Description", "").lower()
    return "maxbytes" in description or "batch completed" in description


def _is_agreed(cluster: ClusterInfo | None) -> bool:
    """Return whether most servers of the stream have what the answer says.

    A server that was cut off answers while the others elect a leader, and without one.
    """
    replicas = (cluster.replicas if cluster is not None else None) or []
    if cluster is None or not replicas:
        return True
    current = 1 + sum([bool(one.current) for one in replicas])
    return bool(cluster.leader) and 2 * current > 1 + len(replicas)


def _check(found: StreamConfig, wanted: StreamConfig) -> None:
    """Raise Unusable if the stream is not as brokers need it."""
    for name in (
        "subjects", "retention", "discard", "storage", "num_replicas", "max_bytes", "max_age",
    ):  # fmt: skip
        has, needs = getattr(found, name), getattr(wanted, name)
        if has != needs and (has or needs):
            raise Unusable(
                f"its stream {STREAM!r} has {name} {_shown(has)}, and this broker needs "
                f"{_shown(needs)}; give all brokers the same settings, or change the stream"
            )
    if found.mirror or found.sources or found.sealed:
        raise Unusable(f"its stream {STREAM!r} is a mirror or sealed; remove it")


def _shown(value: object) -> str:
    return str(getattr(value, "value", value))


class NatsStream:
    """See ``ReplicaStream``. ``run`` runs a coroutine on nats-py's loop."""

    def __init__(
        self,
        stream: HistoryStream,
        run: Callable[[Callable[[], Coroutine[Any, Any, Any]]], Deferred[Any]],
        limit: Callable[[], int],
    ) -> None:
        self._stream = stream
        self._run = run
        self._limit = limit
        self.watcher: StreamWatcher | None = None

    @property
    def limit(self) -> int:
        """See ``ReplicaStream``."""
        return self._limit()

    @property
    def identity(self) -> str:
        """See ``ReplicaStream``."""
        return self._stream.identity

    def watch(self, watcher: StreamWatcher) -> None:
        """See ``ReplicaStream``."""
        self.watcher = watcher

    def begin(self, after: int) -> Deferred[int]:
        """See ``ReplicaStream``."""
        return self._away(self._run(lambda: self._stream.begin(after)))

    def fetch(self) -> Deferred[Sequence[StreamMessage]]:
        """See ``ReplicaStream``."""
        return self._away(self._run(self._stream.fetch))

    def publish(self, origin: str, data: bytes) -> Deferred[None]:
        """See ``ReplicaStream``."""
        return self._away(self._run(lambda: self._stream.publish(origin, data)))

    @staticmethod
    def _away(done: Deferred[_Result]) -> Deferred[_Result]:
        def away(failure: Failure) -> Failure:
            error = failure.value
            if isinstance(error, StreamAway | CancelledError):
                return failure
            return Failure(StreamAway(f"the engine: {text_of_error(error)}"))

        return done.addErrback(away)
