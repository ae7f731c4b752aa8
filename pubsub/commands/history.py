"""``pubsub history``: check, repair, back up, restore, dump and migrate a history."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from pubsub.broker.quantity_text import quantity
from pubsub.commands.json_output import json_text
from pubsub.errors import StartError

if TYPE_CHECKING:
    from pubsub.store.maintenance.log_check import LogCheck

# A migration then continues, and the other commands begin again.
_MAKE_ROOM = "make room there, and run the command again"
_HistoryCommand = Callable[..., int | None]


@click.group("history", no_args_is_help=False)
def history() -> None:
    """Check, repair, back up, restore, dump or migrate the history of a broker."""


def _store(command: _HistoryCommand) -> _HistoryCommand:
    """Add ``--store``; the command gets the directory of the history."""
    return click.option(
        "--store",
        metavar="log:DIR",
        callback=lambda _context, _option, text: _directory(text),
        help="The directory of the history (default: the broker's default).",
    )(command)


def _directory(text: str | None) -> Path:
    """Return the directory that the broker's setting names; also one without the prefix."""
    from pubsub.store.history_location import STORE

    try:
        location = STORE.parse("log" if text is None else text)
    except ValueError as error:
        if not text or text.startswith("log:"):
            raise click.BadParameter(str(error)) from None
        return Path(text).expanduser()
    if location is None:
        raise click.BadParameter("a history in memory has no directory")
    directory: Path = location.directory
    return directory


@contextmanager
def _errors(store: Path, written: Path | None = None) -> Iterator[None]:
    """Name the files of errors: those of ``store``, or the directory that is ``written``."""
    from pubsub.store.disk_remedies import history_command, is_damage, is_full, remedy_of

    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not store.exists():
            raise StartError(
                f"history: {store} does not exist; name the directory with --store log:DIR"
            ) from None
        # Names without a directory are those of files in the history.
        # Those of a directory that is open are its descriptor.
        name = "." if isinstance(error.filename, int) else error.filename
        error.filename = str((written or store) if name is None else store / name)
        if is_full(error):
            raise StartError(f"history: {error.filename}: {error.strerror}; {_MAKE_ROOM}") from None
        raise
    except sqlite3.Error as error:
        if not is_damage(error):
            remedy = f"; {_MAKE_ROOM}" if is_full(error) else remedy_of(error)
            raise StartError(f"history: {written or store}: {error}{remedy}") from None
        raise StartError(
            f"history: {store}: metadata.db cannot be used: {error}; rebuild it with "
            f"{history_command('repair', store)}"
        ) from None


_Item = TypeVar("_Item")


def _each(items: Iterable[_Item], store: Path) -> Iterator[_Item]:
    """Yield ``items`` of ``store``; errors of the caller, such as those of its output, are not."""
    with _errors(store):
        yield from items


class _ReportedLines:
    """Prints the lines of work that goes on when its output fails; ``end`` raises the error."""

    def __init__(self) -> None:
        self.any = False
        self._error: OSError | None = None

    def add(self, text: str) -> None:
        """Print ``text``, unless the output has failed."""
        self.any = True
        if self._error is None:
            try:
                click.echo(text)
            except OSError as error:
                self._error = error

    def end(self) -> None:
        """Raise the error of the output, if any."""
        if self._error is not None:
            raise self._error


@history.command("check")
@_store
def check(store: Path) -> int:
    """Verify every record and index, also while a broker runs.

    The exit code is 1 if there is damage.
    """
    with closing(_opened(store)) as found:
        problems = 0
        for text in _each(found.problems(), store):
            problems += 1
            click.echo(text)
        for start, stop in found.lost:
            click.echo(f"offsets {start} to {stop - 1} were lost before, and are marked as lost")
        catalog = found.catalog
        click.echo(
            f"{store}: offsets {catalog.first} to {catalog.stop}, "
            f"{quantity(found.messages, 'message')} in {quantity(found.records, 'record')} of "
            f"{quantity(found.segments, 'segment')}: "
            + (quantity(problems, "problem") if problems else "no damage")
        )
    return 1 if problems else 0


