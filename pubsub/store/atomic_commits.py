"""``AtomicCommits``: messages and metadata of the log that are in one record."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pubsub.broker.limits import Gate
from pubsub.errors import HistoryUnavailable
from pubsub.store.group_commit import GroupCommit


class AtomicCommits:
    """A part of ``LogStore``. A group is one record, so it waits until it has all."""

    _commits: GroupCommit

    def __init__(self) -> None:
        self.is_continuing = False
        """Whether messages belong to a commit that has begun, and may not be refused."""
        self._finish: Callable[[], None] | None = None
        self.commit_gate = Gate()
        """Shut while a commit has begun and has not ended."""
        self._is_closing = False

    @property
    @abstractmethod
    def next_offset(self) -> int:
        """See ``IStore``."""

    @contextmanager
    def together(self) -> Iterator[None]:
        """See ``IStore``."""
        self._hold()
        try:
            yield
        finally:
            self._commits.release()

    def begin_commit(self, finish: Callable[[], None]) -> None:
        """See ``IStore``."""
        if self._is_closing:
            raise HistoryUnavailable("the broker stops")
        self._hold()
        self._finish = finish
        self.commit_gate.close()

    @contextmanager
    def continuing(self) -> Iterator[None]:
        """See ``IStore``."""
        self.is_continuing = True
        try:
            yield
        finally:
            self.is_continuing = False

    def end_commit(self) -> None:
        """See ``IStore``."""
        self._finish = None
        self._commits.release()
        self.commit_gate.open()

    def finish_commit(self) -> None:
        """Have the commit that has begun end in this tick, and any that begins then."""
        while self._finish is not None:
            self._finish()

    def end_commits(self) -> None:
        """Have the commit that has begun end in this tick; no other one begins after that."""
        self._is_closing = True
        self.finish_commit()

    def _hold(self) -> None:
        if self._commits.failing is not None:
            raise HistoryUnavailable(self._commits.failing)
        self._commits.hold(self.next_offset)
