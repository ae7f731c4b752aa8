"""Forgetting topics that ended: the log hides their messages until it has none of them.

Retention can take weeks to pass the offset at which a topic ended, and a broker whose clients
create a topic each would keep a name for each of them meanwhile. Most of these topics have no
message, or none that was not removed when segments were rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from pubsub.store.catalog.catalog import Catalog
from pubsub.store.commits.log_writer import LogWriter
from pubsub.store.metadata.metadata import Metadata
from pubsub.store.segments.segment import UNREADABLE, Segment

# Topics that have ended from which on the log is searched for their messages.
_MANY = 10_000
# Topics that are forgotten in one step.
_FORGOTTEN = 1_000


class EndedTopics:
    """Searches the indexes of segments, one in each step, for messages of topics that ended.

    A search begins when the topics have become twice as many as the last one left.
    """

    def __init__(self, catalog: Catalog, metadata: Metadata, writer: LogWriter) -> None:
        self._catalog = catalog
        self._metadata = metadata
        self._writer = writer
        self._mark = _MANY
        self._steps: Iterator[None] = iter(())

    def step(self) -> bool:
        """Do one step; return whether there is more to do. Raises OSError or sqlite3.Error."""
        if next(self._steps, self) is None:
            return True
        if len(self._catalog.ended) < self._mark:
            return False
        self._steps = self._search()
        return True

    def _search(self) -> Iterator[None]:
        segments = self._settled()
        stop = segments[-1].stop if segments else self._catalog.low
        unseen = self._catalog.ended_by(stop)
        examined = self._catalog.low
        # Asked for again in each step: a rewritten segment replaces others, from which it has
        # messages that were not examined.
        while following := [one for one in self._settled() if examined < one.stop <= stop]:
            self._examine(following[0], unseen)
            examined = following[0].stop
            yield
        names = list(unseen)
        for at in range(0, len(names), _FORGOTTEN):
            some = {name: unseen[name] for name in names[at : at + _FORGOTTEN]}
            self._metadata.forget_ended(some)
            self._catalog.forget_ended_topics(some)
            yield
        self._mark = max(_MANY, 2 * len(self._catalog.ended))

    def _settled(self) -> Sequence[Segment]:
        """Return the segments from the first on that get no more records, and are applied."""
        unapplied = self._writer.unapplied
        segments = self._catalog.segments[:-1]
        return list(takewhile(lambda one: one.sealed and one.place < unapplied, segments))

    def _examine(self, segment: Segment, unseen: dict[str, int]) -> None:
        """Remove the topics of which ``segment`` may have messages from before their end."""
        if segment.base == segment.stop:
            return
        self._catalog.use(segment)
        try:
            topics = segment.index.topics
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            # Nothing is forgotten: it may have messages that can be read later.
            unseen.clear()
            return
        for name in topics:
            if unseen.get(name, 0) > segment.base:
                del unseen[name]
