"""The data source ``pubsub``: the classes that Spark calls in the driver and in the workers."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pubsub.pipeline.histories.history import Unreachable
from pubsub.pipeline.histories.open_histories import with_shared_history
from pubsub.pipeline.histories.retry import Retry
from pubsub.pipeline.options.connector_options import SourceOptions, source_options
from pubsub.pipeline.options.schemas import check_source_columns, schema_of
from pubsub.pipeline.readers.batch_reader import BatchReader
from pubsub.pipeline.readers.shared_planning import SharedBatchReader, SharedStreamReader
from pubsub.pipeline.readers.stream_reader import StreamReader


class PubSubSource(DataSource):
    """The format ``pubsub``. For its options, see ``pubsub.pipeline.options.connector_options``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pubsub"

    def schema(self) -> StructType:
        """Return the schema for the options ``stream``, ``includeHeaders`` and ``columns``.

        Spark asks for it in ``load``, so mistaken options are errors there.
        """
        options = source_options(self.options, None)
        # A broker that does not answer now may do so when the query is planned.
        with suppress(Unreachable):
            with_shared_history(options)
        return schema_of(options.stream, options.headers, options.kafka)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the messages that exist now."""
        options = _parse_options(self.options, schema, streaming=False)
        if options.shared:
            return SharedBatchReader(options, schema)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of existing and new messages."""
        options = _parse_options(self.options, schema, streaming=True)
        if options.shared:
            return SharedStreamReader(options, schema)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer that publishes a frame."""
        # Workers that only read start faster without the sink.
        from pubsub.pipeline.sink import BatchWriter, make_sink

        return BatchWriter(make_sink(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer that publishes a stream."""
        from pubsub.pipeline.sink import StreamWriter, make_sink

        return StreamWriter(make_sink(self.options, schema, overwrite, streaming=True))


def _parse_options(given: Any, schema: StructType, streaming: bool) -> SourceOptions:
    options = source_options(given, streaming)
    check_source_columns(schema, schema_of(options.stream, options.headers, options.kafka))
    return Retry().call(partial(with_shared_history, options))
