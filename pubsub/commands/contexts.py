"""The contexts of a user: named brokers, in a file that only its owner can read.

The file is ``pubsub/contexts.json`` in ``XDG_CONFIG_HOME``, by default in ``~/.config``. It has the
paths of files with tokens and passwords, never those themselves.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pubsub.durable_names import sync_names
from pubsub.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Context:
    """A broker: ``url``, and optionally the API, the client's id and files with its secrets."""

    url: str
    api: str | None = None
    client_id: str | None = None
    token_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    user: str | None = None
    password_file: str | None = None


@dataclass(slots=True)
class Contexts:
    """All contexts by name, and the name of the one in use."""

    path: Path
    current: str | None = None
    named: dict[str, Context] = field(default_factory=dict)

    def find(self, name: str) -> Context:
        """Return the context ``name``. Raises ConfigurationError."""
        found = self.named.get(name)
        if found is None:
            raise ConfigurationError(
                f"there is no context {name!r}; pubsub context list shows those that exist"
            )
        return found

    def save(self) -> None:
        """Write the file, or nothing of it. Raises OSError."""
        import tempfile

        shown = {
            "current": self.current,
            "contexts": {name: _members(one) for name, one in sorted(self.named.items())},
        }
        # The file is made with mode 0600.
        descriptor, name = tempfile.mkstemp(prefix=".contexts", dir=self.path.parent)
        try:
            with open(descriptor, "w") as file:
                json.dump(shown, file, indent=2)
                file.write("\n")
                file.flush()
                # Otherwise a loss of power could leave an empty file, and no context at all.
                os.fsync(descriptor)
            os.replace(name, self.path)
            sync_names(self.path.parent)
        except BaseException as error:
            Path(name).unlink(missing_ok=True)
            if isinstance(error, OSError) and error.filename is None:
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            raise


@contextmanager
def changed(environment: Mapping[str, str]) -> Iterator[Contexts]:
    """Yield the contexts and save them at the end; another command that changes them waits.

    Raises ConfigurationError, OSError.
    """
    from pubsub.commands.directory_lock import locked_directory

    path = path_of(environment)
    if not path.is_absolute():
        raise ConfigurationError("this user has no home directory; set XDG_CONFIG_HOME")
    # A symbolic link stays one.
    path = Path(os.path.realpath(path))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked_directory(path.parent):
        contexts = load(environment)
        yield contexts
        replace(contexts, path=path).save()


def check_name(name: str) -> None:
    """Raise ConfigurationError unless ``name`` can be the name of a context."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"context {name!r}: a name has 1 to 64 letters, digits, dots, hyphens and underscores"
        )


def path_of(environment: Mapping[str, str]) -> Path:
    """Return where the contexts are."""
    home = Path(environment.get("XDG_CONFIG_HOME", ""))
    if not home.is_absolute():
        # The specification says to ignore relative paths. Without a home the file cannot exist.
        home = Path(os.path.expanduser("~"), ".config")
    return home / "pubsub" / "contexts.json"


def load(environment: Mapping[str, str]) -> Contexts:
    """Return the contexts, none if there is no file. Raises ConfigurationError, OSError."""
    path = path_of(environment)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return Contexts(path)
    try:
        found = json.loads(text)
        named = {name: Context(**_arguments(one)) for name, one in found["contexts"].items()}
        current = found.get("current")
        if current is not None and current not in named:
            current = None
        return Contexts(path, current, named)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigurationError(
            f"{path}: not a file of contexts; correct it, or remove it and use pubsub context add"
        ) from None


def _members(context: Context) -> dict[str, str]:
    return {k.replace("_", "-"): v for k, v in asdict(context).items() if v is not None}


def _arguments(members: Mapping[str, Any]) -> dict[str, str]:
    if not all(isinstance(value, str) for value in members.values()):
        raise TypeError(members)
    return {name.replace("-", "_"): value for name, value in members.items()}
