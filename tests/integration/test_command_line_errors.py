"""A failed start prints one line, without a traceback, exits with 1 and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.broker import DEFECTS, HOST, TIMEOUT, TWISTD, listen, run
from tests.integration.one_line import assert_one_line
from tests.waiting import until


@pytest.fixture
def taken() -> Iterator[int]:
    """Yield a port that is in use."""
    with socket.create_server((HOST, 0)) as server:
        yield server.getsockname()[1]


LINES: list[tuple[list[str], str]] = [
    (["--nonsense"], "nonsense"),
    (["--nonsense=1"], "nonsense"),
    (["surplus"], "surplus"),
    (["--port"], "port"),
    (["--udp=yes"], "udp"),
    (["--proto=morse", "--port=0"], "morse"),
    (["--listen=morse=tcp:0"], "morse"),
    (["--listen=cafe"], "--listen"),
    (["--listen=cafe="], "--listen"),
    (["--proto=cafe", "--proto=nsd", "--port=0"], "2 --proto but 1 --port"),
    (["--proto=cafe", "--port=0", "--port=0"], "1 --proto but 2 --port"),
    (["--port=0"], "0 --proto but 1 --port"),
    (["--proto=cafe", "--port=65536"], "65536"),
    (["--proto=cafe", "--port=-1"], "-1"),
    (["--proto=cafe", "--port=http"], "http"),
    (["--listen=cafe=carrier-pigeon:0"], "carrier-pigeon"),
    (["--listen=cafe=tcp:port=http"], "tcp:port=http"),
    (["--listen=cafe=tcp:"], "tcp:"),
    (["--listen=cafe=tcp:0:nonsense=1"], "nonsense"),
    (["--listen=cafe=systemd:name=cafe.socket"], "systemd"),
    (["--listen=cafe=systemd:domain=INET:name=cafe.socket"], "systemd"),
    (["--listen=cafe=systemd:domain=INET:index=0"], "systemd"),
    (["--listen=cafe=unix:/nonexistent/cafe.sock"], "/nonexistent"),
    (["--listen=cafe=tcp:0:interface=192.0.2.1"], "192.0.2.1"),
    (["--slow-bytes=lots"], "slow-bytes"),
    (["--slow-consumer=shrug"], "slow-consumer"),
    (["--slow-seconds=-1"], "slow-seconds"),
    (["--slow-seconds=nan"], "slow-seconds"),
    (["--max-connections=-1"], "max-connections"),
    (["--max-connections=1.5"], "max-connections"),
    (["--history=many"], "history"),
    (["--history=1,2,3"], "history"),
    (["--max-memory=1M", "--listen=cafe=tcp:0"], "max-memory"),
    (["--cafe-channels=256"], "channels"),
    (["--cafe-channels=1:x,2:x"], "same topic"),
    (["--nsd-max-body=-1"], "max-body"),
    (["--config=/nonexistent/pubsub.toml"], "No such file"),
    (["--config=/"], "directory"),
]


@pytest.mark.parametrize(("options", "about"), LINES, ids=[" ".join(o) for o, _ in LINES])
def test_invalid_command_lines(tmp_path: Path, options: list[str], about: str) -> None:
    assert_one_line(run(options, tmp_path), about)
    assert not list(tmp_path.iterdir())


FILES: list[tuple[bytes, str]] = [
    (b"this is no TOML", "pubsub.toml"),
    (b"history = \xff", "pubsub.toml"),
    (b"histroy = 5", "did you mean history?"),
    (b"max-body = 5", "max-body"),
    (b"[cafe]\nmax-body = 5", "max-body"),
    (b"[nsd]\nresume-window = 5", "resume-window"),
    (b"[morse]\nport = 5", "morse"),
    (b"cafe = 7", "cafe"),
    (b"listen = 7", "listen"),
    (b"[listen]\nprotocol = 'cafe'", "listen"),
    (b"[[listen]]\nport = 0", "protocol"),
    (b"[[listen]]\nprotocol = 'morse'", "morse"),
    (b"[[listen]]\nprotocol = 'cafe'\nprot = 0", "did you mean"),
    (b"[[listen]]\nprotocol = 'cafe'\nport = 0\nendpoint = 'tcp:0'", "give one of them"),
    (b"[[listen]]\nprotocol = 'cafe'\nport = 1.5", "1.5"),
    (b"[[listen]]\nprotocol = 'cafe'\nport = true", "True"),
    (b"[[listen]]\nprotocol = 'cafe'\nendpoint = ['tcp:0']", "tcp:0"),
    (b"[[listen]]\nprotocol = ['cafe']", "cafe"),
    (b"[[listen]]\nprotocol = 'cafe'\nport = 0\nudp = 'maybe'", "udp"),
    (b"slow-consumer = 'shrug'", "slow-consumer"),
    (b"interface = 5", "interface"),
    (b"history = true", "history"),
    (b"allow-publish = [1]", "allow-publish"),
    (b"max-connections = true", "max-connections"),
]


@pytest.mark.parametrize(("content", "about"), FILES, ids=[str(c)[2:-1] for c, _ in FILES])
def test_invalid_files(tmp_path: Path, content: bytes, about: str) -> None:
    file = tmp_path / "pubsub.toml"
    file.write_bytes(content)
    assert_one_line(run([f"--config={file}"], tmp_path), about)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("pidfile", ["", "pubsub.pid"])
def test_a_taken_port(tmp_path: Path, taken: int, pidfile: str) -> None:
    result = run(
        [f"--listen=cafe=tcp:{taken}:interface={HOST}"], tmp_path, ["-n", f"--pidfile={pidfile}"]
    )
    assert_one_line(result, f"cafe: cannot listen on tcp:{taken}:interface={HOST}: Address")
    assert not list(tmp_path.iterdir())


def test_a_port_that_is_none(tmp_path: Path) -> None:
    result = run([f"--listen=cafe=tcp:99999:interface={HOST}"], tmp_path)
    assert_one_line(result, f"cafe: cannot listen on tcp:99999:interface={HOST}: a port is")


def test_a_port_given_twice(tmp_path: Path, taken: int) -> None:
    """The first listener is open by then and is closed as well."""
    result = run(["--proto=nsd", "--port=0", "--proto=cafe", f"--port={taken}"], tmp_path)
    assert_one_line(result, "cafe: cannot listen")
    assert "nsd on tcp" in result.stdout


def test_a_taken_udp_port(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((HOST, 0))
        port = udp.getsockname()[1]
        result = run([f"--listen=cafe=tcp:{port}:interface={HOST}", "--udp"], tmp_path)
    assert_one_line(result, "cafe: cannot listen")


def test_udp_beside_a_unix_socket(tmp_path: Path) -> None:
    result = run([f"--listen=cafe=unix:{tmp_path / 'sock'}", "--udp"], tmp_path)
    assert_one_line(result, "UDP")


def test_a_taken_port_as_a_daemon(tmp_path: Path, taken: int) -> None:
    result = run(
        [f"--listen=cafe=tcp:{taken}:interface={HOST}"],
        tmp_path,
        ["--pidfile=pubsub.pid", "--logfile=pubsub.log"],
    )
    assert result.returncode != 0
    # twistd prints the error before it cleans up.
    until(lambda: [path.name for path in tmp_path.iterdir()] == ["pubsub.log"], "the pid file")
    until(lambda: "cannot start" in (tmp_path / "pubsub.log").read_text(), "the line")
    log = (tmp_path / "pubsub.log").read_text()
    assert not any(word in result.stdout + result.stderr + log for word in DEFECTS)
    # twistd shows 100 bytes of an error on the terminal; the log has all of it.
    assert "cafe: cannot listen" in result.stderr
    (line,) = [line for line in log.splitlines() if "cannot start" in line]
    assert line.endswith(
        f"tcp:{taken}:interface={HOST}: Address already in use; stop the program that listens "
        "there, or choose another port"
    )


def test_a_history_that_cannot_be_opened_as_a_daemon(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(
        [*listen("cafe"), f"--store=log:{tmp_path / 'file'}"],
        tmp_path,
        ["--pidfile=pubsub.pid", "--logfile=pubsub.log"],
    )
    assert result.returncode != 0
    path = tmp_path / "pubsub.log"
    until(lambda: "cannot start" in path.read_text(), "the line")
    log = path.read_text()
    assert sum("cannot start: history: " in line for line in log.splitlines()) == 1
    assert not any(word in log for word in DEFECTS)


def test_a_wrong_option_as_a_daemon(tmp_path: Path) -> None:
    assert_one_line(run(["--nonsense"], tmp_path, ["--pidfile=pubsub.pid"]), "nonsense")
    assert not list(tmp_path.iterdir())


def test_a_pid_file_in_use_is_not_removed(tmp_path: Path, taken: int) -> None:
    (tmp_path / "other.pid").write_text("1")
    run([f"--listen=cafe=tcp:{taken}:interface={HOST}"], tmp_path, ["-n", "--pidfile=new.pid"])
    assert [path.name for path in tmp_path.iterdir()] == ["other.pid"]


def test_an_unknown_kernel(tmp_path: Path) -> None:
    """It is not taken for the default: a typing error would otherwise go unnoticed."""
    result = run(["--proto=cafe", "--port=0"], tmp_path, env={"PUBSUB_KERNEL": "bogus"})
    assert_one_line(result, "PUBSUB_KERNEL: there is no kernel 'bogus'")


def test_sigint_before_the_reactor_runs(tmp_path: Path) -> None:
    """The start stands still at a configuration file that is a pipe, which the test writes to."""
    pipe = tmp_path / "pubsub.toml"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [TWISTD, "-n", "--pidfile=", "pubsub", f"--config={pipe}"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell without job control ignores the signal in its background processes.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process, pipe.open("w"):
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == -signal.SIGINT
    assert output == ""
