"""The command ``pubsub pipeline`` as a process, with its children in one process group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.integration.broker import TIMEOUT, environment

PUBSUB = str(Path(sys.executable).with_name("pubsub"))
ROOT = Path(__file__).parents[2]


class Command:
    """A running command."""

    def __init__(
        self,
        *arguments: object,
        program: Sequence[str] = (PUBSUB, "pipeline"),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [*program, *map(str, arguments)],
            cwd=ROOT,
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        """Read the next line of its output."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def signal(self, number: int) -> None:
        """Send a signal to the command, but not to its children."""
        self._process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the command's process group."""
        os.killpg(self._process.pid, number)

    def finish(self) -> tuple[int, str, str]:
        """Return its exit code, output and errors. Kills the remaining processes of its group."""
        try:
            out, err = self._process.communicate(timeout=4 * TIMEOUT)
        finally:
            self.discard()
        return self._process.returncode, out, err

    def discard(self) -> None:
        """Kill the command in any state."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()


def pipeline(*arguments: object) -> tuple[int, str, str]:
    """Run ``pubsub pipeline`` with these arguments to its end."""
    return Command(*arguments).finish()
