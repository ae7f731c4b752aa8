"""Makes histories from options."""

from __future__ import annotations

from pubsub.pipeline.connector_options import SourceOptions
from pubsub.pipeline.history import History
from pubsub.pipeline.http_history import HttpHistory


def open_histories(options: SourceOptions) -> list[History]:
    """Return the history of each partition, in order. None is connected yet."""
    if options.path is not None:
        # Workers that read over HTTP start faster without the store.
        from pubsub.pipeline.file_history import FileHistory

        return [FileHistory(options.path)]
    return [HttpHistory(url, options.credentials) for url in options.urls]
