"""Conditions that narrow the range of a batch query, as Spark's hook for filters cannot be used.

The hook (``DataSourceReader.pushFilters``) keeps its state from one query of a DataFrame to the
next: a query without a filter would get the rows of the query before. So the condition is an option
of the source, fixed when the frame is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader


def read_where(reader: DataFrameReader, condition: str) -> DataFrame:
    """Load the rows of ``reader`` that satisfy an SQL condition, and read little else.

    ``reader`` has the format pubsub and its options.
    """
    return reader.option("filter", condition).load().where(condition)
