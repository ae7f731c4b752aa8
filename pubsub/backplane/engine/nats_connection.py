"""The connection to NATS: nats-py on an event loop inside the reactor, and a tap for messages.

nats-py connects, subscribes and asks the engine for its state; messages are written and read
beside it (``nats_tap.py``). The methods of ``Watcher`` are called outside of the event loop.

One connection is one ``nats.aio.client.Client``, which never reconnects by itself: after its end
another one is made, with another link, the subscriptions of now, and nothing that waited before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from nats.errors import AuthorizationError, InvalidUserCredentialsError, StaleConnectionError
from nats.errors import Error as NatsError
from twisted.internet.defer import Deferred, fail
from twisted.logger import Logger

from pubsub.backplane.engine.cluster_watch import watch_cluster
from pubsub.backplane.engine.engine_client import EngineClient
from pubsub.backplane.engine.engine_errors import is_denial, reason_of_end, text_of_error
from pubsub.backplane.engine.engine_servers import EngineServers
from pubsub.backplane.engine.engine_url import EngineOptions, shown
from pubsub.backplane.engine.jetstream import check_jetstream, permitted
from pubsub.backplane.engine.nats_history import others_share
from pubsub.backplane.engine.nats_tap import Tap, TappedLoop
from pubsub.backplane.engine.nats_work import (
    Away,
    Change,
    Outbound,
    Unusable,
    Watcher,
    first_end,
    nbytes_of,
    reported,
    together,
)
from pubsub.backplane.engine.state_bucket import StateBucket
from pubsub.backplane.messages.envelopes import messages_of
from pubsub.backplane.messages.subjects import name_of

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from pubsub.backplane.engine.nats_history import HistoryStream

log = Logger()
OLDEST = (2, 12)
"""The oldest version of nats-server that is supported."""
# Seconds to connect, between two attempts, and without an answer after which a connection is given
# up: two pings, or a flush.
_CONNECT, _PAUSE, PING, _FLUSH = 2.0, 0.5, 5, 10
# Bytes after which the engine is asked whether it has all of them.
_UNANSWERED = 1024**2
# Seconds that closing a connection takes at most, and the end of all.
_CLOSE, _END = 2.0, 6.0
# Bytes up to which envelopes are sent together.
_TOGETHER = 64 * 1024

_OTHERS_SHARE = (
    "other brokers share a history, and this one does not; give all of them the same "
    "backplane-history"
)
# The text of a server, and nats-py's form of it in most cases.
_VIOLATION = "authorization violation"
_REFUSED = (AuthorizationError, InvalidUserCredentialsError)
_Result = TypeVar("_Result")


class NatsConnection:
    """Keeps a connection."""

    def __init__(self, options: EngineOptions, watcher: Watcher, reactor: Any) -> None:
        self._options = options
        self._watcher = watcher
        self._reactor = reactor
        # Calls of the watcher, which wait for the end of a pass of the loop.
        self._calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.history: HistoryStream | None = None
        self.state = StateBucket(options.replicas, self._call, lambda: self._last_error)
        # Made in `start`, as the process may fork before.
        self._loop: TappedLoop
        self._keeping: asyncio.Task[None]
        self._tasks: set[asyncio.Task[None]] = set()
        self._tried = self._stopping = False
        self.problem: str | None = None
        """The reason why the engine cannot be used, if the first attempt has shown one."""
        self._servers = EngineServers(options)
        self._client: Client | None = None
        self._subjects: set[str] = set()
        self._subscriptions: dict[str, Subscription] = {}
        self._work = asyncio.Event()
        self._changes: deque[Change] = deque()
        self._outgoing: deque[Sequence[Outbound]] = deque()
        # Bytes that were sent: those that are not reported, and those that are not answered.
        self._sent = self._unanswered = 0
        self._tap: Tap
        # Whether a server has shown that it has JetStream.
        self._checked = False
        self._last_error = ""
        self._ready: deque[tuple[str, bytes]] = deque()
        self._waiting = 0
        self._overflow: Counter[str] = Counter()

    def start(self, seconds: float) -> None:
        """Connect; wait up to this time until it is known whether the engine can be used."""
        self._loop = TappedLoop(self._reactor, self._after_pass, self._arrived)
        self._loop.set_exception_handler(unhandled)
        self._keeping = self._loop.create_task(self._keep_connected())
        self._loop.begin(seconds)

    def stop(self) -> Deferred[None]:
        """Send the waiting bytes and end."""
        ended: Deferred[None] = Deferred()

        def end() -> None:
            self._loop.end()
            ended.callback(None)

        self._keeping.add_done_callback(lambda _: self._call(end))
        self._loop.call_later(_END, self._keeping.cancel)
        self._stopping = True
        self._loop.run_pass(self._work.set)
        return ended

    def hand_over(self, changes: Sequence[Change], messages: Sequence[Outbound]) -> None:
        """Change the subscriptions and send."""
        for change in changes:
            (self._subjects.add if change.begins else self._subjects.discard)(change.subject)
        if self._client is None:
            self._lose(messages)
        else:
            self._changes.extend(changes)
            if self._unanswered >= _UNANSWERED:
                self._outgoing.append(messages)
            elif messages:
                self._publish(messages)
            if changes or self._unanswered >= _UNANSWERED:
                self._loop.run_pass(self._work.set)
        self._after_pass()

    def _call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call ``function`` after this pass."""
        self._calls.append((function, arguments))

    def _after_pass(self) -> None:
        if self._overflow:
            counts, self._overflow = self._overflow, Counter()
            self._call(self._watcher.overflowed, counts)
        if self._ready:
            self._call(self._watcher.arrived)
        calls, self._calls = self._calls, []
        for function, arguments in calls:
            try:
                function(*arguments)
            except Exception:
                log.failure("backplane: an event of the engine was not handled")

    def run(self, make: Callable[[], Coroutine[Any, Any, _Result]]) -> Deferred[_Result]:
        """Run a coroutine in the loop; fails with Away if the connection ends meanwhile."""
        done: Deferred[_Result] = Deferred()
        if self._stopping:
            return fail(Away("the broker stops"))
        task = self._loop.create_task(reported(make, done, self._call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return done

    def take(self, nbytes: int) -> list[tuple[str, bytes]]:
        """Return received data by topic, up to about ``nbytes``; more is reported again."""
        found: list[tuple[str, bytes]] = []
        while self._ready and nbytes > 0:
            one = self._ready.popleft()
            self._waiting -= len(one[1])
            nbytes -= len(one[1])
            found.append(one)
        if self._ready:
            self._watcher.more()
        return found

    def _lose(self, messages: Sequence[Outbound]) -> None:
        if not messages:
            return
        counts: Counter[str] = Counter()
        for one in messages:
            counts[one.topic] += one.number
        self._call(self._watcher.lost, counts)
        self._call(self._watcher.sent, nbytes_of(messages))

    async def _keep_connected(self) -> None:
        for attempt, url in enumerate(self._servers, 1):
            if self._stopping:
                return
            try:
                await self._connection(url)
            except Unusable as error:
                self._checked = False
                if not self._tried:
                    self.problem = str(error)
                    self._is_tried()
                self._call(self._watcher.unusable, str(error))
            except Exception as error:
                if not isinstance(error, TimeoutError | NatsError | OSError | ValueError):
                    # A defect. Nothing else makes a connection, so the attempts go on.
                    log.failure("backplane: connecting to the engine has failed")
                self._call(self._watcher.away, self._last_error or text_of_error(error))
            if attempt >= len(self._options.servers.urls):
                self._is_tried()
            if not self._stopping:
                await asyncio.sleep(_PAUSE)

    def _is_tried(self) -> None:
        if not self._tried:
            self._tried = True
            # Ends the waiting of `begin`.
            self._loop.stop()

    async def _connection(self, url: str) -> None:
        """Connect to ``url`` and return when the connection has ended."""
        self._last_error = ""
        options = await self._servers.options_of(url)
        client, ended = EngineClient(options["tls"] is not None), asyncio.Event()
        try:
            await self._connect(client, ended, url, options)
            self._check_version(client)
            if not self._checked:
                await self._prepare(client)
            await self._subscribe_all(client)
            if self.history is not None:
                self.history.client = client
            assert self._loop.tap is not None
            self._client, self._tap, self._unanswered = client, self._loop.tap, 0
            self._call(self._watcher.connected, shown(url), client.max_payload)
            self._is_tried()
            problem = await first_end(
                self._work_off(client),
                ended.wait(),
                self._check_again(client),
                self.state.keep(client),
            )
            if isinstance(problem, Unusable):
                raise problem
            if not self._stopping:
                why = self._last_error or reason_of_end(problem, client)
                self._call(self._watcher.away, why, self._loop.silence)
        finally:
            self._client = None
            if self.history is not None:
                self.history.ended()
            self.state.ended()
            self._subscriptions.clear()
            self._report_sent()
            while self._outgoing:
                self._lose(self._outgoing.popleft())
            with contextlib.suppress(TimeoutError, NatsError, OSError):
                await asyncio.wait_for(client.close(), _CLOSE)
            await cancel_others()

    async def _prepare(self, client: Client) -> None:
        with permitted(lambda: self._last_error):
            await check_jetstream(client, _CONNECT)
            if self.history is not None:
                await self.history.prepare(client)
            await self.state.prepare(client)
        self._checked = True

    async def _connect(
        self, client: Client, ended: asyncio.Event, url: str, options: Mapping[str, Any]
    ) -> None:
        async def closed() -> None:
            ended.set()

        async def failed(error: Exception) -> None:
            self._last_error = text_of_error(error)
            ends = isinstance(error, OSError | StaleConnectionError)
            if self._client is client and not ended.is_set() and not ends:
                lasting = is_denial(self._last_error)
                self._call(self._watcher.complained, self._last_error, lasting)

        try:
            await client.connect(
                shown(url),
                error_cb=failed,
                closed_cb=closed,
                name="pubsub broker",
                no_echo=True,
                # They are all made by `subjects.py`.
                skip_subject_validation=True,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=int(_CONNECT),
                ping_interval=PING,
                max_outstanding_pings=2,
                **options,
            )
        except NatsError as error:
            if isinstance(error, _REFUSED) or _VIOLATION in str(error).lower():
                raise Unusable(
                    "it refuses the credentials; check backplane, backplane-creds, backplane-cert"
                ) from None
            raise

    @staticmethod
    def _check_version(client: Client) -> None:
        version = client.connected_server_version
        if (version.major, version.minor) < OLDEST:
            found = f"{version.major}.{version.minor}.{version.patch}"
            oldest = ".".join(map(str, OLDEST))
            raise Unusable(f"it is nats-server {found}; install {oldest} or later")

    async def _check_again(self, client: Client) -> None:
        """Raise if there is no JetStream any more; otherwise return when the connection ended.

        Live messages do not wait for the answer: after the end of one of its servers a cluster
        takes seconds to give any. nats-py does not report the end of a connection that is reset
        while it has something to send.
        """
        with contextlib.suppress(TimeoutError):
            await check_jetstream(client, _CONNECT)
            if self.history is None and await others_share(client):
                self._call(self._watcher.complained, _OTHERS_SHARE, True)

        async def leaves() -> bool:
            if (reason := await self._servers.leave()) is not None:
                self._last_error = reason
            return reason is not None

        await watch_cluster(client, lambda one: self._call(self._watcher.cut_off, one), leaves)

    # Subscriptions and messages

    async def _subscribe_all(self, client: Client) -> None:
        """Subscribe to the subjects requested at the end, because they change meanwhile."""
        while missing := self._subjects - self._subscriptions.keys():
            for subject in missing:
                await self._subscribe(client, subject)
            await client.flush(_FLUSH)
        self._changes.clear()
        unwanted = self._subscriptions.keys() - self._subjects
        self._changes.extend(Change(subject, begins=False) for subject in unwanted)

    async def _subscribe(self, client: Client, subject: str) -> None:
        if subject not in self._subscriptions:
            self._subscriptions[subject] = await client.subscribe(subject, cb=self._received)

    async def _work_off(self, client: Client) -> None:
        """Carry out work that takes time, until the broker stops."""
        while True:
            while self._changes:
                await self._change(client, self._changes.popleft())
            while self._unanswered >= _UNANSWERED:
                await client.flush(_FLUSH)
                self._answered()
            if self._stopping:
                await client.flush(int(_CLOSE))
                return
            await self._work.wait()
            self._work.clear()

    def _answered(self) -> None:
        """Continue: the engine has all sent messages."""
        self._unanswered = 0
        self._report_sent()
        messages: list[Outbound] = []
        while self._outgoing and nbytes_of(messages) < _UNANSWERED:
            messages += self._outgoing.popleft()
        if messages:
            self._publish(messages)

    def _publish(self, messages: Sequence[Outbound]) -> None:
        """Send ``messages``, those together that can be: the more wait, the less each costs."""
        assert self._client is not None
        limit = min(_TOGETHER, self._client.max_payload)
        if self._tap.transport.is_closing():
            self._lose(messages)
            return
        nbytes = self._tap.publish(together(messages, limit))
        self._unanswered += nbytes
        self._sent += nbytes
        if self._unanswered < _UNANSWERED:
            self._report_sent()

    def _report_sent(self) -> None:
        if self._sent:
            nbytes, self._sent = self._sent, 0
            self._call(self._watcher.sent, nbytes)

    async def _change(self, client: Client, change: Change) -> None:
        if change.begins:
            await self._subscribe(client, change.subject)
            return
        subscription = self._subscriptions.pop(change.subject, None)
        if subscription is None:
            return
        if change.replaced:
            # Messages under way come over this one; the engine sends some of them over both.
            await subscription.drain()  # type: ignore[no-untyped-call]
        else:
            await subscription.unsubscribe()

    async def _received(self, message: Msg) -> None:
        # Another program's message with headers; the others are taken at the tap.
        self._arrived(message.subject, message.data)

    def _arrived(self, subject: str, data: bytes) -> None:
        self._waiting += len(data)
        if self._waiting > self._options.max_bytes:
            self._waiting -= len(data)
            self._overflow[name_of(subject) or ""] += messages_of(data)
            return
        self._ready.append((name_of(subject) or "", data))


def unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log unhandled errors, except the ends of connections: these are reported.

    nats-py leaves such an error in one of its tasks if a connection is reset while it is closed.
    """
    if not isinstance(context.get("exception"), OSError | NatsError):
        loop.default_exception_handler(context)


async def cancel_others() -> None:
    """End all other tasks of this loop: nats-py leaves some if a connection is reset."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), _CLOSE)
