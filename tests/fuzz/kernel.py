"""Fuzzes the compiled kernel: ``python -m tests.fuzz.kernel --seconds 60``.

The kernel is compiled with the address and undefined-behaviour sanitizers of gcc, in a directory of
its own. Random reads, most of them nearly valid, are scanned, sliced, mapped and encoded by both
forms of the kernel; the interpreted form is the reference. A failure prints the round, which
``--first`` repeats.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from hatch_build import compile_kernel
from pubsub.kernel import interpreted
from pubsub.kernel.layout import Head, LengthField, RowField
from tests.fuzz.text_lines import TextLines
from tests.unit.kernel_forms import described

ROOT = Path(__file__).parents[2]
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
_SHAPES, _HEADS, _FRAMES = 70, 40, 60
_SIZES = (0, 1, 2, 3, 5, 8, 16, 100)


def _shape(random: Random, at: int) -> tuple[int, tuple[LengthField, ...]]:
    """Return the length of a head, and its length fields, from ``at`` on."""
    fields = []
    for _ in range(random.choice((1, 1, 2))):
        at += random.choice((0, 1, 3))
        width = random.choice((1, 1, 2, 4, 8))
        add = random.choice((0, 0, 0, 1, 9, -1, -4))
        fields.append(LengthField(at, width, random.random() < 0.5, add))
        at += width
    return at + random.choice((0, 0, 1, 4, 30)), tuple(fields)


class Wire:
    """Random heads, none of which is the beginning of another, and frames that have them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        # A byte behind these tells the shapes from each other.
        self._lead = random.randbytes(random.choice((0, 0, 1, 7, 30)))
        self.heads: dict[int, list[tuple[Head, int]]] = {}
        for tag in range(random.choice((1, 2, 5, _SHAPES))):
            width, fields = _shape(random, len(self._lead) + 1)
            made: dict[bytes, tuple[Head, int]] = {}
            for _ in range(random.choice((1, 2, _HEADS))):
                head = self._head(tag, width, fields)
                made.setdefault(head.data, (head, random.randrange(10)))
            self.heads[tag] = list(made.values())
        self.all = [entry for entries in self.heads.values() for entry in entries]

    def _head(self, tag: int, width: int, fields: tuple[LengthField, ...]) -> Head:
        random = self._random
        data = bytearray([*self._lead, tag])
        drawn = random.choice((b"\0\1", bytes(range(256))))
        data += bytes(random.choices(drawn, k=width - len(data)))
        for field in fields:
            data[field.at : field.at + field.width] = bytes(field.width)
        least = random.choice((0, 0, 0, 0, 4))
        return Head(bytes(data), fields, random.choice((0, 3, 100, 2**31, 2**64)), least)

    def learn(self, data: bytes, at: int) -> tuple[Head, int] | None:
        """See ``HeadTable``."""
        tag = at + len(self._lead)
        for head, address in self.heads.get(data[tag], ()) if tag < len(data) else ():
            found = bytearray(data[at : at + len(head.data)])
            if len(found) < len(head.data):
                continue
            for field in head.fields:
                found[field.at : field.at + field.width] = bytes(field.width)
            if found == head.data:
                return head, address
        return None

    def frame(self) -> bytes:
        """Return a frame, most of the time a valid one."""
        random = self._random
        head, _ = random.choice(self.all)
        size = random.choice((*_SIZES, min(head.limit, 300), min(head.limit, 300) + 1, head.least))
        try:
            data = head.encode(size)
        except OverflowError:
            return b""
        return data + random.randbytes(size)

    def read(self) -> bytes:
        """Return frames, perhaps with errors, perhaps not to the end of the last one."""
        random = self._random
        few = [self.frame() for _ in range(random.choice((1, 2, 3, 10)))]
        parts: list[bytes] = []
        for _ in range(random.choice((0, 1, 2, 5, _FRAMES))):
            frame = random.choice(few) if random.random() < 0.9 else self.frame()
            parts.append(frame * random.choice((1, 1, 1, 2, 30, 200)))
        data = bytearray(b"".join(parts))
        if data and random.random() < 0.3:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        if random.random() < 0.5:
            del data[len(data) - random.randrange(min(len(data), 40) + 1) :]
        return bytes(data) + random.randbytes(random.choice((0, 0, 0, 1, 20)))


