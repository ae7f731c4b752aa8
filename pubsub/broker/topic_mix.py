"""Topics of which messages arrive in one read, and the audiences of these messages.

The audiences are made when such messages arrive for the first time. After that a change of a
subscription costs the change: only the subscriber is moved from one audience to another, when the
next messages arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

from pubsub.broker.encoders import make_sparse_encoder
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
    """Subscribers that want the same of several topics; ``wanted`` has the topics' indexes.

    ``encodings`` has the encoding of each of these, in ascending order; ``number`` is that of all
    topics.
    """

    __slots__ = ("encoder", "encodings", "pending", "wanted")

    def __init__(
        self, encodings: Mapping[int, Encoding], number: int, targets: Iterable[Recipient] = ()
    ) -> None:
        super().__init__(targets)
        self.encodings = encodings
        self.encoder = make_sparse_encoder(encodings, number)
        self.wanted = frozenset(encodings)
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
            # It may not come back, and must not stay in memory until the next messages.
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

    def _join(self, encodings: Mapping[int, Encoding], recipients: Iterable[Recipient]) -> None:
        if not encodings:
            return
        assert self._by_encodings is not None
        key = _key(encodings)
        audience = self._by_encodings.get(key)
        if audience is None:
            audience = MixedAudience(encodings, len(self.topics))
            self._by_encodings[key] = audience
            self._audiences = None
        for recipient in recipients:
            audience.add(recipient)
            self._audience_of[recipient] = audience

    def _encodings_of(self, recipient: Recipient) -> dict[int, Encoding]:
        """Return the encoding of each topic that ``recipient`` wants, by index."""
        subscriptions = recipient.subscriptions
        if len(subscriptions) * _SLOW > len(self.topics) * _FAST:
            found = enumerate(map(subscriptions.get, self.topics))
            return {index: encoding for index, encoding in found if encoding is not None}
        places = self._places
        return dict(
            sorted(
                [(places[topic], one) for topic, one in subscriptions.items() if topic in places],
                key=itemgetter(0),
            )
        )

    # The beginning

    def _make_audiences(self) -> None:
        self._by_encodings = {}
        if any(topic.groups for topic in self.topics):
            for encodings, recipients in self._together() or self._apart():
                self._join(encodings, recipients)
        for topic in self.topics:
            topic.notify_of_changes(self._reference)

    def _together(self) -> list[tuple[Mapping[int, Encoding], Iterable[Recipient]]]:
        """Return all subscribers if each of them has all of the topics in equal encodings."""
        groups = [next(iter(topic.groups.values()), None) for topic in self.topics]
        first = groups[0]
        if first is None or any(
            group is None or len(topic.groups) > 1 or group.recipients != first.recipients
            for topic, group in zip(self.topics, groups, strict=True)
        ):
            return []
        encodings = [group.encoding for group in groups if group is not None]
        return [(dict(enumerate(encodings)), first)]

    def _apart(self) -> Iterator[tuple[Mapping[int, Encoding], Iterable[Recipient]]]:
        """Yield the subscribers, by what each of them wants."""
        groups: list[tuple[int, SubscriberGroup]] = [
            (index, group)
            for index, topic in enumerate(self.topics)
            for group in topic.groups.values()
        ]
        wanted: dict[Recipient, list[int]] = {}
        for place, (_index, group) in enumerate(groups):
            for recipient in group:
                wanted.setdefault(recipient, []).append(place)
        alike: dict[tuple[int, ...], list[Recipient]] = {}
        for recipient, places in wanted.items():
            alike.setdefault(tuple(places), []).append(recipient)
        for places_of_all, recipients in alike.items():
            found = [groups[place] for place in places_of_all]
            yield {index: group.encoding for index, group in found}, recipients


def _key(encodings: Mapping[int, Encoding]) -> tuple[int, ...]:
    """Return what is equal for the same encodings of the same topics.

    All subscriptions of a group have the same object, and comparing encodings by value would take
    longer than all else. An audience keeps its encodings, so no other object has their ids.
    """
    return (*encodings, *map(id, encodings.values()))
