"""A broker without the counts for the statistics, for the comparison of ``metrics.py``.

``install`` has the modules of the path of a message loaded without them: each pair of ``REMOVED``
is a text of the module's source, which has to be there once, and its replacement.

    python -m tests.bench.uncounted      as tests.bench.lockstep, without the statistics
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

Removal = tuple[str, str]

_OF_TOPICS = (
    (
        """            if publisher is None:
                self._count_without_publisher(columns, protocol, (topic,))
            else:
                if publisher.topic is not topic:
                    publisher.topic = topic
                    publisher.link(topic)
                publisher.count_linked(columns)
            topic.last_timestamp = batch.timestamp
""",
        "",
    ),
    (
        """        if not mix.last_timestamp:
            self._begin_count(mix)
        mix.count(batch.columns, batch.timestamp)
""",
        "",
    ),
)

REMOVED: Mapping[str, Sequence[Removal]] = {
    "pubsub.broker.routing.dispatcher": [
        *_OF_TOPICS,
        (
            "        self._count(columns, protocol, publisher)\n        ret",
            "        ret",
        ),
        ("            topic.last_timestamp = batch.timestamp\n        self", "        self"),
    ],
    "pubsub.broker.publishing.publisher": [
        (
            "class Publisher(PublisherTally):\n",
            """from pubsub.kernel import LinkedTally, Tally

_UNUSED = LinkedTally(Tally())


class Publisher(PublisherTally):
""",
        ),
        (
            """            self.link(topic)
        return gathering.queue.put(columns, sender, protocol, self)
""",
            """            _UNUSED.link(topic)
        return gathering.queue.put(columns, sender, protocol, _UNUSED)
""",
        ),
        ("gathering.queue, self)\n", "gathering.queue, _UNUSED)\n"),
    ],
    "pubsub.broker.delivery.outbox": [
        (
            "            add_to_each((self,), -count, -len(data), self.traffic.queued)\n",
            "",
        ),
    ],
    "pubsub.broker.delivery.outbox_queue": [
        ("            self._count_written(entries, len(data))\n", ""),
    ],
    "pubsub.broker.routing.audience": [
        (
            """            if is_only and len(each) == 1:
                if not audience.messages:
                    unsettled.add(audience)
                audience.messages += count
                audience.nbytes += len(data)
            else:
                # An outbox that a piece overfills leaves the audience before the next. Several
                # audiences may be those of one batch, which are not kept to be settled.
                add_to_each(targets, count, len(data), targets[0].traffic.delivered)
""",
            "",
        ),
    ],
    "pubsub.broker.routing.router": [
        ("            self._schedule(self.flush)\n", "            self.at_tick_end(self.flush)\n"),
        ("        self.counters.delivered += delivered\n", ""),
    ],
    # The timers, and the pauses of the garbage collector.
    "pubsub.broker.service": [("        self.statistics.start()\n", "")],
}


class _Loader(SourceFileLoader):
    """Loads a module without the removed texts, and without its compiled form."""

    def get_data(self, path: str) -> bytes:
        """See ``FileLoader``."""
        data = super().get_data(path)
        return changed(data.decode(), REMOVED[self.name]).encode() if path == self.path else data

    def path_stats(self, path: str) -> Mapping[str, float]:
        """See ``SourceLoader``: without it no compiled form is read or written."""
        raise OSError


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See ``MetaPathFinder``."""
        if name not in REMOVED:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(name, spec.origin)
        return spec


def changed(source: str, removals: Sequence[Removal]) -> str:
    """Return ``source`` without the text of ``removals``; raises ValueError if one is not there."""
    for text, instead in removals:
        if source.count(text) != 1:
            raise ValueError(f"not once in the source: {text}")
        source = source.replace(text, instead)
    return source


def install() -> None:
    """Have the modules loaded so. Called before any of them is imported."""
    loaded = REMOVED.keys() & sys.modules.keys()
    if loaded:
        raise RuntimeError(f"imported already: {', '.join(sorted(loaded))}")
    sys.meta_path.insert(0, _Finder())


if __name__ == "__main__":
    install()
    from tests.bench import lockstep

    lockstep.serve("")
