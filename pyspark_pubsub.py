"""Registers the format ``pubsub`` with Spark, which looks for ``pyspark_*.DefaultSource``."""

from pubsub.pipeline.source import PubSubSource as DefaultSource

__all__ = ["DefaultSource"]