class Pair:
    """The same object in both forms; every call must have the same outcome."""

    def __init__(self, one: Any, other: Any) -> None:
        self.one = one
        self.other = other

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of both with ``args``; return its result, or None for an error.

        A ``Pair`` among ``args`` stands for its objects. Columns are returned as a ``Pair``.
        """
        theirs = [argument.one if isinstance(argument, Pair) else argument for argument in args]
        ours = [argument.other if isinstance(argument, Pair) else argument for argument in args]
        return _same(
            _outcome(getattr(self.one, name), theirs), _outcome(getattr(self.other, name), ours)
        )


def _outcome(call: Callable[..., Any], args: Sequence[Any]) -> Any:
    try:
        return call(*args)
    except (ValueError, IndexError) as error:
        return type(error)


def _same(one: Any, other: Any) -> Any:
    if isinstance(one, interpreted.Columns):
        assert not isinstance(other, type), f"{described(one)}, but {other}"
        assert described(one) == described(other)
        return Pair(one, other)
    if isinstance(one, list) and one and isinstance(one[0], tuple) and len(one[0]) == 2:
        assert [index for index, _ in one] == [index for index, _ in other]
        return [_same(run, run_2)
                for (_, run), (_, run_2) in zip(one, other, strict=True)]  # fmt: skip
    assert one == other
    return None if isinstance(one, type) else one


class Round:
    """One round: both forms get the same random input."""

    def __init__(self, number: int, compiled: Any) -> None:
        self.random = Random(number)
        self.forms = Pair(interpreted, compiled)
        self.wire = Wire(self.random)
        learn = self.wire.learn
        self.table = Pair(self.forms.one.HeadTable(learn), self.forms.other.HeadTable(learn))

    def run(self) -> None:
        """Raise AssertionError if the forms differ."""
        table = self.table
        for _ in range(self.random.choice((1, 2, 5))):
            data = self.wire.read()
            at = self.random.choice((0, 0, 0, 1, -1, self.random.randrange(len(data) + 2)))
            columns = table.call("scan", data, at)
            assert len(table.one) == len(table.other)
            if columns is not None:
                self.use(columns)
        self.make()
        self.scan_lines(TextLines(self.random))

    def scan_lines(self, lines: TextLines) -> None:
        """Scan lines of text, and write their payloads and others as numbered texts."""
        random, learn = self.random, lines.learn
        table = Pair(self.forms.one.TextTable(learn), self.forms.other.TextTable(learn))
        for _ in range(random.choice((1, 2, 5))):
            data = lines.read()
            at = random.choice((0, 0, 0, -1, random.randrange(len(data) + 2)))
            columns = table.call("scan", data, at)
            assert len(table.one) == len(table.other)
            if columns is not None:
                self.use(columns, 1)
                self.rows(columns)
        payloads = [lines.body() for _ in range(random.randrange(4))]
        self.rows(Pair(*(form.Columns.of(payloads) for form in (self.forms.one, self.forms.other))))

    def rows(self, columns: Pair) -> None:
        """Write columns as rows of random fields."""
        random = self.random
        number: int | bytes = random.choice((0, 1, 8, 95, 10**18 - 1, 2**63 - 1, 2**63 - 3, -1))
        id: int | bytes = random.choice((0, 2**64 - 1, 2**63, 2**48 - 1))
        if random.random() < 0.3:
            words = [
                random.getrandbits(random.choice((9, 63, 64))) for _ in range(columns.one.count)
            ]
            number, id = array("Q", words).tobytes(), array("Q", [*words, 1][1:]).tobytes()
        pieces = (*RowField, *RowField, b"", b"[", b"x" * random.choice((100, 120, 65_500)))
        template = tuple(random.choices(pieces, k=random.choice((0, 1, 5, 24, 25))))
        most = max(columns.one.indexes(), default=0)
        names: list[bytes | None] | None = None
        if most < 20 and random.random() < 0.7:
            names = [random.choice((None, b"", b"name")) for _ in range(most + 1)]
        ends = None
        if random.random() < 0.5:
            ends = [random.randbytes(random.randrange(9)) for _ in range(columns.one.count)]
        self.forms.call("encode_rows", columns, template, names, number, id, ends)

    def use(self, columns: Pair, depth: int = 3) -> None:
        """Call every method of columns."""
        random = self.random
        count = columns.one.count
        # Before the payloads are joined.
        self.encode(columns)
        self.gather(columns)
        data, sizes, indexes = columns.call("pack")
        self.columns("unpack", data, sizes, indexes)
        self.columns("unpack", data, sizes, b"")
        columns.call("runs")
        if not depth:
            return
        start, stop = (random.randint(-2, count + 2) for _ in range(2))
        self.use(columns.call("slice", start, stop), depth - 1)
        most = max(columns.one.indexes(), default=0)
        mapped = [
            random.choice((-1, 0, 1, 2, 7)) for _ in range(most + random.choice((0, 1, 1, 1, 3)))
        ]
        remapped = columns.call("remap", mapped)
        if remapped is not None:
            self.use(remapped, depth - 1)

    def gather(self, columns: Pair) -> None:
        """Put columns and others into queues, and frames like those that were scanned last.

        What the queues take is packed as a run of several senders.
        """
        random, protocol = self.random, "cafe"
        small, other = random.choice((100, 1000)), random.randbytes(3)
        total = random.choice((0, 70, 500, 5000))
        frames = [self.wire.frame() + random.choice((b"", b"", b"1")) for _ in range(3)]
        found = []
        for form, table, own in (
            (self.forms.one, self.table.one, columns.one),
            (self.forms.other, self.table.other, columns.other),
        ):
            queue, tallies = form.ColumnQueue(small, total), []
            for topic in (form.Tally(), form.Tally()):
                tallies.append(form.LinkedTally(form.Tally()))
                tallies[-1].link(topic)
            queue.open(protocol)
            put = []
            for turn, frame in enumerate(frames):
                for part in (own, form.Columns.gather([other, b""]), table.scan(frame)):
                    put.append(queue.put(part, other, protocol, tallies[turn % 2]))
                    topics = tuple(tally.total for tally in tallies)[: turn + 1]
                    put.append(
                        _outcome(queue.put_mixed, (part, topics, other, protocol, tallies[1]))
                    )
                    known = dict.fromkeys(list(part.addresses)[turn % 2 :], tallies[0].total)
                    put.append(
                        _outcome(queue.put_known, (part, known, other, protocol, tallies[0]))
                    )
                    put += [
                        table.put_alike(one, queue, tally) for one in frames for tally in tallies
                    ]
            taken, senders, topics = queue.take()
            named = ("t", "u", "v", "w")[: max(len(topics), 1)]
            run = form.run_record(taken, 7, 2, 3, named, 4, senders, protocol, None, 5)
            names: dict[bytes, int] = {}
            totals: dict[str, tuple[int, int]] = {}
            rows = form.pack_plain_runs([run, run], 0, 5, names) if taken.count else None
            others = form.total_plain_runs([run], totals)
            counted = [(tally.messages, tally.nbytes) for tally in (*tallies, *topics)]
            shown = (described(taken), put, counted)
            found.append((shown, run, rows, names, totals, others))
        assert found[0] == found[1]

    def encode(self, columns: Pair) -> None:
        """Write columns as frames of random heads."""
        random, wire = self.random, self.wire
        most = max(columns.one.indexes(), default=0)
        heads = [
            tuple(random.choice(wire.all)[0] for _ in range(random.choice((0, 1, 1, 1, 2, 3))))
            for _ in range(min(most, 20) + random.choice((0, 1, 1, 1)))
        ]
        # The caller must not pass a payload that the length field cannot hold.
        heads = [tuple(head for head in own if _holds(head, columns.one)) for own in heads]
        at, size = random.choice(((0, 0), (0, 1), (1, 1), (2, 3)))
        made = []
        for form in (self.forms.one, self.forms.other):
            made.append(_outcome(form.FrameEncoder, (heads, at, size)))
        if isinstance(made[0], type):
            assert made[0] is made[1]
            return
        encoder = Pair(*made)
        for length in (size, size, size + 1):
            encoder.call("encode", columns, random.randbytes(length))
            wanted = [
                bytes(random.choices((0, 1, 255), (3, 2, 1), k=many))
                for many in random.choices((len(heads), 3), (9, 1), k=random.choice((0, 1, 5)))
            ]
            encoder.call("encode_each", columns, random.randbytes(length), wanted)
        self.encode_groups(columns, heads, at, size)

    def encode_groups(
        self, columns: Pair, heads: list[tuple[Head, ...]], at: int, size: int
    ) -> None:
        """Write columns for groups that have encoders for some of their indexes."""
        random = self.random
        chosen = [
            [index for index, own in enumerate(heads) if own and random.random() < 0.8]
            for _ in range(random.choice((0, 1, 1, 2, 5)))
        ]
        variable = [random.choice(((at, size), (at, size), (0, 0))) for _ in chosen]
        stamps = [random.randbytes(random.choice((own, own, own, 1))) for _, own in variable]
        for indexes in chosen if heads else ():
            # Most of these are indexes of no message.
            indexes.append(random.choice((-1, len(heads), 2**62)))
        found = []
        for form, its in ((self.forms.one, columns.one), (self.forms.other, columns.other)):
            # Only what an encoder has for index 0 is used.
            each = [
                {
                    index: form.FrameEncoder([heads[index % len(heads)], *heads[:1]], *own)
                    for index in indexes
                }
                for indexes, own in zip(chosen, variable, strict=True)
            ]
            found.append(_outcome(form.encode_groups, (list(zip(each, stamps, strict=True)), its)))
        _same(*found)

    def columns(self, name: str, *args: Any) -> Pair | None:
        """Make columns."""
        one, other = self.forms.one.Columns, self.forms.other.Columns
        made: Pair | None = _same(
            _outcome(getattr(one, name), args), _outcome(getattr(other, name), args)
        )
        return made

    def make(self) -> None:
        """Make columns from random arguments, valid or not."""
        random = self.random
        payloads = [random.randbytes(random.choice(_SIZES)) for _ in range(random.choice(_SIZES))]
        few = random.choice((1, 3, 1000, 2**32))
        indexes = [random.randrange(few) for _ in range(len(payloads) + (random.random() < 0.1))]
        for made in (
            self.columns("of", payloads),
            self.columns("of", payloads, indexes),
            self.columns("gather", payloads),
            self.columns("one", random.randbytes(random.choice(_SIZES)), 5, random.randrange(99)),
        ):
            if made is not None and few < 2**32:
                self.use(made, 1)
        data = random.randbytes(random.choice(_SIZES))
        lengths = array("I", [random.choice((0, 1, 2, 8, 2**32 - 1)) for _ in range(4)]).tobytes()
        for cut in (0, 1, 4, 16):
            self.columns(
                "unpack", data, lengths[:cut], random.randbytes(random.choice((0, 4, 16, 3)))
            )
        self.columns(
            "equal", data, random.choice((-1, *_SIZES, 2**62)), random.choice((-1, *_SIZES))
        )


def _holds(head: Head, columns: Any) -> bool:
    """Return whether the length fields of ``head`` can hold the sizes that its bounds allow."""
    for field in head.fields:
        if min(head.limit, columns.largest) + field.add >= 256**field.width:
            return False
        if max(head.least, columns.smallest) + field.add < 0:
            return False
    return True


def load(library: Path) -> Any:
    """Return the compiled kernel in ``library``."""
    spec = spec_from_file_location("pubsub.kernel.compiled", library)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fuzz(compiled: Any, first: int, seconds: float) -> int:
    """Run rounds from ``first`` on for some seconds, at least one; return their number."""
    number, end = first, time.monotonic() + seconds
    while True:
        try:
            Round(number, compiled).run()
        except BaseException:
            print(f"round {number} failed; repeat it with --first {number}", file=sys.stderr)
            raise
        number += 1
        if time.monotonic() >= end:
            return number - first


def _sanitized(arguments: Sequence[str]) -> int:
    """Compile the kernel with the sanitizers and run this module again with it."""
    # The sanitizer must be loaded first.
    compiler = os.environ.get("CC", "gcc")
    runtime = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    flags = {name: f"{os.environ.get(name, '')} {FLAGS}" for name in ("CFLAGS", "LDFLAGS")}
    os.environ.update(flags)
    with TemporaryDirectory(prefix="fuzz-kernel-") as directory:
        library = compile_kernel(ROOT, Path(directory))
        return subprocess.run(
            [sys.executable, "-m", __spec__.name, "--library", str(library), *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "LD_PRELOAD": runtime,
                # The interpreter's own objects leak at its end.
                "ASAN_OPTIONS": "detect_leaks=0",
                # With malloc each object is a separate allocation that the sanitizer checks.
                "PYTHONMALLOC": "malloc",
            },
        ).returncode


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="tests.fuzz.kernel", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int, help="the first round; by default a random one")
    parser.add_argument("--library", type=Path, help="the compiled kernel, if it is there already")
    options = parser.parse_args(arguments)
    if options.library is None:
        return _sanitized(arguments)
    first = Random().getrandbits(48) if options.first is None else options.first
    print(f"{fuzz(load(options.library), first, options.seconds)} rounds from {first} on")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
