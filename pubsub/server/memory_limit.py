"""The memory that the system grants the process, and the warning about ``max-memory`` beyond it.

The system gives no error at a limit of a container or a service: it kills the process.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from twisted.logger import Logger

from pubsub.server.history_settings import history_bytes
from pubsub.settings import size_text

log = Logger()
_MEBIBYTE = 1024**2
# The program, garbage, and freed memory that it keeps; see "Memory" in docs/operating.md.
_OWN = 128 * _MEBIBYTE
# RLIMIT_AS counts addresses as well, most of them of stacks and of heaps of threads.
_OWN_ADDRESSES = 384 * _MEBIBYTE
# cgroup v1 has a number near 2**63 instead of "max".
_NO_LIMIT = 2**62
_FILES = {"cgroup2": ("memory.max", "memory.high"), "cgroup": ("memory.limit_in_bytes",)}


class MemoryLimit(NamedTuple):
    """A limit of ``nbytes``, of which the process takes ``own`` for itself."""

    nbytes: int
    name: str
    own: int = _OWN

    @property
    def most(self) -> int:
        """The largest ``max-memory``, in whole MiB, with which the process stays below it."""
        # With a small limit there are fewer clients, and less garbage.
        most = self.nbytes - min(self.own, self.nbytes // 2)
        return most - most % _MEBIBYTE


def warn_beyond_limit(settings: Mapping[str, Any], root: Path = Path("/")) -> None:
    """Log a warning if the process may reach a limit of the system before ``max-memory``.

    ``root`` is that of the file system.
    """
    nbytes = settings["max-memory"]
    limits = [*_of_process(), *_of_cgroups(root), *(_of_machine(root) if nbytes else ())]
    limit = min(limits, key=lambda one: one.most, default=None)
    if limit is None or 0 < nbytes <= limit.most:
        return
    fits = history_bytes({**settings, "max-memory": limit.most}) < limit.most
    log.warn(
        "max-memory: with {value} the broker may exceed {name} ({limit}), and the system then "
        "kills it or refuses it memory; {remedy}",
        value=size_text(nbytes),
        name=limit.name,
        limit=size_text(limit.nbytes),
        remedy=f"set {size_text(limit.most)} or less, or raise that limit"
        if fits
        else "raise that limit, as the history alone needs more",
        unlimited=True,
    )


def _of_process() -> Iterator[MemoryLimit]:
    for kind, name, own in (
        (resource.RLIMIT_AS, "RLIMIT_AS", _OWN_ADDRESSES),
        (resource.RLIMIT_DATA, "RLIMIT_DATA", _OWN),
    ):
        nbytes, _ = resource.getrlimit(kind)
        if nbytes != resource.RLIM_INFINITY:
            yield MemoryLimit(nbytes, name, own)


def _of_machine(root: Path) -> Iterator[MemoryLimit]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemTotal:"):
            yield MemoryLimit(int(line.split()[1]) * 1024, "the memory of the machine")


def _of_cgroups(root: Path) -> Iterator[MemoryLimit]:
    """Yield the limits of the groups of the process, and of those that these are in."""
    paths = dict(_group_paths(root))
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, file_system = line.partition(" - ")
        # By single spaces, as the source of a mount can be empty.
        kind, _, options = file_system.split(" ", 2)
        if kind not in paths or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        _, _, _, top, place, *_ = mount.split()
        # Seen from a container, the path may be that on the host, of which a part is mounted.
        path = paths[kind].removeprefix(top.rstrip("/")).strip("/")
        for group in (Path(path), *Path(path).parents):
            for name in _FILES[kind]:
                file = Path(place) / group / name
                for text in _lines(root / str(file).lstrip("/")):
                    if text.isdecimal() and int(text) < _NO_LIMIT:
                        yield MemoryLimit(int(text), str(file))


def _group_paths(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the path of the group of the process in each hierarchy that limits memory."""
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield "cgroup2", path
        elif "memory" in controllers.split(","):
            yield "cgroup", path


def _lines(path: Path) -> list[str]:
    """Return the lines of a file; none if it does not exist."""
    with suppress(OSError):
        # The names of mounts and groups may be any bytes.
        return path.read_text("utf-8", "surrogateescape").splitlines()
    return []
