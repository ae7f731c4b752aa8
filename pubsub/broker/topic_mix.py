"""Topics of which messages arrive in one read, and the audiences of these messages.

The audiences are made when such messages arrive for the first time. After that a change of a
subscription costs the change: only the subscriber is moved from one audience to another, when the
next messages arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

from pubsub.broker.encoders import make_encoder
from pubsub.broker.targets import Targets

if TYPE_CHECKING:
    from pubsub.broker.topics import (
        Delivery,
        Recipient,
        SubscriberGroup,
        SubscriptionObserver,
        Topic,
    )
    from pubsub.interfaces import Encoding
    from pubsub.kernel import Columns

# Changed subscribers that are noted before the next messages arrive, unless there are more
# subscribers: a mix that is not used is released, so that it costs subscribers nothing.
_NOTED = 64
# Roughly the relative costs of a subscription that is looked at by itself and in `map`.
_SLOW, _FAST = 3, 1


class MixedAudience(Targets["Recipient"]):
    """Subscribers that want the same of several topics; ``wanted`` has the topics' indexes."""

    __slots__ = ("encoder", "encodings", "pending", "wanted")

    def __init__(
        self, encodings: Sequence[Encoding | None], targets: Iterable[Recipient] = ()
    ) -> None:
        super().__init__(targets)
        self.encodings = encodings
        self.encoder = make_encoder(encodings)
        self.wanted = frozenset(
            index for index, encoding in enumerate(encodings) if encoding is not None
        )
        self.pending: list[Delivery] = []


