"""The broker is killed under load again and again. ``python -m tests.crash`` does it for long."""

from __future__ import annotations

import os
from pathlib import Path

from tests.crash.lives import crash

LOOPS = int(os.environ.get("PUBSUB_CRASHES", "50"))


def test_what_was_acknowledged_is_there_once_and_offsets_go_on(tmp_path: Path) -> None:
    result = crash(tmp_path, LOOPS, seed=1)
    assert result.acknowledged > 100
    assert result.stored >= result.acknowledged
