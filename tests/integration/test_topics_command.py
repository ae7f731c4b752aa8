"""``pubsub topics`` over the HTTP API of a broker, and the completion: see docs/command.md."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.integration.broker import HOST, PATIENCE, Start, listen
from tests.integration.clients import Cafe, publish
from tests.integration.command import PUBSUB, error, output, settings, url


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
    assert "pubsub topics lists" in error("topics", "delete", "none", "--yes", env=env)
    assert output("topics", "delete", "cafe/7", "--yes", env=env) == b""
    assert output("topics", env=env) == b""


def test_no_broker(tmp_path: Path) -> None:
    env = settings("", tmp_path)
    text = error("topics", "--url=http://127.0.0.1:1", env=env)
    assert text == (
        "pubsub: http://127.0.0.1:1: the broker cannot be reached: connection refused; check the "
        "URL, and that the broker runs\n"
    )
    assert "PUBSUB_API" in error("topics", "--url=cafe://127.0.0.1:1", env=env)


def test_completion_in_bash(tmp_path: Path) -> None:
    script = (
        f'export PATH="{Path(PUBSUB).parent}:$PATH"; eval "$(pubsub completion bash)"; '
        'COMP_WORDS=(pubsub to); COMP_CWORD=1; _pubsub_completion pubsub; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=settings("", tmp_path), capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("topics token\n", ""), done
    for shell in ("zsh", "fish"):
        assert b"_PUBSUB_COMPLETE" in output("completion", shell, env=settings("", tmp_path))


def test_the_reader_of_a_pipe_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$1" --help | true; echo ${PIPESTATUS[0]}', "bash", PUBSUB],
        env=settings("", tmp_path), capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"0\n", b"")
