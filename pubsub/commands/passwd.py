"""``pubsub passwd``: sets, deletes and lists the users of a password file."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path

import click

from pubsub.commands.directory_lock import locked_directory
from pubsub.durable_names import sync_names
from pubsub.errors import ConfigurationError, StartError

_MODE = 0o600
_MAX_LINE = 4096


@click.command("passwd")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("user", required=False)
@click.option("--delete", is_flag=True, help="Delete USER.")
@click.option("--list", "list_users", is_flag=True, help="Print the names of the users.")
def passwd(file: Path, user: str | None, delete: bool, list_users: bool) -> None:
    """Set the password of USER in FILE, which is created if it does not exist.

    On a terminal the password is asked for twice; otherwise it is the first line of standard
    input. The broker reads FILE with the setting password-file, and again on SIGHUP.
    """
    if list_users == (user is not None) or (delete and list_users):
        raise click.UsageError("give USER, or --list without USER")
    # A symbolic link stays one.
    path = Path(os.path.realpath(file))
    if user is None:
        for name in sorted(_read(path, missing_ok=False)[1]):
            click.echo(name)
    elif delete:
        _delete(path, user)
        click.echo(f"{file}: {user} deleted; a running broker needs SIGHUP to forget it")
    else:
        _set(path, user)
        click.echo(f"{file}: password of {user} set; a running broker needs SIGHUP to use it")


def _set(path: Path, user: str) -> None:
    from pubsub.broker.credentials.password_file import check_user, hash_password

    check_user(user)
    # Checked before the prompt for the password.
    _read(path, missing_ok=True)
    hashed = hash_password(_ask())
    with locked_directory(path.parent):
        lines, users = _read(path, missing_ok=True)
        line = f"{user}:{hashed}"
        if user in users:
            lines = [line if _names(one, user) else one for one in lines]
        else:
            lines.append(line)
        _replace(path, lines)


def _delete(path: Path, user: str) -> None:
    with locked_directory(path.parent):
        lines, users = _read(path, missing_ok=False)
        if user not in users:
            raise StartError(f"{path}: there is no user {user!r}")
        _replace(path, [one for one in lines if not _names(one, user)])


def _ask() -> bytes:
    if sys.stdin.isatty():
        text: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return text.encode()
    line = sys.stdin.readline(_MAX_LINE + 1)
    if len(line) > _MAX_LINE:
        raise StartError("standard input: the line is too long for a password")
    return line.removesuffix("\n").removesuffix("\r").encode()


def _names(line: str, user: str) -> bool:
    return line.strip().partition(":")[0] == user and ":" in line


def _read(path: Path, missing_ok: bool) -> tuple[list[str], dict[str, str]]:
    """Return the lines of a password file and its users; raises ConfigurationError."""
    from pubsub.broker.credentials.password_file import parse_password_file

    try:
        # Opening a pipe would wait, and a device that is replaced is lost to all other programs.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigurationError(f"{path}: it is no regular file; name another one")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if missing_ok:
            return [], {}
        raise
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: the file is not UTF-8") from None
    users = parse_password_file(text, str(path))
    # Not splitlines, which also divides a comment at a form feed.
    return text.removesuffix("\n").split("\n") if text else [], users


def _replace(path: Path, lines: list[str]) -> None:
    """Replace the file in one step, with mode 0600 and the owner that it had."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            _keep_owner(path, file.fileno())
            os.fsync(file.fileno())
        os.rename(new, path)
        # After a loss of power the old file would be there again, with passwords that were deleted.
        sync_names(path.parent)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(new)
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _keep_owner(path: Path, descriptor: int) -> None:
    """Give the new file the owner of the old one: root may write it for the broker's user."""
    with suppress(FileNotFoundError):
        before = path.stat()
        if before.st_uid != os.geteuid() and os.geteuid() == 0:
            os.fchown(descriptor, before.st_uid, before.st_gid)


COMMAND = passwd
