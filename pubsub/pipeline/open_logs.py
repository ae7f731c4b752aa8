"""From options to logs."""

from __future__ import annotations

from pubsub.pipeline.connector_options import SourceOptions
from pubsub.pipeline.filelog import FileLog
from pubsub.pipeline.httplog import HttpLog
from pubsub.pipeline.logs import Log


def open_logs(options: SourceOptions) -> list[Log]:
    """One for each partition, in order. Nothing is connected yet."""
    if options.path is not None:
        return [FileLog(options.path)]
    return [HttpLog(url, options.credentials) for url in options.urls]
