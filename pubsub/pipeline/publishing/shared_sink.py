"""Exactly-once writing to brokers that share a history, any of which may be unavailable.

The tasks of a batch stage their parts at the first broker that answers, and the driver commits
them there. If that broker goes away meanwhile, the others know whether the batch was published. If
it was not, it is staged and committed at another broker when it is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.histories.history import PartsLost, Unreachable
from pubsub.pipeline.histories.http_history import SINK, ErrorReply, HttpApi
from pubsub.pipeline.histories.open_histories import history_of
from pubsub.pipeline.histories.retry import Retry, logger
from pubsub.pipeline.options.connector_options import Credentials
from pubsub.pipeline.publishing.staged_writer import (
    PART_BYTES,
    RUN_AGAIN,
    UNKNOWN_PART,
    PartStager,
    StagedBatch,
)

_Result = TypeVar("_Result")
_ELSEWHERE = "batch-elsewhere"
# Seconds after which a broker with parts of a batch is given up, if the others can be reached.
_AWAY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """A batch in one run of a query at the brokers ``urls``."""

    urls: tuple[str, ...]
    credentials: Credentials
    query: str
    batch_id: int
    run: str = ""

    def at(self, url: str) -> StagedBatch:
        """Return the batch at one broker."""
        return StagedBatch(url, self.credentials, self.query, self.batch_id, self.run)

    def commit(self, parts: Sequence[str], homes: Sequence[str]) -> None:
        """Publish the parts in this order, unless the batch was published before, at any broker.

        They are staged at the brokers ``homes``. Raises PartsLost if the batch has to be staged
        again, and Unreachable or HistoryRefused.
        """
        _BatchCommit(self, parts, homes).run()

    def abort(self) -> None:
        """Drop the staged parts at the brokers that can be reached."""
        for url in self.urls:
            with suppress(Unreachable):
                self.at(url).abort()


class _BatchCommit:
    """Commits a batch at the broker that has its parts, or determines its outcome."""

    def __init__(self, batch: SharedBatch, parts: Sequence[str], homes: Sequence[str]) -> None:
        self._batch = batch
        self._parts = list(parts)
        self._homes = homes
        self._order = [*homes, *(url for url in batch.urls if url not in homes)]
        self._retry, self._away = Retry(), Retry(_AWAY_SECONDS)

    def run(self) -> None:
        """See ``SharedBatch.commit``."""
        while (failures := self._try_all()) is not None:
            begun = [one for one in failures.values() if _code(one) == _ELSEWHERE]
            lost = [url for url, one in failures.items() if _code(one) == UNKNOWN_PART]
            if begun:
                # A broker that is away may have published it.
                self._retry.wait(Unreachable(str(begun[0])))
            elif not lost:
                self._retry.wait(Unreachable(str(failures[self._order[0]])))
            elif len(self._homes) > 1 or self._homes[0] in lost:
                raise self._parts_lost()
            else:
                try:
                    self._away.wait(Unreachable(str(failures[self._homes[0]])))
                except Unreachable:
                    raise self._parts_lost() from None

    def _try_all(self) -> dict[str, PubSubError] | None:
        """Return why each of the brokers has not published the batch; None if it is published."""
        batch = self._batch
        failures: dict[str, PubSubError] = {}
        for url in self._order:
            try:
                with HttpApi(url, batch.credentials, SINK).client() as client:
                    client.commit(batch.query, batch.batch_id, self._parts, shared=True)
                return None
            except Unreachable as error:
                failures[url] = error
            except ErrorReply as reply:
                if reply.code not in (UNKNOWN_PART, _ELSEWHERE):
                    raise
                failures[url] = reply
        return failures

    def _parts_lost(self) -> PartsLost:
        return PartsLost(
            f"sink: no broker has the parts of batch {self._batch.batch_id}, and none knows it as "
            f"published: {' and '.join(self._homes)} cannot be reached, was restarted, or the "
            f"parts expired; {RUN_AGAIN}"
        )


def _code(error: PubSubError) -> str:
    return error.code if isinstance(error, ErrorReply) else ""


class SharedPartStager(PartStager):
    """Stages the rows of one task, all of them at the first broker that answers."""

    def __init__(self, batch: SharedBatch, part_bytes: int = PART_BYTES) -> None:
        super().__init__(batch.at(batch.urls[0]), part_bytes)
        self._shared = batch
        self.url = ""
        """The broker that has the parts, if there are any."""

    def _handle(self, part: pa.Table) -> None:
        if self.url:
            self._stage_behind(part)
            return

        def stage(url: str) -> str:
            self._batch = self._shared.at(url)
            self._api = HttpApi(url, self._batch.credentials, SINK)
            id = self._batch.stage_once(self._api, part)
            self.url = url
            return id

        self._parts.append(at_any(self._shared.urls, stage))

    def _stage_behind(self, part: pa.Table) -> None:
        """Stage a part where those before it are."""
        try:
            self._parts.append(self._batch.stage(self._api, part, Retry(_AWAY_SECONDS)))
        except Unreachable as error:
            raise PartsLost(f"{error}; {RUN_AGAIN}") from None


def check_shared(urls: Sequence[str], credentials: Credentials) -> None:
    """Raise ConfigurationError unless a batch can be written to any of the brokers."""
    if not Retry().call(lambda: history_of(urls, credentials, SINK)):
        raise ConfigurationError(
            "option url: several brokers are written to if they share a history, but each of "
            "these has its own; name one of them"
        )


def at_any(urls: Sequence[str], call: Callable[[str], _Result]) -> _Result:
    """Return the result of ``call`` with the first of the brokers that can be reached."""
    retry = Retry()
    while True:
        for url in urls:
            try:
                return call(url)
            except Unreachable as error:
                failure = error
                logger.warning("%s", error)
        retry.wait(failure)
