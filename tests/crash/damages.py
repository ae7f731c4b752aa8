"""Random damage to random files of a small history.

The broker must start, or refuse to with one line. Messages that it reads were
written, damage is reported, and no offset is assigned again.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from twisted.internet.task import Clock

from pubsub.errors import StartError
from pubsub.store.commits import log_writer
from pubsub.store.log_options import LogOptions
from pubsub.store.log_store import LogStore
from pubsub.store.opening.recovery import boot_id
from pubsub.store.reading.log_reader import read_page
from tests.crash.faults import flip, tear, zero
from tests.crash.lives import Result
from tests.unit.fakes import batch_of, mixed_batch
from tests.unit.logs import RUN, Log, Stored, messages

_SEGMENT_BYTES = 4000
_METADATA = ("metadata.db", "metadata.db-wal")


class History:
    """A history of several segments and lives, and its contents.

    It was closed properly unless it was ``killed``.
    """

    def __init__(self, path: Path, killed: bool) -> None:
        self.path = path
        segment_bytes = log_writer.SEGMENT_BYTES
        log_writer.SEGMENT_BYTES = _SEGMENT_BYTES
        try:
            for life in range(3):
                log = Log(path, boot_id())
                for number in range(40):
                    self._write(log, life, number)
                if life == 2 and killed:
                    log.sync()
                    log.kill()
                else:
                    log.close()
        finally:
            log_writer.SEGMENT_BYTES = segment_bytes
        self.stop = log.offset

    def _write(self, log: Log, life: int, number: int) -> None:
        text = b"%d %d " % (life, number) * 10
        log.commit(batch_of([text, b""], "ab"[number % 2]), puts={f"{number}": text})
        log.commit(mixed_batch([("a", text), ("b", b"x"), ("a", b"y")], ("a", "b")))


def damages(
    directory: Path,
    number: int,
    seed: int,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Damage ``number`` copies; raises AssertionError at the first broken promise."""
    draw = random.Random(seed)
    histories = [History(directory / name, name == "killed") for name in ("closed", "killed")]
    expected = [_read(one.path, directory / "whole") for one in histories]
    started = 0
    for index in range(number):
        which = index % 2
        copy = directory / "copy"
        shutil.copytree(histories[which].path, copy, symlinks=True)
        done = [_damage(copy, draw) for _ in range(draw.choice((1, 1, 1, 2, 4)))]
        try:
            started += _check(copy, expected[which], histories[which].stop, done)
        except BaseException as error:
            raise AssertionError(f"{done}: {type(error).__name__}: {error}") from error
        shutil.rmtree(copy)
        if index % 100 == 99:
            on_result(Result(index + 1, len(expected[0]), started, len(expected[0])))
    return Result(number, len(expected[0]), started, len(expected[0]))


def _read(path: Path, copy: Path) -> list[Stored]:
    """Return the contents of a history, without changing it."""
    shutil.copytree(path, copy)
    try:
        found, damaged, _ = _open(copy)
    finally:
        shutil.rmtree(copy)
    assert not damaged
    return found


def _open(path: Path) -> tuple[list[Stored], list[tuple[int, int]], int]:
    """Start a store; return its messages, the damaged ranges, and the next offset."""
    store = LogStore(path, Clock(), LogOptions(retention=()))
    store.open(RUN)
    catalog = store._catalog
    found: list[Stored] = []
    damaged: list[tuple[int, int]] = []
    try:
        at = catalog.first
        if at:
            damaged.append((0, at))
        while at < catalog.stop:
            page = read_page(catalog, at, None, 10_000)
            assert page.next_offset > at
            found += messages(page.batches)
            damaged += page.damaged
            at = page.next_offset
        return found, damaged, store.next_offset
    finally:
        store._rounds.stop()
        store._writer.close()
        store._metadata.close()
        store._directory.close()


def _check(path: Path, expected: list[Stored], stop: int, done: list[tuple[str, str]]) -> bool:
    """Check the promises; return whether the broker started."""
    try:
        found, damaged, next_offset = _open(path)
    except StartError as error:
        reason = str(error)
    else:
        reason = ""
    if reason:
        assert reason.startswith("history: ")
        assert "\n" not in reason
        return False
    there = {one.offset: one for one in found}
    for message in expected:
        one = there.pop(message.offset, None)
        if one is None:
            reported = any(start <= message.offset < end for start, end in damaged)
            assert reported, f"{message.offset} is missing"
        else:
            assert one == message, f"{message} has become {one}"
    assert not there, f"never written: {there}"
    if len(done) == 1:
        assert next_offset >= stop, f"continues at {next_offset}, not {stop}"
    return True


# Damage

_CHANGES = (tear, zero, flip, flip)


def _damage(path: Path, draw: random.Random) -> tuple[str, str]:
    """Damage one file; return its name and how."""
    names = sorted(one.name for one in path.iterdir())
    name = draw.choice(names)
    file = path / name
    how = draw.choice((_change, _change, _change, _remove, _swap, _link, _empty, _junk))
    what = how(file, draw)
    return name, what


def _change(file: Path, draw: random.Random) -> str:
    if not file.is_file():
        return "nothing"
    data = bytearray(file.read_bytes())
    how = draw.choice(_CHANGES)
    if data:
        how(data, draw)
        file.write_bytes(data)
    return how.__name__


def _remove(file: Path, draw: random.Random) -> str:
    file.unlink()
    return "removed"


def _swap(file: Path, draw: random.Random) -> str:
    """Give two files of a kind each other's name."""
    others = [one for one in file.parent.iterdir() if one.suffix == file.suffix and one != file]
    if not others:
        return "nothing"
    other = draw.choice(sorted(others))
    aside = file.with_name("aside")
    file.rename(aside)
    other.rename(file)
    aside.rename(other)
    return f"swapped with {other.name}"


def _link(file: Path, draw: random.Random) -> str:
    target = file.parent.with_name(f"target-{draw.random()}")
    file.rename(target)
    file.symlink_to(target)
    return "a symbolic link"


def _empty(file: Path, draw: random.Random) -> str:
    file.write_bytes(b"")
    return "empty"


def _junk(file: Path, draw: random.Random) -> str:
    file.write_bytes(draw.randbytes(draw.choice((1, 64, 5000))))
    return "junk"
