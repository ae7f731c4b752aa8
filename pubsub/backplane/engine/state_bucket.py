"""The shared state's bucket of JetStream: a stream that keeps the last value of each key.

All methods run on the event loop of nats-py; the broker calls ``nats_state.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError, NotFoundError

from pubsub.backplane.engine.engine_errors import text_of_error
from pubsub.backplane.engine.jetstream import make_stream, permitted
from pubsub.backplane.engine.nats_work import Unusable
from pubsub.backplane.state import state_format
from pubsub.backplane.state.outdated import Outdated
from pubsub.backplane.state.shared_state import StateEntry
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

    from pubsub.backplane.state.shared_state import StateWatcher

BUCKET = "pubsub"
_STREAM = f"KV_{BUCKET}"
_ROOT = f"$KV.{BUCKET}."
# Seconds for a request, and between two looks at whether the watch has missed something.
_REQUEST, _LOOK = 2.0, 5.0
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
# The numbers of errors: of a key with another revision, and of one that the servers of a cluster
# are about to change; and the pauses in seconds after which the latter is tried again.
_WRONG_SEQUENCE, _UNDER_WAY = 10071, 10164
_PAUSES = (0.01, 0.03, 0.1, 0.3)
# Entries that are requested at once: the reactor has others to serve.
_TOGETHER = 128
_CONSUMER = ConsumerConfig(
    filter_subjects=[
        _ROOT + state_format.KEY,
        *[f"{_ROOT}{beginning}>" for beginning in state_format.FOLLOWED],
    ],
    deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
    ack_policy=AckPolicy.NONE,
    inactive_threshold=60.0,
    mem_storage=True,
)


def _configuration(replicas: int) -> StreamConfig:
    return StreamConfig(
        name=_STREAM,
        subjects=[f"{_ROOT}>"],
        max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW,
        storage=StorageType.FILE,
        num_replicas=replicas,
        allow_rollup_hdrs=True,
        deny_delete=True,
        allow_msg_ttl=True,
    )


class StateBucket:
    """Keeps up with the bucket; ``call`` runs a call after the present pass of the loop.

    ``last_error`` returns the last error of the connection. ``prepare`` and ``keep`` are given
    a connection, and ``put`` uses the present one.
    """

    def __init__(
        self, replicas: int, call: Callable[..., object], last_error: Callable[[], str]
    ) -> None:
        self._last_error = last_error
        self._replicas = replicas
        self._call = call
        self.watchers: list[StateWatcher] = []
        self._js: JetStreamContext | None = None
        self._seen = 0

    @property
    def is_there(self) -> bool:
        """Whether there is a connection, and the bucket."""
        return self._js is not None

    async def prepare(self, client: Client) -> None:
        """Make the bucket unless it is there; raise Unusable if it cannot be used."""
        with permitted(self._last_error):
            await self._prepare(client)

    async def _prepare(self, client: Client) -> None:
        js = client.jetstream(timeout=_REQUEST)
        settings = "backplane-replicas and the limits of the account"
        wanted = _configuration(self._replicas)
        info = await make_stream(js, wanted, f"bucket {BUCKET!r}", settings)
        _check(info.config)
        await self._check_format(js)

    async def _check_format(self, js: JetStreamContext) -> None:
        # This shows that the account may write, too.
        with contextlib.suppress(Outdated):
            await _put(js, state_format.KEY, state_format.new_format(), 0, 0)
            return
        found = (await js.get_last_msg(_STREAM, _ROOT + state_format.KEY)).data
        if not state_format.is_readable(found):
            raise Unusable(f"the bucket {BUCKET!r} belongs to another version of the broker")

    async def keep(self, client: Client) -> None:
        """Watch the bucket until the connection ends."""
        while not client.is_closed:
            with contextlib.suppress(TimeoutError, NatsError, OSError):
                await self.prepare(client)
                await self._watch(client)
            self._away()
            await asyncio.sleep(1.0)

    async def _watch(self, client: Client) -> None:
        """Watch until something was missed, the bucket is removed or the connection ends."""
        js = client.jetstream(timeout=_REQUEST)
        source = await js.pull_subscribe(f"{_ROOT}>", stream=_STREAM, config=_CONSUMER)
        self._seen, is_first, pending = 0, True, _TOGETHER
        self._js = js
        was_missing = False
        while not client.is_closed:
            try:
                messages = await source.fetch(max(min(pending, _TOGETHER), 1), timeout=_LOOK)
            except TimeoutError:
                messages = []
            # nats-py may return none: after a status of a temporary error it waits for no other.
            if not messages:
                is_missing = await self._is_missing(source)
                if was_missing and is_missing:
                    return
                was_missing = is_missing
                continue
            was_missing = False
            pending = messages[-1].metadata.num_pending
            self._tell(messages)
            if is_first and not pending:
                # There is always the key of the format.
                is_first = False
                for watcher in self.watchers:
                    self._call(watcher.state_complete)

    async def _is_missing(self, source: JetStreamContext.PullSubscription) -> bool:
        """Return whether the engine has changes that were not reported.

        It may also be on its way.
        """
        found = await source.consumer_info()
        delivered = 0 if found.delivered is None else found.delivered.stream_seq
        return bool(found.num_pending) or self._seen < delivered

    def _away(self) -> None:
        if self._js is not None:
            self._js = None
            for watcher in self.watchers:
                self._call(watcher.state_away)

    def ended(self) -> None:
        """The connection has ended."""
        self._away()

    def _tell(self, messages: Sequence[Msg]) -> None:
        entries = []
        for message in messages:
            self._seen = revision = message.metadata.sequence.stream
            # Programs of NATS mark a removed key by a header.
            if not message.headers or "KV-Operation" not in message.headers:
                entries.append(StateEntry(message.subject[len(_ROOT) :], message.data, revision))
        if entries:
            for watcher in self.watchers:
                self._call(watcher.state_changed, entries)

    async def get(self, key: str) -> StateEntry | None:
        """See ``ISharedState``."""
        if self._js is None:
            raise BackplaneAway("the engine is away")
        try:
            last = await self._js.get_last_msg(_STREAM, _ROOT + key)
        except NotFoundError:
            return None
        except (TimeoutError, NatsError, OSError):
            raise BackplaneAway("the engine does not answer") from None
        if last.headers and "KV-Operation" in last.headers:
            return None
        return StateEntry(key, last.data or b"", int(last.seq or 0))

    async def put(self, key: str, value: bytes, expected: int, seconds: int) -> int:
        """See ``ISharedState``."""
        if self._js is None:
            raise BackplaneAway("the engine is away")
        try:
            return await _put(self._js, key, value, expected, seconds)
        except APIError as error:
            raise BackplaneAway(f"the engine refuses it: {text_of_error(error)}") from None
        except MaxPayloadError:
            raise BackplaneAway("the value is larger than max_payload of the engine") from None
        except (TimeoutError, NatsError, OSError):
            raise BackplaneAway("the engine does not answer") from None


async def _put(js: JetStreamContext, key: str, value: bytes, expected: int, seconds: int) -> int:
    for pause in _PAUSES:
        try:
            return await _put_once(js, key, value, expected, seconds)
        except APIError as error:
            if error.err_code != _UNDER_WAY:
                raise
        # Then it is known which revision the key has.
        await asyncio.sleep(pause)
    return await _put_once(js, key, value, expected, seconds)


async def _put_once(
    js: JetStreamContext, key: str, value: bytes, expected: int, seconds: int
) -> int:
    headers: dict[str, Any] = {_EXPECTED: str(expected)}
    try:
        done = await js.publish(
            _ROOT + key,
            value,
            stream=_STREAM,
            headers=headers,
            msg_ttl=seconds or None,
        )
    except APIError as error:
        if error.err_code != _WRONG_SEQUENCE:
            raise
    else:
        return int(done.seq)
    try:
        last = await js.get_last_msg(_STREAM, _ROOT + key)
    except NotFoundError:
        raise Outdated(None, 0) from None
    raise Outdated(last.data, int(last.seq or 0))


def _check(config: StreamConfig) -> None:
    """Raise Unusable for a stream that another program has made for something else."""
    fits = (
        config.subjects == [f"{_ROOT}>"]
        and config.max_msgs_per_subject == 1
        and config.allow_msg_ttl
        and not config.max_age
        and (config.max_msgs or -1) < 0
        and (config.max_bytes or -1) < 0
        and StorageType(config.storage or StorageType.FILE) is StorageType.FILE
    )
    if not fits:
        raise Unusable(
            f"the bucket {BUCKET!r} has other settings than the brokers need; remove it, and the "
            "brokers create it again, or use another account"
        )
