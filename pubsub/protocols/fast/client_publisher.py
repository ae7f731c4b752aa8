"""fast's client that publishes, sans-IO (fast §3.1, §3.3; see ``client_connection.py``).

A topic that does not exist is created, but CREATE would change the flags of one that does. So the
first use of a topic queries whether it exists, and its messages are held back until the reply,
together with all later ones, so that the order across topics is kept.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from pubsub.broker.topic_space.topic_names import fnv1a32
from pubsub.kernel import Columns, Head
from pubsub.protocols.fast.client_connection import (
    CREATE,
    UNSUBSCRIBE,
    Barrier,
    FastClientConnection,
)
from pubsub.protocols.fast.codec import (
    PUBLISH,
    Create,
    Error,
    ErrorCode,
    Publish,
    Unsubscribe,
    encode,
)
from pubsub.protocols.fast.message_heads import learn_publish
from pubsub.wire.client_columns import FrameWriter
from pubsub.wire.client_events import Confirmed, Level, WireEvent
from pubsub.wire.client_wire import Headers, Sender
from pubsub.wire.error_names import error_name

# Topics that are known to exist; a repeated query does no harm.
_MAX_TOPICS = 65_536
_EXISTS = ErrorCode.TOPIC_EXISTS


class TopicState(Enum):
    """The state of a topic, as far as the client knows it."""

    ASKED = "asked"
    EXISTS = "exists"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class KnownTopic:
    """A topic that was published to; ``reason`` says why it could not be created."""

    name: str
    number: int
    state: TopicState = TopicState.ASKED
    reason: str = ""


@dataclass(slots=True)
class TopicBarrier(Barrier):
    """The barrier behind the query whether ``topic`` exists, or behind its CREATE."""

    topic: KnownTopic = field(kw_only=True)
    created: bool = False


@dataclass(slots=True)
class ConfirmBarrier(Barrier):
    """The barrier behind ``published`` messages; ``unsent`` of them were refused here already."""

    published: int = 0
    unsent: int = 0
    reason: str = ""


class PublisherConnection(FastClientConnection):
    """Publishes messages of up to ``limit`` bytes."""

    def __init__(self, token: bytes, limit: int) -> None:
        super().__init__(token)
        self._limit = limit
        self._writer = FrameWriter(self._heads)
        self._topics: dict[str, KnownTopic] = {}
        self._names: dict[int, str] = {}
        # The queue behind unknown topics: messages, and confirmations behind them (None).
        self._waiting: deque[tuple[KnownTopic, Columns] | None] = deque()
        # The next confirmation, and the refusals of the broker since the last one.
        self._next = ConfirmBarrier()
        self._refused = 0
        self._reason = ""

    def _heads(self, topic: str) -> tuple[Head, ...]:
        sample = encode(Publish(self.token, fnv1a32(topic.encode()), b""))
        learnt = learn_publish(sample, 0, self._limit)
        assert learnt is not None
        return (learnt[0],)

    # Requests

    def open(self, topic: str | None = None) -> list[WireEvent]:
        """See ``WireConnection``. The query whether the topic exists is sent at once."""
        events = super().open(topic)
        if topic is not None:
            self._topic(topic)
        return events

    def publish(
        self, topic: str, columns: Columns, sender: Sender = None, headers: Headers | None = None
    ) -> None:
        """See ``WireConnection``."""
        known = self._topic(topic)
        if self._waiting or known.state is not TopicState.EXISTS:
            self._waiting.append((known, columns))
        else:
            self._send(known, columns)

    def confirm(self) -> None:
        """See ``WireConnection``."""
        if self._waiting:
            self._waiting.append(None)
        else:
            self._confirm()

    def _topic(self, name: str) -> KnownTopic:
        """Return the topic; whether it exists is queried at its first use, and after a failure."""
        known = self._topics.get(name)
        if known is not None and (known.state is not TopicState.FAILED or self._waiting):
            return known
        if len(self._topics) >= _MAX_TOPICS and not self._waiting:
            self._topics.clear()
            self._names.clear()
        number = fnv1a32(name.encode())
        known = self._topics[name] = KnownTopic(name, number)
        self._names[number] = name
        self.send(encode(Unsubscribe(self.token, number)))
        self.barrier(TopicBarrier(topic=known))
        return known

    def _send(self, known: KnownTopic, columns: Columns) -> None:
        self._next.published += columns.count
        if known.state is TopicState.FAILED:
            self._next.unsent += columns.count
            self._next.reason = self._next.reason or known.reason
        else:
            self.send(self._writer.write(known.name, columns))

    def _confirm(self) -> None:
        barrier, self._next = self._next, ConfirmBarrier()
        self.barrier(barrier)

    def _send_waiting(self) -> None:
        """Send the queue up to the first messages whose topic is not known yet."""
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            if first is not None and first[0].state is TopicState.ASKED:
                break
            waiting.popleft()
            if first is None:
                self._confirm()
            else:
                self._send(*first)

    # Input

    def refused(self, error: Error, events: list[WireEvent]) -> None:
        """See ``FastClientConnection``."""
        if error.offending != PUBLISH:
            super().refused(error, events)
            return
        self._refused += 1
        self._reason = self._reason or error_name(ErrorCode, error.code)
        if error.code == ErrorCode.NO_SUCH_TOPIC:
            # It has ended since; the next message creates it again.
            name = self._names.get(error.topic_id, "")
            if name in self._topics and self._topics[name].state is TopicState.EXISTS:
                del self._topics[name]

    def ending(self, error: Error, events: list[WireEvent]) -> None:
        """See ``FastClientConnection``. Of one message it is known that it was the one refused."""
        barrier = next((one for one in self.barriers if isinstance(one, ConfirmBarrier)), None)
        if error.offending == PUBLISH and barrier is not None and barrier.published == 1:
            events.append(Confirmed(1, Level.HANDLED, 1, error_name(ErrorCode, error.code)))

    def reached(self, barrier: Barrier, events: list[WireEvent]) -> None:
        """See ``FastClientConnection``."""
        if isinstance(barrier, ConfirmBarrier):
            refused, self._refused = self._refused + barrier.unsent, 0
            reason, self._reason = barrier.reason or self._reason, ""
            events.append(Confirmed(barrier.published, Level.HANDLED, refused, reason))
        elif isinstance(barrier, TopicBarrier):
            self._found(barrier, barrier.topic)

    def _found(self, barrier: TopicBarrier, known: KnownTopic) -> None:
        if barrier.created:
            code = barrier.code(CREATE)
            # Another client may have created it meanwhile, with the same key or another one.
            known.state = TopicState.FAILED if code and code != _EXISTS else TopicState.EXISTS
            known.reason = f"the topic cannot be created: {error_name(ErrorCode, code)}"
        elif barrier.code(UNSUBSCRIBE) == ErrorCode.NO_SUCH_TOPIC:
            self.send(encode(Create(self.token, known.name.encode(), 0)))
            self.barrier(TopicBarrier(topic=known, created=True))
            return
        else:
            known.state = TopicState.EXISTS
        self._send_waiting()
