"""``pubsub topics`` over the HTTP API of a broker, and the completion: see docs/command.md."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.integration.broker import HOST, TIMEOUT, Start, listen
from tests.integration.clients import Cafe, publish
from tests.integration.command import PUBSUB, error, output, settings, url
from tests.integration.needs import missing


def test_listing_and_deleting(start: Start, tmp_path: Path) -> None:
    broker = start(*listen("cafe"), f"--admin-port=tcp:0:interface={HOST}")
    env = settings(url(broker, "http"), tmp_path)
    assert output("topics", env=env) == b""
    with Cafe.publisher(broker, 7) as publisher:
        publisher.send(publish(7, b"hello"), publish(7, b"again"))
        publisher.sync()
    assert output("topics", env=env).startswith(b"cafe/7\t2\t")
    (row,) = map(json.loads, output("topics", "--json", env=env).splitlines())
    assert (row["name"], row["messages"]) == ("cafe/7", 2)
    assert "--yes" in error("topics", "delete", "cafe/7", env=env)
    assert "pubsub topics list shows" in error("topics", "delete", "none", "--yes", env=env)
    assert output("topics", "delete", "cafe/7", "--yes", env=env) == b""
    assert output("topics", env=env) == b""


def test_no_broker(tmp_path: Path) -> None:
    env = settings("", tmp_path)
    text = error("topics", "--url=http://127.0.0.1:1", env=env)
    assert text == (
        "pubsub: http://127.0.0.1:1: the broker cannot be reached: connection refused; check the "
        "URL, as each protocol has a port of its own, and that the broker runs\n"
    )
    assert "PUBSUB_API" in error("topics", "--url=cafe://127.0.0.1:1", env=env)


def test_completion_in_bash(tmp_path: Path) -> None:
    script = (
        'eval "$(pubsub completion bash)"; COMP_WORDS=(pubsub to); COMP_CWORD=1; '
        '_pubsub_completion pubsub; echo "${COMPREPLY[@]}"'
    )
    assert shell("bash", "-c", script, home=tmp_path) == "topics token\n"


def test_completion_in_fish(tmp_path: Path) -> None:
    script = (
        'pubsub completion fish | source; complete -C "pubsub to"; complete -C "pubsub sub -F he"'
    )
    lines = shell("fish", "-N", "-c", script, home=tmp_path).splitlines()
    assert [line.split("\t")[0] for line in lines] == ["token", "topics", "hex"]


def test_completion_in_zsh(tmp_path: Path) -> None:
    # Only an interactive zsh completes. The word is split, so that its echo is not its output.
    lines = b'autoload -U compinit; compinit -u -D; eval "$(pubsub completion zsh)"; echo rea""dy\n'
    with terminal("zsh", "-f", "-i", env=searching(tmp_path)) as (read_until, write):
        write(lines)
        read_until(b"ready")
        write(b"pubsub to\t")
        read_until(b"make and inspect tokens")
        write(b"pics li\t")
        read_until(b"pics list ")


def searching(home: Path) -> dict[str, str]:
    """Return an environment that finds the command."""
    found = f"{Path(PUBSUB).parent}:{os.environ['PATH']}"
    return {**settings("", home), "PATH": found, "HOME": str(home), "TERM": "dumb"}


def shell(name: str, *arguments: str, home: Path) -> str:
    """Return what a shell prints, which is no error."""
    need(name)
    done = subprocess.run(
        [name, *arguments], env=searching(home), capture_output=True, text=True,
        timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert done.stderr == "", done
    return done.stdout


def need(name: str) -> None:
    """Fail if the shell is not installed."""
    if shutil.which(name) is None:
        missing(name)


@contextmanager
def terminal(
    *command: str, env: dict[str, str]
) -> Iterator[tuple[Callable[[bytes], None], Callable[[bytes], int]]]:
    """Run a command on a terminal; yield what reads up to some bytes, and what types."""
    need(command[0])
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)

    def read_until(what: bytes) -> None:
        got = b""
        while what not in got:
            assert select.select([ours], [], [], TIMEOUT)[0], got
            got += os.read(ours, 4096)

    try:
        yield read_until, partial(os.write, ours)
    finally:
        process.kill()
        process.wait(TIMEOUT)
        os.close(ours)


def test_the_reader_of_a_pipe_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$1" --help | true; echo ${PIPESTATUS[0]}', "bash", PUBSUB],
        env=settings("", tmp_path), capture_output=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"0\n", b"")
