"""``python -m tests.spark.copy_topic SOURCE SINK CHECKPOINT TOPICS``: copies topics to another.

The program ends after it has copied the existing messages.
"""

from __future__ import annotations

import sys

from pubsub.pipeline.spark_session import local_session

COPY_TOPIC = "copy"
BATCH_MESSAGES = 1000


def main(source: str, sink: str, checkpoint: str, topics: str) -> None:
    """Copy the topics."""
    spark = local_session("copying", cores=1)
    spark.sparkContext.setLogLevel("FATAL")
    frame = (
        spark.readStream.format("pubsub")
        .options(url=source, subscribe=topics, startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=BATCH_MESSAGES, rowsPerTask=BATCH_MESSAGES // 3)
        .load()
    )
    query = (
        frame.select("value")
        .writeStream.format("pubsub")
        .options(url=sink, topic=COPY_TOPIC, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
