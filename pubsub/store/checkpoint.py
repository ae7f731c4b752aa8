"""Checkpoints: copying SQLite's log into the file, so that the log can be written from its start.

Most of a checkpoint runs in a thread and on a connection of its own, while commits continue. The
log restarts only when all of it has been copied, so the writer's thread then copies the little that
was committed meanwhile.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from twisted.internet.defer import ensureDeferred

from pubsub.store.schema import WAL_BYTES, open_checkpointer
from pubsub.store.threads import Worker, log_failure
from pubsub.store.writer import Writer


class Checkpoints:
    """Checkpoints of the file at ``path``, which ``writer`` writes in ``thread``.

    One that fails is tried again when the log has grown by as much again.
    """

    def __init__(self, path: Path, reactor: Any, writer: Writer, thread: Worker) -> None:
        self._path = path
        self._writer = writer
        self._writer_thread = thread
        self._thread = Worker("history-checkpoint", 1, reactor)
        self._connection: sqlite3.Connection | None = None
        self._running = self._stopped = False

    def start_if_due(self) -> None:
        """Start a checkpoint if the log is long enough and none is running."""
        if self._writer.unsaved >= WAL_BYTES and not self._running and not self._stopped:
            self._running = True
            ensureDeferred(self._run()).addErrback(log_failure)

    async def _run(self) -> None:
        try:
            try:
                await self._thread.run(self._copy_most)
            finally:
                if not self._stopped:
                    await self._writer_thread.run(self._writer.checkpoint)
        finally:
            self._running = False

    def _copy_most(self) -> None:
        if self._connection is None:
            self._connection = open_checkpointer(self._path)
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def stop(self) -> None:
        """Wait for a checkpoint under way; start no more."""
        self._stopped = True
        self._thread.stop()
        if self._connection is not None:
            self._connection.close()
