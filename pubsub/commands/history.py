"""``pubsub history``: check, repair, back up, restore, dump and migrate a history."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pubsub.errors import StartError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_Run = Callable[[argparse.Namespace], int | None]


def add(commands: Commands) -> None:
    """Add the subcommand and its own subcommands."""
    history = commands.add_parser(
        "history", help="check, repair, back up, restore, dump or migrate the history of a broker"
    )
    actions = history.add_subparsers(metavar="ACTION", required=True)
    _add(
        actions, "check", _check,
        "verify every record and index, also while a broker runs; the exit code is 1 if there is "
        "damage",
    )  # fmt: skip
    _add(
        actions, "repair", _repair,
        "make missing metadata and indexes again from the segments, and put files aside that "
        "cannot be read; no broker may be running",
    )  # fmt: skip
    backup = _add(actions, "backup", _backup, "copy the history, also while a broker runs")
    backup.add_argument("path", metavar="PATH", type=Path, help="the directory to be made")
    restore = _add(actions, "restore", _restore, "put a backup in the place of a history")
    restore.add_argument("path", metavar="DIR", type=Path, help="the directory of the backup")
    migrate = _add(
        actions, "migrate", _migrate,
        "make a history from the file of version 0.1, which is kept; no broker may be running",
    )  # fmt: skip
    migrate.add_argument("file", metavar="FILE", type=Path, help="the file of version 0.1")
    dump = _add(actions, "dump", _dump, "print the heads of all records, a JSON object each")
    dump.add_argument(
        "--payloads", action="store_true",
        help="with the messages, and the keys and values of the metadata, which can be secrets",
    )  # fmt: skip


def _add(actions: Commands, name: str, run: _Run, text: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=f"{name}: {text}.")
    parser.add_argument(
        "--store", metavar="log:DIR", type=_directory, default=None,
        help="the directory of the history (default: the broker's default)",
    )  # fmt: skip
    parser.set_defaults(run=lambda options: _with_errors(run, options))
    return parser


def _directory(text: str) -> Path:
    return Path(text.removeprefix("log:")).expanduser()


def _with_errors(run: _Run, options: argparse.Namespace) -> int | None:
    from pubsub.store.location import default_path

    if options.store is None:
        options.store = default_path(os.environ)
    try:
        return run(options)
    except sqlite3.Error as error:
        raise StartError(
            f"history: {options.store}: metadata.db cannot be used: {error}; pubsub history repair "
            "makes it again"
        ) from None


def _check(options: argparse.Namespace) -> int:
    from pubsub.store.log_check import LogCheck

    with closing(LogCheck(options.store)) as check:
        problems = 0
        for text in check.problems():
            problems += 1
            print(text, flush=True)
        for start, stop in check.lost:
            print(f"offsets {start} to {stop - 1} were lost before, and are marked as lost")
        catalog = check.catalog
        print(
            f"{options.store}: offsets {catalog.first} to {catalog.stop}, {check.messages} "
            f"messages in {check.records} records of {check.segments} segments: "
            + (f"{problems} problems" if problems else "no damage")
        )
    return 1 if problems else 0


def _repair(options: argparse.Namespace) -> None:
    from pubsub.store.log_repair import LogRepair

    reported: list[str] = []

    def report(text: str) -> None:
        reported.append(text)
        print(text, flush=True)

    with closing(LogRepair(options.store, report)) as repair:
        repair.run()
    if not reported:
        print(f"{options.store}: nothing had to be repaired")


def _backup(options: argparse.Namespace) -> None:
    from pubsub.store.log_backup import copy_log

    first, stop = copy_log(options.store, options.path)
    print(f"{options.path}: backup of offsets {first} to {stop}")


def _restore(options: argparse.Namespace) -> None:
    from pubsub.store.log_backup import copy_log

    first, stop = copy_log(options.path, options.store)
    print(f"{options.store}: restored offsets {first} to {stop}")


def _migrate(options: argparse.Namespace) -> None:
    from pubsub.store.migrate import migrate

    if options.store.exists():
        raise StartError(
            f"history: {options.store} exists; give another directory, --store log:DIR"
        )
    options.store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def report(reached: int, first: int, stop: int) -> None:
        print(f"offset {reached} of {first} to {stop}", flush=True)

    migrate(options.file, options.store, report)
    print(f"{options.store}: the history of {options.file}, which is kept")


def _dump(options: argparse.Namespace) -> None:
    from pubsub.store.log_dump import dump
    from pubsub.store.log_view import LogView

    with closing(LogView(options.store)) as view, suppress(BrokenPipeError):
        for record in dump(view, options.payloads):
            print(json.dumps(record, ensure_ascii=False, separators=(",", ":")))
        sys.stdout.flush()
        return
    # The reader has ended; nothing can be written at the end of the process either.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
