"""The cost of a plain append with a checksum: ``python -m tests.bench.append DIRECTORY``.

The history cannot store at a lower cost than this on the same file system. The first round writes
to pages of the page cache that were not in use, the next ones to pages that the removal of the
file before has freed (see ``page_cache.py``).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from zlib_ng.zlib_ng import crc32

_BLOCK = 256 * 1024
_MIB = 1024**2


@dataclass(frozen=True)
class AppendCost:
    """Megabytes (10**6) a second by the clock, and for each second of processor time."""

    by_clock: float
    by_processor: float


def append(directory: Path, nbytes: int) -> AppendCost:
    """Append blocks of 256 KiB with a CRC-32 each, four at a time, to a new file; remove it."""
    block = os.urandom(_BLOCK)
    count = max(1, nbytes // (4 * _BLOCK))
    with tempfile.NamedTemporaryFile(dir=directory, buffering=0) as file:
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(count):
            for _ in range(4):
                crc32(block)
            os.writev(file.fileno(), [block] * 4)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    written = count * 4 * _BLOCK / 1e6
    return AppendCost(written / wall, written / max(processor, 1e-9))


def main(arguments: list[str] | None = None) -> int:
    """Print a row for each round; return 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.append", description=__doc__)
    parser.add_argument("directory", type=Path, help="on the file system of the history")
    parser.add_argument("--mib", type=int, default=600, help="of each round (default: 600)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    print("| round | MB/s | MB/CPU s |\n| --- | ---: | ---: |")
    for number in range(options.rounds):
        cost = append(options.directory, options.mib * _MIB)
        print(f"| {number + 1} | {cost.by_clock:,.0f} | {cost.by_processor:,.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
