"""``WideMix``: the topics of all addresses that a listener knows, for reads that bring any of them.

A publisher for many topics, such as a gateway of devices, sends each read to another combination of
them. If few subscribers have these topics, the audiences of all topics together serve every read,
without work for each of its topics. They are made in slices, when as much has been routed without
them: subscriptions and topics that change often are left to ``passing_mix.py``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pubsub.broker.routing.mixed_topics import MixedTopics, is_hosted
from pubsub.broker.routing.topic_mix import TopicMix

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import AccessRules
    from pubsub.broker.routing.batch import Batch
    from pubsub.broker.routing.mixed_audience import MixedAudience
    from pubsub.broker.routing.router import Router
    from pubsub.broker.slices import SlicedWork, Slices, Work
    from pubsub.broker.topic_space.topics import Recipient, Topic
    from pubsub.kernel import Columns

# Audiences, at most, and messages of a read for each of them: each looks at all of the messages.
_AUDIENCES, _MESSAGES = 64, 4
# Topics times subscribers of which the audiences are found, at most.
_LOOKED_AT = 250_000
# Topics that have to be routed, for each that is known, before audiences that were too many are
# looked for again.
_PATIENCE = 16
# Topics that are looked at in a step, and units of work (see ``sliced_routing.py``) of a step.
_STEP, _UNITS = 50, 4
# Topics of a read that is one of all topics, for each that has messages, at most.
_OTHERS = 4
# Subscriptions of changed subscribers that are looked at in a read, which takes up to 1 ms.
_CHANGED = 600
# Estimated bytes of a topic with its address, and of a topic in an audience, for the memory budget.
# They bound the topics, too: the kernel makes the encoder of an audience in one call, which takes
# 0.5 µs for each.
_TOPIC_BYTES, _PLACE_BYTES = 500, 500
_MAX_BYTES = 12 * 1024 * 1024


class WideRead(MixedTopics):
    """Distinct topics of a read and their names, in the order of its indexes.

    ``places`` has the index of each in ``mix``, whose audiences get the messages.
    """

    __slots__ = ("_places", "_widened", "mix")
    lasts = False

    def __init__(self, mix: TopicMix, topics: tuple[Topic, ...], places: list[int]) -> None:
        self.mix = mix
        super().__init__(topics, tuple(map(mix.names.__getitem__, places)))
        self._places = places
        self._widened: Batch | None = None

    @property
    def uniform(self) -> bool:
        """See ``MixedTopics``."""
        return self.mix.is_known_uniform(len(self.topics)) or super().uniform

    def to_store(self, batch: Batch) -> Batch:
        """See ``MixedTopics``: with the names of all topics of ``mix``, unless they are many.

        All reads have the same tuple of these. The history counts and lists the topics of such
        reads together, which takes as long as all else if each read has names of its own.
        """
        if len(self.mix.names) > batch.count or not self.mix.is_known_uniform(0):
            return batch
        self._widened = batch.among(self.mix.names, self._places)
        return self._widened

    def widened(self, batch: Batch) -> Batch:
        """Return ``batch`` with the topics of ``mix``, to be routed."""
        wide = self._widened
        if wide is None:
            return batch.among(self.mix.names, self._places)
        wide.offset, wide.has_place = batch.offset, batch.has_place
        return wide


class WideMix:
    """The mix of the topics of a listener's addresses, made and changed in ``slices``."""

    def __init__(self, router: Router, slices: Slices) -> None:
        self._router = router
        self._slices = slices
        self._account = router.memory.cache(_MAX_BYTES, self._forget)
        self._mix: TopicMix | None = None
        self._places: dict[Any, int] = {}
        # Topics that were routed in another way since the audiences were looked for.
        self._routed = 0
        self._work: SlicedWork | None = None

    def read_of(self, addresses: Sequence[Any]) -> WideRead | None:
        """Return the read of messages to ``addresses``.

        None if the audiences are not ready or too many, if two addresses have one topic, or if a
        topic is no longer hosted here.
        """
        mix = self._ready(len(addresses))
        if mix is None:
            return None
        try:
            places = list(map(self._places.__getitem__, addresses))
        except KeyError:
            return None
        topics = tuple(map(mix.topics.__getitem__, places))
        if len(set(places)) < len(places):
            return None
        read = WideRead(mix, topics, places)
        if not read.uniform and not all(map(is_hosted, topics)):
            # A topic that has ended while the mix was made may have its name again.
            for address, topic in zip(addresses, topics, strict=True):
                if not topic.hosted:
                    self.discard(address)
            return None
        return read

    def whole_of(
        self, columns: Columns, addresses: Sequence[Any], access: AccessRules
    ) -> tuple[TopicMix, Columns] | None:
        """Return the mix of all topics, and ``columns`` with its indexes instead of a read's own.

        Topics without messages do no harm if they are like the others, if the client with these
        ``access`` rules may publish to them, too, and if they are few. Then only the index of each
        topic of the read is looked for. None otherwise, and where ``read_of`` returns None.
        """
        mix = self._ready(len(addresses))
        if (
            mix is None
            or len(mix.topics) > min(columns.count, _OTHERS * len(addresses))
            or self._router.forwarding is not None
            or not mix.is_known_uniform(len(addresses))
            or not access.may_publish_all(mix.names)
        ):
            return None
        try:
            return mix, columns.remap(list(map(self._places.__getitem__, addresses)))
        except KeyError:
            return None

    def _ready(self, addresses: int) -> TopicMix | None:
        """Return the mix if it has audiences that are few enough for as many ``addresses``."""
        mix = self._mix
        if mix is None or self._router.waiting:
            return None
        audiences = mix.current or self._refreshed(mix)
        if audiences is None or len(audiences) * _MESSAGES > addresses + _AUDIENCES:
            return None
        return mix

    def _refreshed(self, mix: TopicMix) -> tuple[MixedAudience, ...] | None:
        """Return the audiences with the last changes, if these are few."""
        if self._work is not None:
            return None
        audiences = mix.refreshed(_CHANGED)
        return audiences if audiences is None or self._fit(audiences) else None

    def note_other(self, topics: int, known: Mapping[Any, Topic]) -> None:
        """A read with as many ``topics`` is routed in another way.

        ``known`` has the topics of all addresses.
        """
        self._routed += topics
        if self._work is not None or self._routed < len(known):
            return
        self._routed = 0
        if self._mix is not None and self._mix.current and known.keys() <= self._places.keys():
            # They are ready, and too many for such reads.
            return
        self._charge(len(known) * _TOPIC_BYTES)
        if self._account.nbytes:
            self._work = self._slices.run_later(self._prepare(dict(known)), self._end_work)

    def discard(self, address: Any) -> None:
        """Forget an address whose topic has changed."""
        self._places.pop(address, None)

    def clear(self) -> None:
        """Forget all addresses and topics."""
        self._forget()
        self._account.clear()

    def _forget(self) -> None:
        if self._work is not None:
            self._work.stop()
        self._work = self._mix = None
        self._places = {}

    def _end_work(self) -> None:
        self._work = None

    def _prepare(self, known: Mapping[Any, Topic]) -> Work:
        """Make the audiences of the topics of ``known``, or bring them up to date.

        Forgets everything if they are too many, or if that fails.
        """
        try:
            yield from self._make_audiences(known)
        except Exception:
            # It is logged where the work is done. Nobody else would make them again.
            self._end_work()
            self._give_up(len(known))
            raise

    def _make_audiences(self, known: Mapping[Any, Topic]) -> Work:
        mix: TopicMix | None = self._mix
        if mix is None or not known.keys() <= self._places.keys():
            mix = yield from self._make(known)
        if mix is not None:
            # The messages of the audiences are not for the subscribers that join them.
            self._router.hand_over()
            for units in mix.prepare():
                for _ in range(1 + units // _UNITS):
                    yield
            self._fit(mix.prepared())
        else:
            self._give_up(len(known))

    def _fit(self, audiences: Sequence[MixedAudience]) -> bool:
        """Charge ``audiences``, or forget everything if they are too many; return if they fit."""
        # Also after the account has made this forget them.
        known = len(self._places)
        if len(audiences) <= _AUDIENCES:
            places = sum([len(audience.wanted) for audience in audiences])
            self._charge(known * _TOPIC_BYTES + places * _PLACE_BYTES)
            if self._account.nbytes:
                return True
        self._give_up(known)
        return False

    def _give_up(self, known: int) -> None:
        self._routed = -_PATIENCE * known
        self._mix, self._places = None, {}
        self._charge(0)

    def _charge(self, nbytes: int) -> None:
        self._account.charge(nbytes - self._account.nbytes)

    def _make(self, known: Mapping[Any, Topic]) -> Generator[None, None, TopicMix | None]:
        """Make the mix; None if it would have too many subscribers."""
        topics: dict[Topic, int] = {}
        places: dict[Any, int] = {}
        recipients: set[Recipient] = set()
        for number, (address, topic) in enumerate(known.items()):
            if topic.hosted:
                places[address] = topics.setdefault(topic, len(topics))
                for group in topic.groups.values():
                    if (len(group) + len(recipients)) * len(known) > 2 * _LOOKED_AT:
                        return None
                    recipients.update(group)
            if number % _STEP == 0:
                yield
        if len(recipients) * len(topics) > _LOOKED_AT or len(topics) < 2:
            return None
        self._mix, self._places = TopicMix(tuple(topics)), places
        for _ in range(len(topics) // _STEP):
            yield
        return self._mix