class TopicMix:
    """Topics of which messages arrive in one read, and their audiences.

    There is one object for each combination of topics (see ``Router.mix``), made in an order that
    does not depend on the read.
    """

    __slots__ = (
        "__weakref__",
        "_audience_of",
        "_audiences",
        "_by_encodings",
        "_changed",
        "_places",
        "_reference",
        "_tallies",
        "last_timestamp",
        "names",
        "topics",
    )

    def __init__(self, topics: tuple[Topic, ...]) -> None:
        self.topics = topics
        self.names = tuple(topic.name for topic in topics)
        self._places = {topic: index for index, topic in enumerate(topics)}
        self._reference: ReferenceType[SubscriptionObserver] = ref(self)
        # None while the audiences are not made.
        self._by_encodings: dict[tuple[int, ...], MixedAudience] | None = None
        self._audiences: tuple[MixedAudience, ...] | None = None
        self._audience_of: dict[Recipient, MixedAudience] = {}
        self._changed: dict[Recipient, None] = {}
        # What has come since `settle`, as `Columns.add_totals` has it.
        self._tallies = bytearray(16 * len(topics))
        self.last_timestamp = 0
        """The time of the last messages that are not settled, in µs; 0 if there are none."""

    def count(self, columns: Columns, timestamp: int) -> None:
        """Count messages of these topics, until ``settle``: a Python loop costs a read too much."""
        columns.add_totals(self._tallies)
        self.last_timestamp = timestamp

    def settle(self) -> None:
        """Add what has come to the figures of the topics; the last time is that of the mix."""
        with memoryview(self._tallies) as view, view.cast("q") as sums:
            for index, topic in enumerate(self.topics):
                if sums[2 * index]:
                    topic.count(sums[2 * index], sums[2 * index + 1], self.last_timestamp)
        self._tallies = bytearray(len(self._tallies))
        self.last_timestamp = 0

    def audiences(self) -> tuple[MixedAudience, ...]:
        """Return the audiences as the subscriptions are now."""
        if self._by_encodings is None:
            self._make_audiences()
        elif self._changed:
            changed, self._changed = self._changed, {}
            for recipient in changed:
                self._leave(recipient)
            for recipient in changed:
                self._join(self._encodings_of(recipient), (recipient,))
        if self._audiences is None:
            assert self._by_encodings is not None
            self._audiences = tuple(self._by_encodings.values())
        return self._audiences

    # Changes

    def subscription_changed(self, recipient: Recipient) -> None:
        """A subscription of ``recipient`` to one of the topics has begun or ended.

        The router has handed over what the audiences had for it.
        """
        if not recipient.subscriptions:
            # It may be gone for good, and is not to be kept in memory until the next messages.
            self._changed.pop(recipient, None)
            self._leave(recipient)
            return
        self._changed[recipient] = None
        if len(self._changed) > max(_NOTED, len(self._audience_of)):
            self._release()

    def _release(self) -> None:
        self._by_encodings = self._audiences = None
        self._audience_of, self._changed = {}, {}
        for topic in self.topics:
            topic.ignore_changes(self._reference)

    def _leave(self, recipient: Recipient) -> None:
        audience = self._audience_of.pop(recipient, None)
        if audience is None:
            return
        audience.discard(recipient)
        if not audience and self._by_encodings is not None:
            del self._by_encodings[_key(audience.encodings)]
            self._audiences = None

    def _join(self, encodings: Sequence[Encoding | None], recipients: Iterable[Recipient]) -> None:
        assert self._by_encodings is not None
        key = _key(encodings)
        audience = self._by_encodings.get(key)
        if audience is None:
            audience = MixedAudience(encodings)
            if not audience.wanted:
                return
            self._by_encodings[key] = audience
            self._audiences = None
        for recipient in recipients:
            audience.add(recipient)
            self._audience_of[recipient] = audience

    def _encodings_of(self, recipient: Recipient) -> list[Encoding | None]:
        """Return the encoding of each topic for ``recipient``, None where it has none."""
        subscriptions = recipient.subscriptions
        if len(subscriptions) * _SLOW > len(self.topics) * _FAST:
            return list(map(subscriptions.get, self.topics))
        encodings: list[Encoding | None] = [None] * len(self.topics)
        for topic, encoding in subscriptions.items():
            index = self._places.get(topic)
            if index is not None:
                encodings[index] = encoding
        return encodings

    # The beginning

    def _make_audiences(self) -> None:
        self._by_encodings = {}
        if any(topic.groups for topic in self.topics):
            for encodings, recipients in self._together() or self._apart():
                self._join(encodings, recipients)
        for topic in self.topics:
            topic.notify_of_changes(self._reference)

    def _together(self) -> list[tuple[Sequence[Encoding | None], Iterable[Recipient]]]:
        """Return all subscribers if each of them has all of the topics in equal encodings."""
        groups = [next(iter(topic.groups.values()), None) for topic in self.topics]
        first = groups[0]
        if first is None or any(
            group is None or len(topic.groups) > 1 or group.recipients != first.recipients
            for topic, group in zip(self.topics, groups, strict=True)
        ):
            return []
        return [([group.encoding for group in groups if group is not None], first)]

    def _apart(self) -> Iterator[tuple[Sequence[Encoding | None], Iterable[Recipient]]]:
        """Yield the subscribers, by what each of them wants."""
        groups: list[tuple[int, SubscriberGroup]] = [
            (index, group)
            for index, topic in enumerate(self.topics)
            for group in topic.groups.values()
        ]
        everybody: dict[Recipient, None] = {}
        for _index, group in groups:
            everybody.update(dict.fromkeys(group.recipients))
        subscriptions = sum(len(group) for _, group in groups)
        if subscriptions * _SLOW > len(everybody) * len(self.topics) * _FAST:
            for recipient in everybody:
                yield self._encodings_of(recipient), (recipient,)
            return
        wanted: dict[Recipient, list[tuple[int, SubscriberGroup]]] = {}
        for found in groups:
            for recipient in found[1]:
                wanted.setdefault(recipient, []).append(found)
        alike: dict[tuple[tuple[int, SubscriberGroup], ...], list[Recipient]] = {}
        for recipient, those in wanted.items():
            alike.setdefault(tuple(those), []).append(recipient)
        for those_of_all, recipients in alike.items():
            encodings: list[Encoding | None] = [None] * len(self.topics)
            for index, group in those_of_all:
                encodings[index] = group.encoding
            yield encodings, recipients


def _key(encodings: Sequence[Encoding | None]) -> tuple[int, ...]:
    """Return what is equal for the same encodings.

    All subscriptions of a group have the same object, and comparing encodings by value would take
    longer than all else. An audience keeps its encodings, so no other object has their ids.
    """
    return tuple(map(id, encodings))
