"""``python -m tests.spark.copying SOURCE SINK CHECKPOINT``: copies one topic to another.

Ends when it has copied what is there.
"""

from __future__ import annotations

import sys

from pubsub.pipeline.spark_session import local_session

FROM, TO = "cafe/1", "copy"
A_BATCH = 1000


def main(source: str, sink: str, checkpoint: str) -> None:
    """Copy."""
    spark = local_session("copying", cores=1)
    spark.sparkContext.setLogLevel("FATAL")
    frame = (
        spark.readStream.format("pubsub")
        .options(url=source, subscribe=FROM, startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=A_BATCH, rowsPerTask=A_BATCH // 3)
        .load()
    )
    query = (
        frame.select("value")
        .writeStream.format("pubsub")
        .options(url=sink, topic=TO, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
