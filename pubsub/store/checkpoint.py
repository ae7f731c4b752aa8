"""Checkpoints: what SQLite's log holds is carried over into the file, so that it can begin anew.

Most of it in a thread and on a connection of its own, while commits go on. The log only begins
anew when none of it is left to be carried over, so the writer's thread then does the little that
was committed meanwhile.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from twisted.internet.defer import ensureDeferred

from pubsub.store.schema import WAL_BYTES, open_checkpointer
from pubsub.store.threads import Worker, complain
from pubsub.store.writer import Writer


class Checkpoints:
    """Of the file at ``path``, which ``writer`` writes in ``thread``.

    One that fails is tried again when as much has come together.
    """

    def __init__(self, path: Path, reactor: Any, writer: Writer, thread: Worker) -> None:
        self._path = path
        self._writer = writer
        self._thread = thread
        self._own = Worker("history-checkpoint", 1, reactor)
        self._connection: sqlite3.Connection | None = None
        self._running = self._stopped = False

    def look(self) -> None:
        """Begin one if much has come together."""
        if self._writer.unsaved >= WAL_BYTES and not self._running and not self._stopped:
            self._running = True
            ensureDeferred(self._run()).addErrback(complain)

    async def _run(self) -> None:
        try:
            try:
                await self._own.run(self._most)
            finally:
                if not self._stopped:
                    await self._thread.run(self._writer.checkpoint)
        finally:
            self._running = False

    def _most(self) -> None:
        if self._connection is None:
            self._connection = open_checkpointer(self._path)
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def stop(self) -> None:
        """Wait for what is under way, and begin nothing more."""
        self._stopped = True
        self._own.stop()
        if self._connection is not None:
            self._connection.close()
