"""The version, and the form of the kernel that is in use: compiled or interpreted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

from pubsub.errors import ConfigurationError
from pubsub.kernel import COMPILED

_CHOICES = ("", "compiled", "interpreted")
"""Values of PUBSUB_KERNEL; the first two select the compiled kernel if there is one."""


def build_kind() -> str:
    """Return ``compiled`` or ``interpreted``."""
    return "compiled" if COMPILED else "interpreted"


def check_kernel_choice(environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError if PUBSUB_KERNEL has a value that selects nothing.

    The kernel itself takes every other value than ``interpreted`` for the default.
    """
    choice = environment.get("PUBSUB_KERNEL", "")
    if choice not in _CHOICES:
        raise ConfigurationError(
            f"PUBSUB_KERNEL: there is no kernel {choice!r}; set it to interpreted or compiled, "
            "or unset it"
        )


@cache
def version() -> str:
    """Return the version that is installed, or ``unknown`` if the package is not installed.

    It has the commit of a build between releases (``hatch_version.py``), unless the installation is
    editable: that one keeps the commit at which it was made, and the code may be of another.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution("pubsub-broker")
    except PackageNotFoundError:
        return "unknown"
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        return found.version.partition("+")[0]
    return found.version
