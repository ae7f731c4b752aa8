"""``python -m tests.crash --kills 1000 --cuts 200``: end the broker so often, then report.

Each kind of end has an option; the last line of each is a summary.
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

KINDS = {
    "kills": (crash, "kill the broker under load"),
    "cuts": (cuts, "and lose what was not synced (needs gcc)"),
    "faults": (failures, "with writes and fsyncs that fail (needs gcc)"),
    "points": (points, "kill a process of the history between two system calls (needs gcc)"),
    "damages": (damages, "change bytes of a small history, or remove its files"),
}


def main() -> int:
    """Return the exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    for name, (_, text) in KINDS.items():
        parser.add_argument(f"--{name}", type=int, default=0, metavar="N", help=f"N times: {text}")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--directory", type=Path, help="on the file system to test")
    options = parser.parse_args()
    for name, (run, _) in KINDS.items():
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
