"""What a broker needs to speak a wire, beyond the wire's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Preparation:
    """Options for its command line, and files for its directory that they may name."""

    options: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
