"""The check of systemd's units by systemd itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

# Of systemd 254, which earlier versions ignore.
_LATER = re.compile(r"Unknown key( name)? 'Restart(Steps|MaxDelaySec)'")


def problems_of(directory: Path, names: Sequence[str]) -> list[str]:
    """Return what systemd-analyze says about these units in ``directory``."""
    command = ["systemd-analyze", "verify", *(str(directory / name) for name in names)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    found = [one for one in (done.stdout + done.stderr).splitlines() if not _LATER.search(one)]
    return found if done.returncode == 0 else [f"exit code {done.returncode}", *found]
