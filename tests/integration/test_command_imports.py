"""A command imports only the modules that it uses, as imports are most of its time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).parents[2]
_PROGRAM = """
import sys
from pubsub.commands.command import main
main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
"""
# Modules that other commands or the broker need; each of them takes 5 to 200 ms.
_HEAVY = {
    "OpenSSL", "argparse", "cryptography", "deltalake", "http.client", "hypothesis",
    "importlib.metadata", "jwt", "pyarrow", "pubsub.broker.service", "pubsub.pipeline",
    "pubsub.server", "pubsub.store", "pyspark", "rich", "sqlite3", "tempfile",
    "twisted", "urllib3", "zope",
}  # fmt: skip


def imported(*arguments: str) -> set[str]:
    """Return the modules that are imported after the command has run."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stderr.splitlines()[-1].split())


class ImportTests(SynchronousTestCase):
    """sys.modules"""

    def test_publishing_and_subscribing(self) -> None:
        for scheme in ("cafe", "nsd", "rheos", "spot", "http"):
            url = f"--url={scheme}://127.0.0.1:1"
            for command in (("pub", "cafe/7", "x"), ("sub", "cafe/7")):
                found = imported(*command, url)
                assert "pubsub.client" in found
                # Of websockets, for its version.
                own = {"importlib.metadata", "tempfile"} if scheme == "http" else set()
                assert not found & _HEAVY - own, (scheme, command)

    def test_help_and_completion(self) -> None:
        for command in (("--help",), ("pub", "--help"), ("completion", "bash")):
            found = imported(*command)
            assert not found & {*_HEAVY, "asyncio", "pubsub.client"}, command

    def test_the_entry_point_before_it_handles_ctrl_c(self) -> None:
        """Until then Ctrl-C shows a traceback."""
        program = "import sys; import pubsub_broker; print(*sys.modules)"
        # Without the module site, which imports for the installed packages.
        done = subprocess.run(
            [sys.executable, "-S", "-c", program],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert not set(done.stdout.split()) & {"contextlib", "importlib.util", "pathlib", "typing"}
