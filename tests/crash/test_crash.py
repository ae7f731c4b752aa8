"""The broker is killed repeatedly under load. ``python -m tests.crash`` is the long form."""

from __future__ import annotations

import os
from pathlib import Path

from tests.crash.lives import crash

LOOPS = int(os.environ.get("PUBSUB_CRASHES", "50"))


def test_acknowledged_messages_are_there_once_and_offsets_continue(tmp_path: Path) -> None:
    result = crash(tmp_path, LOOPS, seed=1)
    assert result.acknowledged > 100
    assert result.stored >= result.acknowledged
