"""spot's connections that publish and that subscribe, sans-IO (see ``client_connection.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pubsub.errors import PASSING
from pubsub.kernel import Columns
from pubsub.protocols.spot.client_connection import SpotClientConnection, SpotSession, Waiting
from pubsub.protocols.spot.commands import (
    PUBLISH,
    Subscribe,
    Unsubscribe,
    encode_request,
)
from pubsub.protocols.spot.mechanisms import Login
from pubsub.protocols.spot.message_heads import message_heads, publish_prefix
from pubsub.protocols.spot.zmtp import (
    encode_message,
)
from pubsub.wire.client_columns import FrameWriter, messages_of
from pubsub.wire.client_events import (
    Confirmed,
    Interest,
    Level,
    Messages,
    NotSubscribed,
    Subscribed,
    Unsubscribed,
    WireEvent,
)
from pubsub.wire.client_wire import Headers, Sender, WireError

_MAX_TOPIC = 255
# Topics that are known to be hosted.
_MAX_HOSTED = 65_536
UNLISTED = "the topic is not permitted, or another broker hosts it"


class PublisherConnection(SpotClientConnection):
    """Publishes."""

    def __init__(self, identity: bytes, login: Login | None = None) -> None:
        super().__init__(identity, login=login)
        self._writer = FrameWriter(lambda topic: message_heads(publish_prefix(topic.encode())))
        self._published = 0
        # Topics that the broker has listed, and the number of messages of those that it has not.
        self._hosted: set[bytes] = set()
        self._unlisted: Counter[bytes] = Counter()

    def publish(
        self, topic: str, columns: Columns, sender: Sender = None, headers: Headers | None = None
    ) -> None:
        """See ``WireConnection``."""
        name = topic.encode()
        self._published += columns.count
        if name not in self._hosted and not self.reports_refusals:
            self._unlisted[name] += columns.count
        if sender is None:
            self.send(self._writer.write(topic, columns))
            return
        for payload in columns.payloads():
            self.send(encode_message([b"", PUBLISH, sender, name, payload]))

    def confirm(self) -> None:
        """See ``WireConnection``."""
        published, self._published = self._published, 0
        if self._unlisted:
            unlisted, self._unlisted = self._unlisted, Counter()
            self.await_list(published, unlisted)
        else:
            self.await_handled(published)

    def answered(self, waiting: Waiting, topics: Sequence[bytes], events: list[WireEvent]) -> None:
        """See ``SpotClientConnection``."""
        if waiting.published is None:
            super().answered(waiting, topics, events)
            return
        missing = waiting.unlisted.keys() - set(topics)
        if len(self._hosted) >= _MAX_HOSTED:
            self._hosted.clear()
        self._hosted |= waiting.unlisted.keys() - missing
        refused = sum([waiting.unlisted[name] for name in missing])
        reason = UNLISTED if refused else ""
        for refusal in self.take_refusals():
            refused += refusal.commands
            reason = reason or refusal.reason
        refused = min(refused, waiting.published)
        events.append(Confirmed(waiting.published, Level.HANDLED, refused, reason))


class SubscriberConnection(SpotClientConnection):
    """Subscribes. It needs its own identity, because it resumes the subscriptions under it."""

    def __init__(
        self, identity: bytes, resume: SpotSession | None = None, login: Login | None = None
    ) -> None:
        super().__init__(identity, resume, login)
        self._names: set[bytes] = set()

    def next_session(self, node: bytes) -> SpotSession | None:
        """See ``SpotClientConnection``."""
        return SpotSession(node) if node else None

    def subscribe(self, interest: Interest) -> None:
        """See ``WireConnection``."""
        name = _pattern(interest)
        if len(name) > _MAX_TOPIC:
            self.report(NotSubscribed(interest, "a prefix has at most 254 bytes"))
        elif name.endswith(b"*") and not interest.prefix:
            reason = "over spot a name that ends with * stands for all topics with this prefix"
            self.report(NotSubscribed(interest, reason))
        else:
            self._names.add(name)
            self.send(encode_request(Subscribe(name)))
            self.await_handled(interest=interest)

    def unsubscribe(self, interest: Interest) -> bool:
        """See ``WireConnection``."""
        name = _pattern(interest)
        self._names.discard(name)
        self.send(encode_request(Unsubscribe(name)))
        self.await_handled(interest=interest, wanted=False)
        return True

    def close(self) -> None:
        """See ``WireConnection``: without subscriptions there is nothing to resume."""
        self.session = None
        for name in self._names:
            self.send(encode_request(Unsubscribe(name)))

    def answered(self, waiting: Waiting, topics: Sequence[bytes], events: list[WireEvent]) -> None:
        """See ``SpotClientConnection``."""
        if waiting.interest is None:
            super().answered(waiting, topics, events)
            return
        interest = waiting.interest
        # A prefix that is subscribed to has a refusal for each topic that may not be read.
        refused = [
            one.reason
            for one in self.take_refusals()
            if not one.topic or (one.topic == interest.name.encode() and not interest.prefix)
        ]
        if not waiting.wanted:
            events.append(Unsubscribed(interest))
        elif refused:
            events.append(NotSubscribed(interest, refused[0], refused[0] in PASSING))
        else:
            events.append(Subscribed(interest))

    def delivered(
        self,
        columns: Columns,
        topics: Sequence[bytes],
        origin: bytes | None,
        events: list[WireEvent],
    ) -> None:
        """See ``SpotClientConnection``."""
        try:
            names = [topic.decode() for topic in topics]
        except UnicodeDecodeError:
            raise WireError("a topic name that is not UTF-8") from None
        if origin is None:
            events.extend(messages_of(columns, names))
        else:
            events.append(Messages(names[0], columns, senders=[origin]))


def _pattern(interest: Interest) -> bytes:
    """Return the topic id of SUBSCRIBE (spot §3.4)."""
    return interest.name.encode() + b"*" * interest.prefix
