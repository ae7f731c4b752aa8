"""The test vectors of the specifications, in ``seeds/vectors``."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

VECTORS = Path(__file__).parents[1] / "seeds" / "vectors"


def load_vectors(name: str) -> Any:
    """Return the contents of ``<name>.json``."""
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


def frame_of_vector(codec: ModuleType, vector: dict[str, Any]) -> Any:
    """Return the frame of a vector of ``frames``; ``codec`` has its type."""
    fields = {
        name: bytes.fromhex(value) if isinstance(value, str) else value
        for name, value in vector["fields"].items()
    }
    return getattr(codec, vector["type"])(**fields)