@history.command("repair")
@_store
def repair(store: Path) -> None:
    """Rebuild missing metadata and indexes from the segments.

    Files that cannot be read are put aside. No broker may be running.
    """
    from pubsub.store.maintenance.log_repair import LogRepair

    lines = _ReportedLines()
    with _errors(store), closing(LogRepair(store, lines.add)) as run:
        run.run()
    lines.end()
    if not lines.any:
        click.echo(f"{store}: nothing had to be repaired")


_unchecked = click.option(
    "--no-check", is_flag=True, help="Do not read all of the copy, to report its damage."
)


@history.command("backup")
@click.argument("path", type=click.Path(path_type=Path))
@_unchecked
@_store
def backup(path: Path, no_check: bool, store: Path) -> int:
    """Copy the history to the new directory PATH, also while a broker runs.

    The exit code is 1 if the copy lacks what cannot be read, or has damage.
    """
    return _copy(store, path, "backup of", check=not no_check)


def _copy(source: Path, target: Path, what: str, *, check: bool) -> int:
    """Copy a history, and report the losses and the damage on standard error."""
    from pubsub.store.maintenance.log_backup import copy_log

    # The copy replaces the present directory, if it is named.
    place = target.absolute()
    with _errors(source, target):
        catalog, problems = copy_log(source, target)
    if check:
        with closing(_opened(place, indexes=False)) as found:
            problems += _each(found.problems(), place)
    for line in problems:
        click.echo(line, err=True)
    result = f"{target}: {what} offsets {catalog.first} to {catalog.stop}"
    click.echo(f"{result}, with {quantity(len(problems), 'problem')}" if problems else result)
    return 1 if problems else 0


def _opened(store: Path, *, indexes: bool = True) -> LogCheck:
    from pubsub.store.maintenance.log_check import LogCheck

    with _errors(store):
        return LogCheck(store, indexes=indexes)


@history.command("restore")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@_unchecked
@_store
def restore(directory: Path, no_check: bool, store: Path) -> int:
    """Copy the backup in DIR to the directory of a history.

    The exit code is 1 if the copy lacks what cannot be read, or has damage.
    """
    if not directory.is_dir():
        problem = "is a file" if directory.exists() else "does not exist"
        raise StartError(f"history: {directory} {problem}; name the directory of a backup")
    return _copy(directory, store, "restored", check=not no_check)


@history.command("migrate")
@click.argument("file", type=click.Path(path_type=Path))
@_store
def migrate(file: Path, store: Path) -> None:
    """Make a history from FILE of version 0.1, which is kept.

    No broker may be running.
    """
    from pubsub.store.migration.sqlite_migration import incomplete
    from pubsub.store.migration.sqlite_migration import migrate as migrate_file

    if not file.is_file():
        problem = "is not a file" if file.exists() else "does not exist"
        raise StartError(f"history: {file} {problem}; name the file of version 0.1")
    if store.exists():
        raise StartError(f"history: {store} exists; give another directory, --store log:DIR")
    store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    lines = _ReportedLines()

    def report(reached: int, first: int, stop: int) -> None:
        lines.add(f"offset {reached} of {first} to {stop}")

    with _errors(incomplete(store), store):
        migrate_file(file.absolute(), store, report)
    lines.end()
    click.echo(f"{store}: the history of {file}, which is kept")


@history.command("dump")
@click.option(
    "--payloads", is_flag=True,
    help="With the messages, and the keys and values of the metadata, which can be secrets.",
)  # fmt: skip
@_store
def dump(payloads: bool, store: Path) -> None:
    """Print the heads of all records, a JSON object each."""
    from pubsub.store.maintenance.log_dump import dump as records
    from pubsub.store.reading.log_view import LogView

    with _errors(store):
        opened = LogView(store, strict=False)
    with closing(opened) as view:
        for record in _each(records(view, payloads), store):
            print(json_text(record, separators=(",", ":")))


COMMAND = history
