"""Output and files that cannot be written: one line of error, and the exit code of a failure."""

from __future__ import annotations

import os
import resource
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.integration.broker import TIMEOUT, environment
from tests.integration.command import PUBSUB

# As in a shell: otherwise nothing is held back until the process ends.
BUFFERED = environment({"PYTHONUNBUFFERED": ""})


@pytest.mark.parametrize("arguments", [("completion", "bash"), ("--help",), ("--version",)])
def test_a_file_that_cannot_grow(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (0, 0))
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            [PUBSUB, *arguments], env=BUFFERED, stdout=out, stderr=subprocess.PIPE,
            timeout=TIMEOUT, preexec_fn=limit, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, b"pubsub: File too large\n")


def test_a_failure_whose_output_nobody_reads() -> None:
    """What was printed before the error is discarded, and the error keeps its exit code."""
    program = (
        "import sys\nfrom unittest.mock import patch\nfrom pubsub.commands import command\n"
        "def fail(arguments):\n    print('a row')\n    raise ValueError('no more rows')\n"
        "with patch.object(command, '_invoke', fail):\n    sys.exit(command.main([]))\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [Path(PUBSUB).with_name("python"), "-c", program], env=BUFFERED, stdout=writer,
        stderr=subprocess.PIPE, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"pubsub: no more rows\n")


@pytest.mark.parametrize("name", ["secret", "curve-key"])
def test_a_secret_that_cannot_be_written_to_its_end(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new"
    # Enough for a part of it.
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (8, 8))
    done = subprocess.run(
        [PUBSUB, name, path], env=BUFFERED, capture_output=True, timeout=TIMEOUT,
        preexec_fn=limit, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == f"pubsub: {path}: File too large\n"
    assert list(tmp_path.iterdir()) == []
