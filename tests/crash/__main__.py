"""``python -m tests.crash --loops 1000``: kill the broker so often, then report the result.

The last line is a summary.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.faults import cuts
from tests.crash.lives import Result, crash


def main() -> int:
    """Return the exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--loops", type=int, default=50, help="(default: 50)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument(
        "--power", action="store_true", help="lose what was not synced at each kill (needs gcc)"
    )
    parser.add_argument("--directory", type=Path, help="on the file system to test")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        try:
            run = cuts if options.power else crash
            result = run(Path(directory), options.loops, options.seed, _print_result)
        except AssertionError as broken:
            print(f"seed {options.seed}: broken: {broken}")
            return 1
    seconds = time.monotonic() - started
    ends = "power cuts" if options.power else "kills"
    print(
        f"{result.lives:,} {ends}, seed {options.seed}: {result.published:,} messages published, "
        f"{result.acknowledged:,} acknowledged, {result.stored:,} in the history; every promise "
        f"was kept, in {seconds:,.0f} s."
    )
    return 0


def _print_result(result: Result) -> None:
    print(
        f"{result.lives} killed: {result.published} published, {result.acknowledged} acknowledged, "
        f"{result.stored} in the history",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
