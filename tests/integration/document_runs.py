"""Runs the blocks of one page, in order and in one directory, beside a broker on other ports.

Default ports in a block are replaced by the broker's. A shell keeps its variables and its directory
from block to block. Some commands are not what they are elsewhere: ``twistd pubsub`` checks its
options and makes the broker, but does not start it, ``make`` prints what it would run, and
``curl`` fails if the response is an error.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from pubsub.plugin import installed_protocols
from pubsub.server.configuration import CommandLine, merge
from tests.integration.broker import environment
from tests.integration.document_blocks import ROOT, Block

# Of a block, which may run ten programs one after another; only a hang reaches it.
SECONDS = 300
_BIN = Path(sys.executable).parent
_PLAIN = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
_TESTS: Mapping[str, tuple[str, ...]] = {
    "pytest": (*_PLAIN, "-p", "no:twisted"),
    "pytest-twisted": _PLAIN,
    "trial": ("-m", "twisted.trial"),
    "unittest": ("-m", "unittest"),
}
_SHELL = """set -eu
[ -e .variables ] && . ./.variables
PATH={path}
set -a
{block}
set +a
{{ export -p; echo "cd '$PWD'"; }} > {directory}/.variables
"""
_TWISTD = """#!{python}
import sys
from twisted.internet.testing import MemoryReactorClock
from pubsub.server.tap import Options, make_broker
arguments = sys.argv[sys.argv.index("pubsub") + 1:]
options = Options()
options.parseOptions(arguments)
make_broker(options.config, MemoryReactorClock())
"""
# A response without an end is read for a second.
_CURL = """#!/bin/sh
seconds=60
case "$*" in *follow=1*) seconds=1 ;; esac
{curl} --silent --show-error --fail-with-body --max-time $seconds "$@" && exit
code=$?
[ $code = 28 ] && [ $seconds = 1 ] || exit $code
"""
_MAKE = '#!/bin/sh\nexec {make} -n -C {root} "$@" > /dev/null\n'


class PageRun:
    """Runs blocks in ``directory``. ``ports`` replaces numbers in them, such as 7070."""

    def __init__(self, directory: Path, ports: Mapping[int, int]) -> None:
        self._directory = directory
        self._ports = {str(port): str(other) for port, other in ports.items()}
        self._output = ""
        self._count = 0
        self._shims = directory / ".bin"
        self._shims.mkdir()
        self._add_command("twistd", _TWISTD.format(python=sys.executable))
        self._add_command("make", _MAKE.format(make=shutil.which("make"), root=ROOT))
        self._add_command("curl", _CURL.format(curl=shutil.which("curl")))
        self._make_environment(directory / ".venv" / "bin")
        self._path = f"{self._shims}:{_BIN}:{os.environ['PATH']}"
        # The default of the command, on the broker's port; the contexts are those of HOME.
        url = f"http://127.0.0.1:{ports.get(7080, 7080)}"
        self._environment = environment(
            {"PATH": self._path, "HOME": str(directory), "PUBSUB_URL": url}
        )
        self._environment.pop("XDG_CONFIG_HOME", None)
        self._languages: dict[str, Callable[[str], None]] = {
            "sh": self._run_shell,
            "python": self._run_python,
            "toml": _check_toml,
            "json": _check_json,
            "ini": _check_ini,
        }

    def run(self, block: Block) -> None:
        """Run it as its comment or its language says; raises AssertionError if that fails."""
        kind, _, rest = block.note.partition(": ")
        text = self._replace(block.text)
        try:
            if kind == "output":
                self._compare(text)
            elif kind == "file":
                self._write(rest, text)
            elif kind == "run":
                self._run_tests(rest, text)
            else:
                assert not block.note, f"no such comment: {block.note}"
                assert block.language in self._languages, f"mark it: {block.language} cannot be run"
                self._languages[block.language](text)
        except Exception as error:
            raise AssertionError(f"{block}: {error}\n{block.text}") from None

    def _replace(self, text: str) -> str:
        return re.sub(r"\b7\d{3}\b", lambda found: self._ports.get(found[0], found[0]), text)

    def _add_command(self, name: str, source: str) -> None:
        (self._shims / name).write_text(source)
        (self._shims / name).chmod(0o755)

    def _make_environment(self, directory: Path) -> None:
        """Link the programs of the virtual environment, except those that are replaced here."""
        directory.mkdir(parents=True)
        for command in _BIN.iterdir():
            replaced = self._shims / command.name
            (directory / command.name).symlink_to(replaced if replaced.exists() else command)

    def _write(self, name: str, text: str) -> None:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _run_shell(self, text: str) -> None:
        script = _SHELL.format(path=self._path, block=text, directory=self._directory)
        self._call("sh", "-c", script)

    def _run_python(self, text: str) -> None:
        name = f"example{self._number()}.py"
        self._write(name, text)
        self._call(sys.executable, name)

    def _run_tests(self, runner: str, text: str) -> None:
        name = f"test_example{self._number()}"
        self._write(f"{name}.py", text)
        argument = f"{name}.py" if "pytest" in runner else name
        self._call(sys.executable, *_TESTS[runner], argument)

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _call(self, *command: str) -> None:
        done = subprocess.run(
            command,
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
        self._output = done.stdout

    def _compare(self, expected: str) -> None:
        pattern = ".*".join(map(re.escape, expected.strip().split("...")))
        assert re.fullmatch(pattern, self._output.strip(), re.DOTALL), f"got:\n{self._output}"


def _check_toml(text: str) -> None:
    document = tomllib.loads(text)
    # Files with keys and passwords are the operator's.
    document.pop("keys", None)
    tables = [document, *document.get("listen", [])]
    tables += [table for table in document.values() if isinstance(table, dict)]
    for table in tables:
        for name in [name for name in table if name.endswith("-file")]:
            del table[name]
    merge(installed_protocols(), CommandLine(), document)


def _check_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        for line in text.splitlines():
            json.loads(line)


def _check_ini(text: str) -> None:
    # A key may be given several times in the files of systemd.
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(text)
    assert parser.sections()
