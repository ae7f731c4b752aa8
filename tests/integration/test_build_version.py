"""The version of a build: with the commit that it is made of, unless that is a release."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from hatch_version import of_build

# Nothing of the user's configuration, such as signatures.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_COMMITTER_DATE": "2026-11-27T22:11:00+02:00",
}
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.org")


def git(directory: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *AUTHOR, *arguments],
        cwd=directory, env=ENVIRONMENT, check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip


def test_a_build_has_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    # The environment of a hook of git.
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    assert of_build("1.0", tmp_path) == "1.0"
    git(tmp_path, "init", "--quiet")
    assert of_build("1.0", tmp_path) == "1.0"
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message=one")
    commit = git(tmp_path, "rev-parse", "--short=8", "HEAD")
    assert of_build("1.0", tmp_path) == f"1.0+202611272011.g{commit}"
    file.write_text("two")
    assert of_build("1.0", tmp_path) == f"1.0+202611272011.g{commit}.modified"
    git(tmp_path, "checkout", "--quiet", "file")
    git(tmp_path, "tag", "v1.0")
    assert of_build("1.0", tmp_path) == "1.0"
    assert of_build("1.1", tmp_path) == f"1.1+202611272011.g{commit}"


def test_source_in_the_checkout_of_something_else(tmp_path: Path) -> None:
    inner = tmp_path / "vendor"
    inner.mkdir()
    (inner / "file").write_text("one")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "vendor/file")
    git(tmp_path, "commit", "--quiet", "--message=one")
    assert of_build("1.0", inner) == "1.0"
    assert re.fullmatch(r"1\.0\+\d{12}\.g[0-9a-f]{8}", of_build("1.0", tmp_path))
