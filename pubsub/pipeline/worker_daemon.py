"""The process whose forks are Spark's Python workers, with the modules of the pipeline imported.

Spark's own, ``pyspark.daemon``, imports nothing for its forks: each spends half a second of
processor time on its imports.
"""

from __future__ import annotations

import gc
import importlib

from pyspark import daemon

_MODULES = (
    "pyspark.worker",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pubsub.pipeline.histories.file_history",
    "pubsub.pipeline.histories.http_history",
    "pubsub.pipeline.source",
    "pubsub.pipeline.tables.spark",
)


def main() -> None:
    """Run the daemon."""
    # The threads that these start are those of memory allocators, which survive a fork.
    for name in _MODULES:
        importlib.import_module(name)
    # Collections in the forks would copy the pages of imported modules.
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
