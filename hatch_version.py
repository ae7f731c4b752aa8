"""The version of a build: with the commit that it is made of, unless that is a release.

`0.1.0+202611272011.ge48c0827` is commit e48c0827, of 27 November 2026, 20:11 UTC. Such a version is
later than 0.1.0, and indexes of packages refuse it. Without a checkout of git nothing is added; a
build from an sdist keeps the version of the sdist.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent
TIMEOUT = 30


def of_build(release: str, root: Path = ROOT) -> str:
    """Return the version of a build in ``root`` towards ``release``, or of that release itself."""
    try:
        if Path(_git(root, "rev-parse", "--show-toplevel")).resolve() != root.resolve():
            # The source lies in the checkout of something else.
            return release
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
        if not changed and f"v{release}" in _git(root, "tag", "--points-at", "HEAD").split():
            return release
        commit = _git(root, "log", "-1", "--format=%cd.g%h", "--date=format-local:%Y%m%d%H%M")
    except (OSError, subprocess.SubprocessError):
        return release
    return f"{release}+{commit}{'.modified' if changed else ''}"


def _git(root: Path, *arguments: str) -> str:
    """Return what git prints; raises as ``subprocess.run``."""
    # A hook of git would name its own repository.
    environment = {name: v for name, v in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-c", "core.abbrev=8", "-C", str(root), *arguments],
        env={**environment, "TZ": "UTC"},
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    return done.stdout.strip()
