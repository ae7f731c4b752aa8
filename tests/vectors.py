"""The test vectors of the specifications, in ``seeds/vectors``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[1] / "seeds" / "vectors"


def load_vectors(name: str) -> Any:
    """Return the contents of ``<name>.json``."""
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
