"""``BatchPublication``: the messages of a batch are published run by run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pubsub.broker.routing.topic_mix import TopicMix
from pubsub.http_api.publishing.message_publishing import PROTOCOL

if TYPE_CHECKING:
    from pubsub.broker.publishing.sliced_publishing import PublishSteps
    from pubsub.broker.routing.dispatcher import Dispatcher
    from pubsub.broker.topic_space.provisional_topics import ProvisionalTopics
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.http_api.exactly_once.staged_parts import PublishableRun, StagedRows

# Topics of a run whose subscribers are found in steps.
_MANY = 64
# Topics, messages and bytes of a run that take as long as a unit.
_TOPICS, _MESSAGES, _BYTES = 4, 64, 32 * 1024


class BatchPublication:
    """Publishes ``rows``, and frees them meanwhile. ``messages`` and ``nbytes`` are counted."""

    def __init__(
        self, dispatcher: Dispatcher, topics: ProvisionalTopics, rows: deque[StagedRows]
    ) -> None:
        self.messages = self.nbytes = 0
        self._dispatcher = dispatcher
        self._topics = topics
        self._rows = rows

    def steps(self, record: Callable[[], None]) -> PublishSteps:
        """Publish a run in each step; ``record`` is called in the last one."""
        while self._rows:
            for run in self._rows.popleft().runs():
                yield from self._publish(run)
        for place, topic in enumerate(tuple(self._topics)):
            # One that has ended meanwhile: it has messages of this batch.
            self._topics.hosted(topic.name)
            if place % _TOPICS == 0:
                yield 1
        record()

    def _publish(self, run: PublishableRun) -> PublishSteps:
        columns = run.columns
        units = 1 + columns.count // _MESSAGES + columns.nbytes // _BYTES
        if len(run.topics) == 1:
            topic = self._topics.hosted(run.topics[0])
            units += len(topic.groups) * units
            self._publish_alone(run, topic)
        else:
            mix = TopicMix(tuple([self._topics.hosted(name) for name in run.topics]))
            units += len(run.topics) // _TOPICS
            if len(run.topics) > _MANY:
                yield units
                yield from mix.prepare()
            self._publish_mixed(run, mix)
        self.messages += columns.count
        self.nbytes += columns.nbytes
        yield units

    def _publish_alone(self, run: PublishableRun, topic: Topic) -> None:
        if topic.upstream is None and topic.hosted:
            self._dispatcher.publish(topic, run.columns, run.sender, PROTOCOL, run.headers)
        else:
            # Another broker hosts it now; this batch is stored here, where it began.
            mix = TopicMix((topic,))
            self._dispatcher.publish_mixed(mix, run.columns, run.sender, PROTOCOL, run.headers)

    def _publish_mixed(self, run: PublishableRun, mix: TopicMix) -> None:
        if mix.stored_alike or self._dispatcher.stores_parts:
            self._dispatcher.publish_mixed(mix, run.columns, run.sender, PROTOCOL, run.headers)
            return
        start = 0
        for index, columns in run.columns.runs():
            stop = start + columns.count
            headers = None if run.headers is None else run.headers[start:stop]
            one = type(run)((run.topics[index],), run.sender, columns, headers)
            self._publish_alone(one, mix.topics[index])
            start = stop
