"""The command ``pubsub`` as a user runs it: a process, its output and its exit code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.integration.broker import HOST, TIMEOUT, Broker, environment

PUBSUB = str(Path(sys.executable).with_name("pubsub"))


def url(broker: Broker, protocol: str) -> str:
    """Return the URL of a listener of ``broker``; ``http`` is the HTTP API."""
    return f"{protocol}://{HOST}:{broker.port(protocol)}"


def settings(where: str, home: Path, **more: str) -> dict[str, str]:
    """Return an environment in which commands connect to ``where``, without contexts."""
    return environment({"PUBSUB_URL": where, "XDG_CONFIG_HOME": str(home), **more})


def run(
    *arguments: str, env: Mapping[str, str], stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end."""
    return subprocess.run(
        [PUBSUB, *arguments], env=env, input=stdin, capture_output=True, timeout=TIMEOUT,
        check=False,
    )  # fmt: skip


def output(*arguments: str, env: Mapping[str, str], stdin: bytes = b"") -> bytes:
    """Return the output of a command that must succeed without a word on standard error."""
    done = run(*arguments, env=env, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout


def error(*arguments: str, env: Mapping[str, str], stdin: bytes = b"", code: int = 1) -> str:
    """Return the one line on standard error of a command that must fail."""
    done = run(*arguments, env=env, stdin=stdin)
    text = done.stderr.decode()
    assert done.returncode == code, done
    assert text.startswith("pubsub: ")
    assert text.count("\n") == 1, text
    return text
