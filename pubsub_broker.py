"""The entry points of the distribution pubsub-broker: the command, ``twistd pubsub``, pytest.

They are outside the package ``pubsub``, as another distribution, PyPubSub, has a package of that
name too. If that one is found instead, these say so in one line.

Other modules are imported in functions: until ``main`` is called, Ctrl-C shows a traceback.
"""

from __future__ import annotations

import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ADVICE = "install pubsub-broker into a virtual environment of its own"


def find_shadow() -> str:
    """Return one line if the package ``pubsub`` is that of another distribution, else nothing."""
    if _exists("pubsub.plugin"):
        return ""
    from importlib.util import find_spec

    found = find_spec("pubsub")
    where = "nothing" if found is None else found.origin or "a directory without __init__.py"
    return (
        f"pubsub: the package pubsub of this broker is shadowed by {where}, "
        f"perhaps that of PyPubSub; {_ADVICE}"
    )


def find_mixture() -> str:
    """Return one line if PyPubSub is installed into the directory of the broker, else nothing."""
    if not _exists("pubsub.pub"):
        return ""
    return (
        "pubsub: PyPubSub is installed into the directory of this broker, and removing or "
        f"upgrading one of the two breaks the other; {_ADVICE}"
    )


def _exists(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except ImportError:
        # The parent is a module and not a package, or is not there.
        return False


def main() -> int:
    """Run the command ``pubsub``; return its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Ctrl-C during the imports would show a traceback. A command restores the handler.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _check()
    from pubsub.commands.command import main as run

    return run()


def _check() -> None:
    """Exit with one line if another package is found, and warn of one in the same directory."""
    if shadow := find_shadow():
        raise SystemExit(shadow)
    if mixture := find_mixture():
        print(mixture, file=sys.stderr)


def _remove_caches() -> None:
    """Remove Twisted's caches of plugins that were written without the protocols."""
    from contextlib import suppress
    from pathlib import Path

    from twisted import plugins

    for directory in map(Path, plugins.__path__):
        if (directory / "pubsub_service.py").exists():
            with suppress(OSError):
                (directory / "dropin.cache").unlink()


class _Nothing:
    """Stands for a protocol whose implementation cannot be imported; it is no plugin."""

    def __init__(self, *arguments: object, **keywords: object) -> None:
        pass


def _tap() -> Any:
    """Return the module of the service; exit with one line if a package is missing."""
    from pubsub.errors import StartError

    try:
        from pubsub.server import tap
    except StartError as error:
        raise SystemExit(f"pubsub: {error}") from None
    return tap


def __getattr__(name: str) -> Any:
    """Return what ``twistd`` asks this module for: the options and the service, or a protocol.

    All dropins are imported by every ``twistd`` command, so they fail quietly.
    """
    if name == "WireProtocol":
        if find_shadow():
            import atexit

            # At the end of the process, as Twisted writes it when it has imported the last dropin.
            atexit.register(_remove_caches)
            return _Nothing
        from pubsub import plugin

        return plugin.WireProtocol
    if name in ("Options", "makeService"):
        if name == "Options":
            _check()
            from pubsub.server.early_interrupt import end_at_interrupt
            from pubsub.server.early_reload import early_reload

            # What follows takes a second, in which SIGHUP would end the process, and SIGINT would
            # show a traceback or be lost.
            early_reload.watch()
            end_at_interrupt()
        return getattr(_tap(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
