"""``AtomicCommits``: messages and metadata of the log that are in one record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pubsub.broker.publishing.publisher_gates import Gate
from pubsub.errors import HistoryUnavailable
from pubsub.store.commits.commit_state_machine import CommitStateMachine
from pubsub.store.reading.run_log import RunLog


class AtomicCommits:
    """Has the groups of ``commits`` wait until they have all: a group is one record.

    ``log`` has the messages of these groups.
    """

    def __init__(self, commits: CommitStateMachine, log: RunLog) -> None:
        self._commits = commits
        self._log = log
        self.is_continuing = False
        """Whether messages belong to a commit that has begun, and may not be refused."""
        self._finish: Callable[[], None] | None = None
        self.gate = Gate()
        """Shut while a commit has begun and has not ended."""
        self._is_closing = False

    @contextmanager
    def together(self) -> Iterator[None]:
        """See ``IStore``."""
        self._hold()
        try:
            yield
        finally:
            self._commits.release()

    def begin(self, finish: Callable[[], None]) -> None:
        """See ``IStore.begin_commit``."""
        if self._is_closing:
            raise HistoryUnavailable("the broker stops")
        self._hold()
        self._finish = finish
        self.gate.close()

    @contextmanager
    def continuing(self) -> Iterator[None]:
        """See ``IStore``."""
        self.is_continuing = True
        try:
            yield
        finally:
            self.is_continuing = False

    def end(self) -> None:
        """See ``IStore.end_commit``."""
        self._finish = None
        self._commits.release()
        self.gate.open()

    def finish(self) -> None:
        """Have the commit that has begun end in this tick, and any that begins then.

        Within a step of the commit that is impossible: RuntimeError.
        """
        while (finish := self._finish) is not None:
            if self.is_continuing:
                raise RuntimeError("a commit cannot be ended by one of its own steps")
            finish()
            if self._finish is finish:
                raise RuntimeError("a commit has not ended, although it had to")

    def close(self) -> None:
        """Have the commit that has begun end in this tick; no other one begins after that."""
        self._is_closing = True
        self.finish()

    def _hold(self) -> None:
        if self._commits.failing is not None:
            raise HistoryUnavailable(self._commits.failing)
        self._commits.hold(self._log.next_offset)
