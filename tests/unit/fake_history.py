"""A history in memory, as the pipeline sees it."""

from __future__ import annotations

from collections.abc import Iterator

from pubsub.pipeline.histories.history import BatchOrGap, PartitionBounds, TopicSize


class FakeHistory:
    """A history with topics only; without names, every offset has a message of 10 bytes."""

    def __init__(self, *names: str, messages: int = 0) -> None:
        self._topics = [TopicSize(name, messages, 10 * messages) for name in names]
        self.good: list[int] = []

    def topics(self, start: int, stop: int) -> list[TopicSize]:
        return self._topics or [TopicSize("any", stop - start, 10 * (stop - start))]

    def bounds(self, timestamp: int | None = None) -> PartitionBounds:
        raise NotImplementedError

    def read(
        self, start: int, stop: int, topics: frozenset[str] | None, headers: bool, epoch: str
    ) -> Iterator[BatchOrGap]:
        raise NotImplementedError

    def cuts(self, start: int, stop: int) -> list[int]:
        return [one for one in self.good if start < one < stop]

    def check(self, position: int, epoch: str) -> None:
        raise NotImplementedError

    def report_position(
        self, reader: str, position: int, epoch: str, quiet: tuple[int, str] | None = None
    ) -> bool:
        raise NotImplementedError

    def quiet_until(self, reader: str, start: int, topics: str) -> int | None:
        raise NotImplementedError
