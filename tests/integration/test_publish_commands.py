"""``pubsub pub`` and ``pubsub sub`` as a user runs them: processes, pipes, a terminal, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.broker import HOST, TIMEOUT, Start, listen
from tests.integration.command import PUBSUB, error, output, run, settings, url
from tests.integration.wire import wire_to
from tests.waiting import until

TOPIC = "cafe/7"


@contextmanager
def subscriber(
    env: dict[str, str], *arguments: str, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a running ``pubsub sub`` whose output has begun: it has printed the stored messages."""
    with subprocess.Popen(
        [PUBSUB, "sub", TOPIC, "--from", "earliest", *arguments],
        env=env, stdout=stdout, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


class TestPublishing:
    """pubsub pub"""

    def stored(self, env: dict[str, str]) -> list[bytes]:
        return output("tail", "-n", "1000", TOPIC, env=env).splitlines()

    def test_an_argument(self, env: dict[str, str]) -> None:
        assert output("pub", TOPIC, "hello", env=env) == b""
        assert output("pub", TOPIC, "", env=env) == b""
        assert output("pub", TOPIC, "--", "-n", env=env) == b""
        assert self.stored(env) == [b"hello", b"", b"-n"]

    def test_lines_of_standard_input(self, env: dict[str, str]) -> None:
        assert output("pub", TOPIC, env=env, stdin=b"a\nb\n\nc") == b""
        assert self.stored(env) == [b"a", b"b", b"", b"c"]
        many = b"".join(b"%d\n" % number for number in range(5000))
        assert output("pub", TOPIC, "--count", "900", env=env, stdin=many) == b""
        assert self.stored(env)[-900:] == many.splitlines()[:900]

    def test_a_file(self, env: dict[str, str], tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"\x00two\nlines\xff")
        output("pub", TOPIC, "--file", str(path), env=env)
        output("pub", TOPIC, "--file", "-", env=env, stdin=path.read_bytes())
        raw = output("tail", "--format", "raw", TOPIC, env=env)
        assert raw == path.read_bytes() * 2
        assert "No such file" in error("pub", TOPIC, "--file=/none", env=env)

    def test_count_rate_and_confirmation(self, env: dict[str, str]) -> None:
        shown = output(
            "pub", TOPIC, "x", "--count", "30", "--rate", "1000", "--confirm", "--json", env=env
        )
        assert json.loads(shown) == {
            "topic": TOPIC, "published": 30, "failed": 0, "confirmed": "handled",
        }  # fmt: skip
        assert self.stored(env) == [b"x"] * 30

    def test_a_message_that_is_in_a_pipe_is_published_at_once(self, env: dict[str, str]) -> None:
        with (
            subscriber(env) as sub,
            subprocess.Popen([PUBSUB, "pub", TOPIC], env=env, stdin=subprocess.PIPE) as pub,
        ):
            assert pub.stdin is not None
            for text in (b"first\n", b"second\n"):
                pub.stdin.write(text)
                pub.stdin.flush()
                assert first_line(sub) == text
            pub.stdin.close()
            assert pub.wait(TIMEOUT) == 0

    def test_errors(self, env: dict[str, str]) -> None:
        text = error("pub", TOPIC, "x", "--url=cafe://127.0.0.1:1", env=env)
        assert "cannot connect to cafe://127.0.0.1:1" in text
        hint = "check the URL, as each protocol has a port of its own, and that the broker runs"
        assert text.endswith(f"; {hint}\n")
        text = error("pub", TOPIC, "x", "--url=cafe+tls://127.0.0.1:1", env=env)
        assert "that --tls-ca names the authority of its certificate, and --tls-cert" in text
        assert "cafe cannot address" in error("pub", "orders", "x", env=env)
        assert "cannot carry" in error("pub", TOPIC, "x", "-H", "a=b", env=env)
        assert "NAME=VALUE" in error("pub", TOPIC, "x", "-H", "a", env=env, code=2)
        assert "exclude" in error("pub", TOPIC, "x", "--file=y", env=env, code=2)
        assert "usage: pubsub pub" in error("pub", env=env, code=2)
        assert "expected a finite number" in error("pub", TOPIC, "x", "--rate=inf", env=env, code=2)
        assert "expected a finite number" in error("sub", TOPIC, "--timeout=nan", env=env, code=2)
        assert "no client for 'gopher'" in error("pub", TOPIC, "x", "--url=gopher://h", env=env)


class TestSubscribing:
    """pubsub sub"""

    def test_it_ends_after_a_count(self, env: dict[str, str]) -> None:
        output("pub", TOPIC, env=env, stdin=b"a\nb\nc")
        assert output("sub", TOPIC, "--from", "0", "-n", "2", env=env) == b"a\nb\n"
        assert output("sub", TOPIC, "--from", "1h", "-n", "3", env=env) == b"a\nb\nc\n"
        assert output("sub", TOPIC, "--from", "1", "-vn1", "-F", "hex", env=env) == b"cafe/7 62\n"

    def test_several_topics(self, env: dict[str, str]) -> None:
        for number in (1, 2, 3):
            output("pub", f"cafe/{number}", str(number), env=env)
        shown = output("sub", "cafe/1", "cafe/3", "-v", "--from=0", "-n2", env=env)
        assert shown == b"cafe/1 1\ncafe/3 3\n"

    def test_json(self, env: dict[str, str]) -> None:
        output("pub", TOPIC, "a", env=env)
        shown = json.loads(output("sub", TOPIC, "--from=0", "-n1", "-F", "json", env=env))
        assert (shown["topic"], shown["payload"], shown["offset"]) == (TOPIC, "a", 0)

    def test_a_time(self, env: dict[str, str]) -> None:
        done = run("sub", TOPIC, "--timeout", "0.5", env=env)
        assert (done.returncode, done.stdout, done.stderr) == (124, b"", b"")

    def test_ctrl_c(self, env: dict[str, str]) -> None:
        output("pub", TOPIC, "a", env=env)
        with subscriber(env) as sub:
            assert first_line(sub) == b"a\n"
            sub.send_signal(signal.SIGINT)
            assert sub.communicate(timeout=TIMEOUT) == (b"", b"")
            assert sub.returncode == 130

    def test_the_reader_of_the_pipe_ends(self, env: dict[str, str]) -> None:
        """Also while nothing is published."""
        output("pub", TOPIC, "a", env=env)
        with subscriber(env) as sub:
            assert first_line(sub) == b"a\n"
            assert sub.stdout is not None
            sub.stdout.close()
            assert sub.wait(TIMEOUT) == 0
            assert sub.stderr is not None
            assert sub.stderr.read() == b""

    def test_a_reader_that_does_not_read(self, env: dict[str, str]) -> None:
        """The messages wait, and none is lost."""
        lines = b"".join(b"%0100d\n" % number for number in range(20_000))
        with subscriber(env, "--count", "20000") as sub:
            output("pub", TOPIC, "--confirm", env=env, stdin=lines)
            assert sub.communicate(timeout=TIMEOUT) == (lines, b"")

    def test_a_full_disk(self, env: dict[str, str]) -> None:
        output("pub", TOPIC, "a", env=env)
        full = os.open("/dev/full", os.O_WRONLY)
        with subscriber(env, stdout=full) as sub:
            os.close(full)
            assert sub.communicate(timeout=TIMEOUT)[1] == b"pubsub: No space left on device\n"
            assert sub.returncode == 1

    def test_history_over_a_wire_without_one(self, env: dict[str, str]) -> None:
        without = {name: value for name, value in env.items() if name != "PUBSUB_API"}
        assert "PUBSUB_API" in error("sub", TOPIC, "--from=0", "-n1", env=without)
        assert "PUBSUB_API" in error("sub", TOPIC, "--from=earliest", "-n1", env=without)


class TestTerminal:
    """Standard output is a terminal."""

    def shown(self, env: dict[str, str], *arguments: str) -> bytes:
        """Return the command's output on a terminal."""
        master, slave = pty.openpty()
        with subprocess.Popen(
            [PUBSUB, *arguments], env={**env, "COLUMNS": "80", "TERM": "xterm"},
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        ) as process:  # fmt: skip
            os.close(slave)
            timer = threading.Timer(TIMEOUT, process.kill)
            timer.start()
            found = b""
            try:
                while part := os.read(master, 65536):
                    found += part
            except OSError:
                # The other end is closed.
                pass
            timer.cancel()
            assert process.wait(TIMEOUT) == 0, found
        os.close(master)
        return found

    def test_control_characters_are_escaped(self, env: dict[str, str]) -> None:
        output("pub", TOPIC, "\x1b[2Jred", env=env)
        assert self.shown(env, "sub", TOPIC, "--from=0", "-n1") == b"\\x1b[2Jred\r\n"
        assert output("sub", TOPIC, "--from=0", "-n1", env=env) == b"\x1b[2Jred\n"

    def test_topics_are_a_table(self, env: dict[str, str]) -> None:
        output("pub", TOPIC, "hello", env=env)
        shown = self.shown(env, "topics").decode()
        title, *rows = shown.splitlines()
        assert "messages" in title
        assert any(line.startswith(f"{TOPIC}  ") for line in rows)
        assert "\t" not in shown

    def test_progress_is_shown(self, env: dict[str, str], tmp_path: Path) -> None:
        output("pub", TOPIC, "x", "--count=5000", env=env)
        shown = self.shown(env, "replay", TOPIC, "--output", str(tmp_path / "out"))
        assert b"100%" in shown
        assert b"received" in self.shown(env, "bench", "-n", "2000")


def test_the_connection_is_lost_before_a_confirmation(start: Start, tmp_path: Path) -> None:
    broker = start(*listen("cafe"), "--admin-port=0")
    env = settings(url(broker, "http"), tmp_path)
    with wire_to(broker.port("cafe")) as wire:
        command = [PUBSUB, "pub", TOPIC, "--confirm", "--json", f"--url=cafe://{HOST}:{wire.port}"]
        with subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            until(lambda: run("tail", TOPIC, env=env).stdout == b"one\n", "the message is stored")
            wire.stop()
            process.stdin.write(b"two\n")
            process.stdin.flush()
            assert wire.holds.wait(TIMEOUT)
            wire.cut()
            wire.mend()
            wire.go_on()
            shown, errors = process.communicate(b"three\n", TIMEOUT)
    found = json.loads(shown)
    assert (found["published"], found["failed"], process.returncode) == (2, 1, 1)
    assert errors.startswith(b"pubsub: ")
    assert errors.count(b"\n") == 1
    assert run("tail", TOPIC, env=env).stdout == b"one\nthree\n"


def test_replay_up_to_a_message_that_is_too_large(start: Start, tmp_path: Path) -> None:
    broker = start(*listen("cafe"), "--admin-port=0")
    env = settings(url(broker, "http"), tmp_path)
    output("pub", TOPIC, env=env, stdin=b"one\ntwo\n")
    request = urllib.request.Request(
        f"{url(broker, 'http')}/v1/topics/cafe%2F7/messages", bytes(1024 * 1024), method="POST"
    )
    with urllib.request.urlopen(request):
        pass
    output("pub", TOPIC, "three", env=env)
    text = error("replay", TOPIC, "--into", "cafe/8", "--quiet", env=env)
    assert "offset 2: " in text
    assert "go on with --from 3" in text
    assert output("tail", "cafe/8", env=env) == b"one\ntwo\n"
    output("replay", TOPIC, "--into", "cafe/8", "--quiet", "--from", "3", env=env)
    assert output("tail", "cafe/8", env=env) == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_standard_stream_is_closed(start: Start, tmp_path: Path, closed: str) -> None:
    env = settings(url(start(*listen("cafe"), "--admin-port=0"), "http"), tmp_path)
    for command in (f"pub {TOPIC}", "topics", f"tail {TOPIC}", "passwd users bob"):
        done = subprocess.run(
            ["sh", "-c", f"{PUBSUB} {command} {closed}"], env=env, cwd=tmp_path,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
        assert done.stderr.count(b"\n") <= 1, done.stderr
        assert done.returncode == (1 if "passwd" in command else 0)


@pytest.mark.parametrize("command", ["sub", "tail --follow"])
def test_messages_without_an_end_need_standard_output(
    start: Start, tmp_path: Path, command: str
) -> None:
    """With a closed one, no reader that ends would end the command."""
    env = settings(url(start(*listen("cafe"), "--admin-port=0"), "http"), tmp_path)
    done = subprocess.run(
        ["sh", "-c", f"{PUBSUB} {command} {TOPIC} >&-"], env=env, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert done.stderr == (
        b"pubsub: standard output is closed; write > /dev/null to discard the messages\n"
    )
    assert done.returncode == 1


@pytest.mark.parametrize("protocol", ["cafe", "nsd", "rheos", "spot", "http"])
def test_every_protocol(protocol: str, start: Start, tmp_path: Path) -> None:
    """Its messages are read over the API, and messages of another client arrive."""
    served = {"cafe", protocol} - {"http"}
    broker = start(*listen(*served), f"--admin-port=tcp:0:interface={HOST}")
    env = settings(url(broker, protocol), tmp_path, PUBSUB_API=url(broker, "http"))
    output("pub", TOPIC, env=env, stdin=b"a\nb")
    assert output("tail", TOPIC, env=env) == b"a\nb\n"
    with subscriber(env, "--count", "3") as sub:
        assert first_line(sub) == b"a\n"
        output("pub", TOPIC, "c", "--url", url(broker, "cafe"), env=env)
        assert (first_line(sub), first_line(sub)) == (b"b\n", b"c\n")
        assert sub.wait(TIMEOUT) == 0
