"""A forked broker is like one that was executed, to the system and to the tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.integration.broker import HOST, MODE, MODES, Broker, Start, environment, listen, run
from tests.integration.forked_process import ForkedProcess, fork

# A wrapper without an effect, because of which the broker is executed.
ALONE = ("env",)
OPTIONS = [*listen("cafe", "nsd"), f"--admin-port=tcp:0:interface={HOST}"]
pytestmark = pytest.mark.skipif(not MODES[MODE].forked, reason="this mode executes all brokers")


def properties(broker: Broker) -> dict[str, object]:
    """Return what the system tells of a broker, without the numbers of files and sockets."""
    # A response shows that the reactor runs; it handles signals from then on. The connection is one
    # of the files.
    with closing(HTTPConnection(HOST, broker.port("http"), timeout=60)) as client:
        client.request("GET", "/healthz")
        client.getresponse().read()
        return _properties(broker)


def _properties(broker: Broker) -> dict[str, object]:
    process = Path(f"/proc/{broker.pid}")
    files = {
        int(file.name): re.sub(r"\d+", "N", os.readlink(file))
        for file in (process / "fd").iterdir()
    }
    status = (process / "status").read_text()
    return {
        "files": files,
        "directory": os.readlink(process / "cwd"),
        "limits": (process / "limits").read_text(),
        "program": os.readlink(process / "exe"),
        "signals": re.findall(r"^(Sig(?:Blk|Ign|Cgt)):\s+(\w+)", status, re.MULTILINE),
        "threads": re.findall(r"^Threads:\s+(\d+)", status, re.MULTILINE),
        "umask": re.findall(r"^Umask:\s+(\d+)", status, re.MULTILINE),
    }


def command(*options: str) -> list[str]:
    return MODES[MODE].command(("-n", "--pidfile="), options)


def forked(directory: Path, *options: str) -> ForkedProcess:
    process = fork(command(*options), directory, environment())
    assert process is not None
    return process


def test_a_fork_is_like_an_execution(start: Start) -> None:
    """Beside another fork, whose descriptors it must not have."""
    start(*OPTIONS)
    assert properties(start(*OPTIONS)) == properties(start(*OPTIONS, before=ALONE))


def test_forks_differ_from_executions(start: Start) -> None:
    """A fork has the arguments of the fork server."""
    programs = [
        Path(f"/proc/{broker.pid}/cmdline").read_bytes().split(b"\0")[1]
        for broker in (start(*OPTIONS), start(*OPTIONS, before=ALONE))
    ]
    assert [Path(os.fsdecode(name)).name for name in programs] == ["fork_server.py", "twistd"]


def test_the_end_of_a_fork(tmp_path: Path) -> None:
    process = forked(tmp_path, "--no-such-option")
    assert process.wait(60) == 1
    assert process.poll() == 1
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    with process.stdout as output:
        assert b"option --no-such-option not recognized" in output.read()


def test_a_fork_is_killed(tmp_path: Path) -> None:
    process = forked(tmp_path, *OPTIONS, "--store=memory")
    assert process.stdout is not None
    with process.stdout as output:
        assert any(b"history: " in line for line in output)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("option", ["--version", "--no-such-option"])
def test_a_run_is_like_an_execution(tmp_path: Path, option: str) -> None:
    done = run([option], tmp_path)
    assert (done.stdout == "") == (done.returncode == 1)
    assert (done.stderr == "") == (done.returncode == 0)
    # Because of the variable it is executed.
    executed = run([option], tmp_path, env={"UNUSED": ""})
    assert (done.returncode, done.stdout, done.stderr) == (
        executed.returncode, executed.stdout, executed.stderr,
    )  # fmt: skip


def test_another_environment_is_not_forked(tmp_path: Path) -> None:
    other = environment({"PUBSUB_KERNEL": "interpreted"})
    assert fork(command("--help"), tmp_path, other) is None
