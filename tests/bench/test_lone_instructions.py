"""The functions on the path of a lone message are called, each as the one before it calls it."""

from __future__ import annotations

import subprocess
import sys


def test_each_function_is_called() -> None:
    command = [sys.executable, "-m", "tests.bench.lone_instructions", "serve"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    names = [line.split(" ", 1)[1] for line in text.splitlines()]
    assert names[0] == "a call of nothing"
    assert len(names) == len(set(names)) == 17
