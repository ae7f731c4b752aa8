"""Standard output whose reader has ended, such as ``head`` or a pager."""

from __future__ import annotations

import os
import sys


def discard_output() -> None:
    """Discard the rest of standard output: its reader has ended.

    Otherwise the interpreter would fail to write the rest when it ends, and say so.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
