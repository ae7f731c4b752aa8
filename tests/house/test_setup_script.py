"""``scripts/setup`` on machines that lack something, in a directory whose name has a space."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.unit.fakes import scratch

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup"
TOOLS = ("dirname", "sed", "touch", "dpkg-query", "grep", "cp", "mkdir")
# It says what it was called with, and fails if that begins with FAILS.
_FAKE = """\
#!/bin/sh
echo "${0##*/} $*"
case "$*" in "FAILS"*) exit 100 ;; esac
"""
# A Python whose environments have such a Python, too.
_PYTHON = """\
#!/bin/sh
[ "$1 $2" = "-m venv" ] || exec {python} "$@"
echo "python $*"
mkdir -p .venv/bin
cp tools/works .venv/bin/python
"""
PACKAGES = ["apt-get update -q", "apt-get install -qy --no-install-recommends"]
INSTALL = "python -m pip install"


class SetupScriptTests(SynchronousTestCase):
    """The set-up of the tests, by root, without the packages of Debian"""

    def setUp(self) -> None:
        self.root = scratch(self) / "a checkout"
        self.tools = self.root / "tools"
        self.tools.mkdir(parents=True)
        (self.root / "scripts").mkdir()
        shutil.copy(SCRIPT, self.root / "scripts")
        for name in TOOLS:
            if found := shutil.which(name):
                (self.tools / name).symlink_to(found)
        self.fake("python").write_text(_PYTHON.format(python=sys.executable))
        self.fake("works")
        self.fake("id").write_text("#!/bin/sh\necho 0\n")
        self.fake("apt-get")
        self.fake(".venv/bin/python", self.root)

    def fake(self, name: str, directory: Path | None = None, fails: str = "nothing") -> Path:
        """Make a command that only says that it was called."""
        path = (directory or self.tools) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_FAKE.replace("FAILS", fails))
        path.chmod(0o755)
        return path

    def run_it(self) -> tuple[int, list[str]]:
        """Run the set-up; return its exit code and the commands that it has called."""
        done = subprocess.run(
            ["/bin/sh", self.root / "scripts" / "setup", "dev"],
            env={"PATH": str(self.tools), "PYTHON": "python"},
            capture_output=True,
            text=True,
            check=False,
        )
        words = [line.split() for line in done.stdout.splitlines()]
        return done.returncode, [" ".join(one[:4]) for one in words]

    def is_complete(self) -> bool:
        """Whether make takes the set-up for done."""
        return (self.root / ".venv" / ".installed-dev").exists()

    def test_missing_packages_are_installed_first(self) -> None:
        assert self.run_it() == (0, [*PACKAGES, INSTALL])
        assert self.is_complete()

    def test_lists_that_cannot_be_updated(self) -> None:
        self.fake("apt-get", fails="update")
        assert self.run_it() == (0, [*PACKAGES, INSTALL])

    def test_packages_that_cannot_be_installed_are_no_set_up(self) -> None:
        self.fake("apt-get", fails="")
        assert self.run_it() == (100, PACKAGES)
        assert not self.is_complete()

    def test_a_network_that_goes_away(self) -> None:
        self.fake(".venv/bin/python", self.root, fails="-m pip install")
        assert self.run_it()[0] == 100
        assert not self.is_complete()
        self.fake(".venv/bin/python", self.root)
        assert self.run_it()[0] == 0
        assert self.is_complete()

    def test_an_environment_without_pip_is_made_again(self) -> None:
        self.fake(".venv/bin/python", self.root, fails="-m pip")
        assert self.run_it() == (0, [*PACKAGES, "python -m venv --clear", INSTALL])
        assert self.is_complete()
        assert self.run_it() == (0, [*PACKAGES, INSTALL])
