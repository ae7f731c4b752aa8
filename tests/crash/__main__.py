"""``python -m tests.crash --kills 1000 --cuts 200``: end the broker so often, then report.

Each kind of end has an option with the number of times; the last line of each is a summary.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.damages import damages
from tests.crash.faults import cuts, failures
from tests.crash.lives import Result, crash
from tests.crash.points import points

RUNS = {
    "kills": crash,
    "cuts": cuts,
    "faults": failures,
    "points": points,
    "damages": damages,
}


def main() -> int:
    """Return the exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=0, help="kill the broker under load")
    parser.add_argument("--cuts", type=int, default=0, help="and lose the power (needs gcc)")
    parser.add_argument(
        "--faults", type=int, default=0, help="with writes and fsyncs that fail (needs gcc)"
    )
    parser.add_argument(
        "--points", type=int, default=0, help="kill between two system calls (needs gcc)"
    )
    parser.add_argument("--damages", type=int, default=0, help="change files of a small history")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--directory", type=Path, help="on the file system to test")
    options = parser.parse_args()
    for name, run in RUNS.items():
        number = getattr(options, name)
        started = time.monotonic()
        if not number:
            continue
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            try:
                result = run(Path(directory), number, options.seed, _print_result)
            except AssertionError as broken:
                print(f"{name}, seed {options.seed}: broken: {broken}")
                return 1
        print(
            f"{result.lives:,} {name}, seed {options.seed}: {result.published:,} messages "
            f"published, {result.acknowledged:,} acknowledged, {result.stored:,} in the history; "
            f"every promise was kept, in {time.monotonic() - started:,.0f} s.",
            flush=True,
        )
    return 0


def _print_result(result: Result) -> None:
    print(
        f"{result.lives}: {result.published} published, {result.acknowledged} acknowledged, "
        f"{result.stored} in the history",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
