"""The options and files that a broker needs for a wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Preparation:
    """Options for the command line of the broker, and files in its directory."""

    options: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
