"""Topics of which messages arrive in one read, and the audiences of these messages.

The audiences are made when such messages arrive for the first time. After that a change of a
subscription costs the change: only the subscriber is moved from one audience to another, when the
next messages arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

from pubsub.broker.routing.common_encoder import CommonEncoder
from pubsub.broker.routing.encoders import BatchEncoder, encoder_at_once, encoder_in_steps
from pubsub.broker.routing.mixed_audience import RECIPIENT_BYTES, MixedAudience, key_of
from pubsub.broker.routing.mixed_topics import MixedTopics

if TYPE_CHECKING:
    from pubsub.broker.topic_space.topics import (
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
MAKING = 5
"""Units (see ``sliced_routing.py``) for an audience that is made or changed."""
# Subscribers that are looked at in one unit, and that are compared in one. Topics that are observed
# in as many units as an audience takes.
_PIECE, _COMPARED, _NOTIFIED = 20, 200, 200
# Topics that take as long as one that a changed subscriber has.
_TOPICS = 64
# Roughly the relative costs of a subscription that is looked at by itself and in `map`.
_SLOW, _FAST = 3, 1


class TopicMix(MixedTopics):
    """Topics of which messages arrive in one read, and their audiences.

    There is one object for each combination of topics (see ``Router.mix``), made in an order that
    does not depend on the read. ``weigh`` is told of its topics and the estimated bytes of the
    audiences whenever these have changed.
    """

    __slots__ = (
        "__weakref__",
        "_audience_of",
        "_by_encodings",
        "_changed",
        "_is_preparing",
        "_nbytes",
        "_places",
        "_reference",
        "_tallies",
        "_weigh",
        "common",
        "current",
        "last_timestamp",
    )
    lasts = True
    """Whether its topics probably come together again."""

    def __init__(
        self,
        topics: tuple[Topic, ...],
        weigh: Callable[[tuple[Topic, ...], int], object] = lambda topics, nbytes: None,
    ) -> None:
        super().__init__(topics, tuple([topic.name for topic in topics]))
        self._places = {topic: index for index, topic in enumerate(topics)}
        self._reference: ReferenceType[SubscriptionObserver] = ref(self)
        # None while the audiences are not made.
        self._by_encodings: dict[tuple[int, ...], MixedAudience] | None = None
        self.current: tuple[MixedAudience, ...] | None = None
        """The audiences; None while they are not as the subscriptions are now."""
        self._audience_of: dict[Recipient, MixedAudience] = {}
        self._changed: dict[Recipient, None] = {}
        self.common = CommonEncoder(topics)
        """For messages of all topics; of use while ``current`` is there."""
        self._is_preparing = False
        self._weigh = weigh
        self._nbytes = 0
        # The totals since `settle`, as `Columns.add_totals` returns them.
        self._tallies = bytearray(16 * len(topics))
        self.last_timestamp = 0
        """The time of the last messages that are not settled, in µs; 0 if there are none."""

    def count(self, columns: Columns, timestamp: int) -> None:
        """Count messages of these topics, until ``settle``: a Python loop costs a read too much."""
        columns.add_totals(self._tallies)
        self.last_timestamp = timestamp

    def settle(self) -> None:
        """Add the totals to the figures of the topics; the last time is that of the mix."""
        with memoryview(self._tallies) as view, view.cast("q") as sums:
            for index, topic in enumerate(self.topics):
                if sums[2 * index]:
                    topic.count(sums[2 * index], sums[2 * index + 1], self.last_timestamp)
        self._tallies = bytearray(len(self._tallies))
        self.last_timestamp = 0

    def audiences(self) -> tuple[MixedAudience, ...]:
        """Return the audiences as the subscriptions are now."""
        if self.current is None:
            for _ in self.prepare():
                pass
        return self.prepared()

    def prepared(self) -> tuple[MixedAudience, ...]:
        """Return the audiences as they were when ``prepare`` was done."""
        if self.current is not None:
            return self.current
        assert self._by_encodings is not None
        return tuple(self._by_encodings.values())

    def refreshed(self, most: int) -> tuple[MixedAudience, ...] | None:
        """Return the audiences; None if to bring them up to date takes long.

        That takes time for each subscription of a subscriber that has changed, ``most`` of them at
        most, and little for each topic.
        """
        if self._by_encodings is None or self._is_preparing:
            return self.current
        topics = len(self.topics)
        looked_at = [
            topics // _TOPICS + min(len(one.subscriptions), topics) for one in self._changed
        ]
        return None if sum(looked_at) > most else self.audiences()

    def effort(self, units: int) -> int:
        """Return at most the units of work of a batch that takes ``units`` for an audience."""
        if self._by_encodings is None:
            return sum([len(group) for topic in self.topics for group in topic.groups.values()])
        return len(self._changed) * MAKING + len(self._by_encodings) * units

    def prepare(self) -> Iterator[int]:
        """Make or change the audiences, in steps; yields the units of work of each.

        Subscriptions that change between the steps are left to the next time.
        """
        self._is_preparing = True
        try:
            yield from self._prepare()
        except BaseException:
            # Some of the audiences would be taken for all of them.
            self._release()
            raise
        finally:
            self._is_preparing = False
        for recipient in [one for one in self._changed if self._has_left(one)]:
            self._forget(recipient)
        nbytes = self._nbytes + self.common.weight(len(self._by_encodings or ()))
        self._weigh(self.topics, nbytes + RECIPIENT_BYTES * len(self._audience_of))
        if not self._changed:
            self.current = self.prepared()

    def _prepare(self) -> Iterator[int]:
        if self._by_encodings is None:
            yield from self._make_audiences()
        changed, self._changed = self._changed, {}
        for recipient in changed:
            self._leave(recipient)
            yield from self._join(self._encodings_of(recipient), (recipient,))
            yield MAKING

    def wanted_by(self, recipient: Recipient) -> MixedAudience | None:
        """Return an audience of ``recipient`` alone; None if it has none of the topics."""
        encodings = self._encodings_of(recipient)
        if not encodings:
            return None
        encoder = encoder_at_once(encodings, len(self.topics), self._encoder_of_group)
        return MixedAudience(encodings, len(self.topics), encoder, (recipient,))

    # Changes

    def subscription_changed(self, recipient: Recipient) -> None:
        """A subscription of ``recipient`` to one of the topics has begun or ended.

        The router has handed over the messages that the audiences had for it.
        """
        self.current = None
        self.common.clear()
        if not recipient.subscriptions or (not self._is_preparing and self._has_left(recipient)):
            self._forget(recipient)
            return
        self._changed[recipient] = None
        if len(self._changed) > max(_NOTED, len(self._audience_of)) and not self._is_preparing:
            self._release()

    def _has_left(self, recipient: Recipient) -> bool:
        """Return whether ``recipient`` is subscribed to none of the topics.

        The end of its other subscriptions is not reported here.
        """
        return self._places.keys().isdisjoint(recipient.subscriptions.keys())

    def _forget(self, recipient: Recipient) -> None:
        """Remove a recipient that may not come back.

        It must not stay in memory until the next messages.
        """
        self._changed.pop(recipient, None)
        self._leave(recipient)

    def _release(self) -> None:
        self._by_encodings = self.current = None
        self.common.clear()
        self._audience_of, self._changed = {}, {}
        self._nbytes = 0
        self._weigh(self.topics, 0)
        for topic in self.topics:
            topic.ignore_changes(self._reference)

    def _leave(self, recipient: Recipient) -> None:
        audience = self._audience_of.pop(recipient, None)
        if audience is None:
            return
        audience.discard(recipient)
        if not audience and self._by_encodings is not None:
            del self._by_encodings[key_of(audience.encodings)]
            self._nbytes -= audience.weight(len(self.topics))

    def _join(
        self, encodings: Mapping[int, Encoding], recipients: Sequence[Recipient]
    ) -> Iterator[int]:
        if not encodings or not recipients:
            return
        assert self._by_encodings is not None
        key = key_of(encodings)
        audience = self._by_encodings.get(key)
        if audience is None:
            encoder = yield from self._encoder_of(encodings)
            recipients = _still_there(recipients)
            if not recipients:
                return
            audience = self._by_encodings[key] = MixedAudience(encodings, len(self.topics), encoder)
            self._nbytes += audience.weight(len(self.topics))
        for recipient in recipients:
            audience.add(recipient)
            self._audience_of[recipient] = audience

    def _encoder_of(self, encodings: Mapping[int, Encoding]) -> Generator[int, None, BatchEncoder]:
        """Make the encoder of an audience; yields the units of work of each step but the last."""
        return encoder_in_steps(encodings, len(self.topics), self._encoder_of_group)

    def _encoder_of_group(self, index: int, encoding: Encoding) -> BatchEncoder | None:
        """Return the encoder of the subscribers of one of the topics, if there still are any."""
        group = self.topics[index].groups.get(encoding)
        return None if group is None else group.encoder

    def _encodings_of(self, recipient: Recipient) -> dict[int, Encoding]:
        """Return the encoding of each topic that ``recipient`` subscribes to, by index."""
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

    def _make_audiences(self) -> Iterator[int]:
        self._by_encodings = {}
        # Subscriptions that change after a topic's turn are looked at below, and noted besides.
        for number, topic in enumerate(self.topics, 1):
            topic.notify_of_changes(self._reference)
            if number % _NOTIFIED == 0:
                yield MAKING
        if not any(topic.groups for topic in self.topics):
            return
        together = yield from self._together()
        if together is not None:
            yield from self._join(*together)
        else:
            yield from self._join_apart()

    def _together(
        self,
    ) -> Generator[int, None, tuple[Mapping[int, Encoding], Sequence[Recipient]] | None]:
        """Return all subscribers if each of them has all of the topics in equal encodings."""
        first: SubscriberGroup | None = None
        encodings: dict[int, Encoding] = {}
        for index, topic in enumerate(self.topics):
            group = next(iter(topic.groups.values()), None)
            if group is None or len(topic.groups) > 1:
                return None
            if first is None:
                first = group
            elif group.recipients != first.recipients:
                return None
            encodings[index] = group.encoding
            yield len(group) // _COMPARED
        return encodings, _still_there(() if first is None else first.targets)

    def _join_apart(self) -> Iterator[int]:
        """Make the audiences of subscribers that want different topics."""
        groups: list[tuple[int, SubscriberGroup]] = [
            (index, group)
            for index, topic in enumerate(self.topics)
            for group in topic.groups.values()
        ]
        wanted: dict[Recipient, list[int]] = {}
        for place, (_index, group) in enumerate(groups):
            for some in _pieces(group.targets):
                for recipient in some:
                    wanted.setdefault(recipient, []).append(place)
                yield 1
        alike: dict[tuple[int, ...], list[Recipient]] = {}
        for some in _pieces(tuple(wanted)):
            for recipient in some:
                alike.setdefault(tuple(wanted[recipient]), []).append(recipient)
            yield 1
        for places, recipients in alike.items():
            found = [groups[place] for place in places]
            encodings = {index: group.encoding for index, group in found}
            yield from self._join(encodings, _still_there(recipients))
            yield MAKING + len(recipients) // _PIECE


def _pieces(recipients: Sequence[Recipient]) -> Iterator[Sequence[Recipient]]:
    return (recipients[at : at + _PIECE] for at in range(0, len(recipients), _PIECE))


def _still_there(recipients: Sequence[Recipient]) -> list[Recipient]:
    """Return those that are subscribed to anything; no further change of the others is noted."""
    return [recipient for recipient in recipients if recipient.subscriptions]
