"""The instructions that each codec takes: ``python -P tests/bench/instructions.py``.

Valgrind counts them; without valgrind, times are the estimate. Both are divided by the value of a
reference loop of similar work in the same process, as the ratio differs little between builds of
Python and machines. ``--update`` writes the results to ``instructions.json``, those of the
interpreted form with PUBSUB_KERNEL=interpreted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory

from pubsub.broker.clients.frame_turns import FrameTurns
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.slices import Slices
from pubsub.build_info import build_kind
from pubsub.interfaces import HeadEncoding
from pubsub.kernel import FrameEncoder, HeadTable
from pubsub.kernel.interpreted import Learn
from pubsub.protocols.cafe import message_heads as cafe
from pubsub.protocols.cafe.channels import MessageEncoding as CafeMessage
from pubsub.protocols.cafe.codec import Publish, encode
from pubsub.protocols.fast import message_heads as fast
from pubsub.protocols.fast.subscriptions import MessageEncoding as FastMessage
from pubsub.protocols.rheos import message_heads as rheos
from pubsub.protocols.rheos.codec import Codec, Opcode, Request
from pubsub.protocols.rheos.response_encoding import ResponseEncoding
from pubsub.protocols.spot import message_heads as spot
from pubsub.protocols.spot.zmtp import frame_head

BASELINE = Path(__file__).with_name("instructions.json")
REFERENCE = "reference"
# Lengths of messages: many equal ones, then some that differ from their neighbours.
LENGTHS = [64] * 400 + [17, 64, 300, 64, 9, 1000, 64, 64, 31, 5] * 10
# Lengths of messages that go from topic to topic.
MIXED_LENGTHS = [16 + index * 37 % 241 for index in range(500)]
_HEAD = Struct("<HBIBQ")
_TIMED = 60
# The release of Python that the stored values are of. Others run the reference with other
# instructions, also for the way in which they were built.
_STORED_WITH = (3, 11, 7)
ALLOWED = 1.2 if sys.version_info[:3] == _STORED_WITH else 1.5

Case = Callable[[], object]


def _payloads(topics: int = 1) -> list[bytes]:
    lengths = LENGTHS if topics == 1 else MIXED_LENGTHS
    return [bytes([index % 251]) * length for index, length in enumerate(lengths)]


def _reference() -> Case:
    """The work of any codec: look up, slice, pack, join."""
    data = b"".join(_payloads())
    known: dict[bytes, int] = {}

    def run() -> bytes:
        at = 0
        parts = []
        for length in LENGTHS:
            head = data[at : at + 8]
            known[head] = known.get(head, 0) + 1
            parts.append(_HEAD.pack(1, 2, length, 3, at))
            parts.append(data[at : at + length])
            at += length
        return b"".join(parts)

    return run


def _case(learn: Learn, frames: Sequence[bytes], encoding: HeadEncoding) -> Case:
    """A scan of ``frames``, and their payloads encoded."""
    data = b"".join(frames)
    table = HeadTable(learn)
    variable = bytes(encoding.variable_size)
    topics = len(table.scan(data).addresses)
    encoder = FrameEncoder([encoding.heads] * topics, encoding.variable_at, len(variable))

    def run() -> bytes:
        columns = table.scan(data)
        assert columns.end == len(data)
        return encoder.encode(columns, variable)[0]

    return run


def _cafe(topics: int) -> Case:
    frames = [encode(Publish(n % topics, p)) for n, p in enumerate(_payloads(topics))]
    return _case(cafe.learn_publish, frames, CafeMessage(1))


def _fast(topics: int) -> Case:
    frames = [
        b"\3\xdc" + b"t" * 220 + (n % topics).to_bytes(4, "big") + len(p).to_bytes(4, "big") + p
        for n, p in enumerate(_payloads(topics))
    ]
    return _case(partial(fast.learn_publish, max_payload=1 << 20), frames, FastMessage(1))


def _rheos(topics: int) -> Case:
    codec = Codec()
    frames = [
        codec.encode(Request(Opcode.PUBLISH, b"i" * 16, b"topic/%d" % (n % topics), p))
        for n, p in enumerate(_payloads(topics))
    ]
    return _case(partial(rheos.learn_publish, codec=codec), frames, ResponseEncoding())


def _spot(topics: int) -> Case:
    turns = FrameTurns(Slices(lambda call: None), lambda call: None)
    known = spot.KnownPublications(1 << 20, MemoryBudget(0), turns, lambda call: None)
    prefixes = [spot.publish_prefix(b"topic/%d" % n) for n in range(topics)]
    for prefix in prefixes:
        known.add(spot.Publication(prefix, "topic", None))
    frames = [
        prefixes[n % topics] + frame_head(len(p)) + p for n, p in enumerate(_payloads(topics))
    ]
    return _case(known.learn, frames, spot.MessageEncoding(prefixes[0]))


CASES: Mapping[str, Callable[[], Case]] = {
    REFERENCE: _reference,
    **{
        f"{name}, {row}": partial(make, topics)
        for name, make in (("cafe", _cafe), ("fast", _fast), ("rheos", _rheos), ("spot", _spot))
        for row, topics in (("uniform", 1), ("mixed", 10))
    },
}


def run_all() -> None:
    """Run every case warm, between two system calls that make valgrind dump its counts."""
    cases = [make() for make in CASES.values()]
    for case in cases:
        case()
        case()
    for case in cases:
        os.getppid()
        case()
        case()
    os.getppid()


def counted() -> dict[str, float]:
    """Return instructions by valgrind as multiples of the reference."""
    with TemporaryDirectory(prefix="bench-instructions-") as directory:
        # Without -P the directory of this file would come first in the module path.
        counts = counts_between(["-P", __file__, "--run"], Path(directory))
    return _ratios(dict(zip(CASES, counts, strict=True)))


def counts_between(program: Sequence[str], directory: Path) -> list[float]:
    """Return the instructions between each two calls of getppid by a program of Python."""
    out = directory / "out"
    subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            "--dump-before=getppid",
            f"--callgrind-out-file={out}",
            sys.executable,
            *program,
        ],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=True,
        capture_output=True,
        timeout=300,
    )
    # The first dump precedes the first call.
    dumps = sorted(directory.glob("out.*"), key=lambda path: int(path.suffix[1:]))
    return [_total(path.read_text()) for path in dumps[1:]]


def _total(dump: str) -> float:
    found = re.search(r"^(?:summary|totals): (\d+)", dump, re.MULTILINE)
    assert found is not None
    return float(found[1])


def timed() -> dict[str, float]:
    """Return multiples of the reference from the shortest times, measured in turns."""
    cases = {name: make() for name, make in CASES.items()}
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(_TIMED):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            best[name] = min(best[name], time.perf_counter() - start)
    return _ratios(best)


def _ratios(costs: Mapping[str, float]) -> dict[str, float]:
    reference = costs[REFERENCE]
    return {name: round(cost / reference, 3) for name, cost in costs.items() if name != REFERENCE}


def measure() -> tuple[str, dict[str, float]]:
    """Return the method with the build kind, and the ratios."""
    if shutil.which("valgrind") is not None:
        return f"counted, {build_kind()}", counted()
    return f"timed, {build_kind()}", timed()


def regressions(
    found: Mapping[str, float], kept: Mapping[str, float], allowed: float = ALLOWED
) -> dict[str, str]:
    """Return the cases that take more than ``allowed`` times the stored value."""
    return {
        name: f"{found[name]:.3f} times the reference, was {before:.3f}"
        for name, before in kept.items()
        if found[name] > allowed * before
    }


def main() -> None:
    """Print the results, or store them."""
    parser = argparse.ArgumentParser(prog="instructions.py", description=__doc__)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--run", action="store_true", help="only run the cases")
    options = parser.parse_args()
    if options.run:
        run_all()
        return
    found = {f"timed, {build_kind()}": timed()}
    how, ratios = measure()
    found[how] = ratios
    print(json.dumps(found, indent=2))
    if options.update:
        kept = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
        BASELINE.write_text(json.dumps({**kept, **found}, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
