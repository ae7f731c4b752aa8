"""The log of a running broker, as an operator sees it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.integration.broker import HOST, MODE, MODES, TIMEOUT, Start, environment, listen

BAD_FRAME = b"\x00" * 16


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def spoil(port: int, count: int = 1) -> None:
    """Connect ``count`` times, and send bytes that no protocol knows."""
    for _ in range(count):
        with socket.create_connection((HOST, port), TIMEOUT) as client:
            client.sendall(BAD_FRAME)
            while client.recv(1000):
                pass


def test_json_lines(start: Start) -> None:
    broker = start(*listen("cafe"), "--log-format=json", "--log-level=wire=debug")
    broker.wait_line('"cafe on tcp')
    port = json_lines(broker.output)
    (line,) = (one for one in port if one["message"].startswith("cafe on tcp"))
    assert line["level"] == "info"
    assert line["namespace"] == "pubsub.wire.listener_service"
    assert line["where"].startswith(f"tcp {HOST}:")
    spoil(int(line["where"].rpartition(":")[2]))
    broker.wait_line("closed")
    broker.stop()
    lines = json_lines(broker.output)
    opened, refused, closed = (one for one in lines if "mark" in one)
    assert opened["mark"] == refused["mark"] == closed["mark"]
    assert opened["peer"] == refused["peer"] == closed["peer"]
    assert refused["level"] == "warn"
    assert refused["protocol"] == "cafe"
    assert refused["reason"] == closed["reason"]


def test_lines_that_repeat_are_rationed_and_records_are_not(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "pubsub.toml"
    file.write_text("")
    broker = start(*listen("cafe"), f"--config={file}")

    def written() -> int:
        return len(re.findall(r"reload: reloaded: ", broker.output))

    reloads = 0
    # A machine that takes more than ten seconds for some of them sees further windows.
    while reloads - written() < 5 and reloads < 200:
        reloads += 1
        broker.signal(signal.SIGHUP)
        broker.wait_line('audit: .*"reload"', reloads)
    broker.stop()
    counted = re.findall(r"repeated (\d+) times, the last: reloaded: ", broker.output)
    assert 10 <= written() < reloads
    assert written() + sum(map(int, counted)) == reloads


def test_the_levels_of_the_file_are_applied_at_sighup(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "pubsub.toml"
    file.write_text('log-level = "info"\n')
    broker = start(*listen("cafe"), f"--config={file}")
    spoil(broker.port("cafe"))
    file.write_text('log-level = "wire=debug"\n')
    broker.signal(signal.SIGHUP)
    broker.wait_line("reloaded")
    spoil(broker.port("cafe"))
    broker.wait_line("connection of .* closed")
    assert broker.output.count("connection opened") == 1


def test_a_tls_listener_is_named_in_the_log(start: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    pem = tmp_path / "cert.pem"
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(pem)
    broker = start(f"--listen=cafe=ssl:0:interface={HOST}:privateKey={pem}")
    broker.wait_line(rf"cafe on tls {re.escape(HOST)}:\d+$")


@pytest.mark.parametrize("as_json", [False, True])
def test_the_file_of_a_daemon(tmp_path: Path, as_json: bool) -> None:
    """--logfile, --pidfile, a signal for a new file."""
    log, pidfile = tmp_path / "own.log", tmp_path / "own.pid"
    options = [*listen("cafe"), "--store=memory", *(["--log-format=json"] if as_json else [])]
    command = MODES[MODE].command([f"--logfile={log}", f"--pidfile={pidfile}"], options)
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=TIMEOUT)
    pid = int(pidfile.read_text())
    try:
        stop_when_logged(log, pid)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    lines = log.read_text().splitlines()
    if as_json:
        assert {"level", "message", "namespace", "time"} <= json.loads(lines[-1]).keys()
    else:
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\S+ info \S+: ", lines[-1])


def stop_when_logged(log: Path, pid: int) -> None:
    """Stop the daemon, and wait until the end of the process."""
    waiting = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGTERM)
        assert select.select([waiting], [], [], TIMEOUT)[0], log.read_text()
    finally:
        os.close(waiting)


def journalled(cwd: Path, *options: str) -> tuple[list[str], int]:
    """Return the lines that the journal gets, and the exit code; a broker that starts is stopped.

    As with systemd, the output is a socket whose device and inode are in JOURNAL_STREAM.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        status = os.fstat(theirs.fileno())
        command = MODES[MODE].command(["-n", "--pidfile="], [*options, "--store=memory"])
        stream = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        output = theirs.detach()
        with subprocess.Popen(
            command, cwd=cwd, env=environment(stream), stdout=output, stderr=output
        ) as process:
            os.close(output)
            ours.settimeout(TIMEOUT)
            text = b""
            while data := ours.recv(65536):
                text += data
                if b"history: " in text:
                    process.terminate()
            code = process.wait(TIMEOUT)
    return text.decode().splitlines(), code


def test_the_journal_gets_priorities(tmp_path: Path) -> None:
    lines, _ = journalled(tmp_path, *listen("cafe"))
    assert all(re.match(r"<[2-7]>\S+: ", line) for line in lines), lines
    assert any(re.match(r"<6>wire.listener_service: cafe on tcp ", line) for line in lines)


@pytest.mark.parametrize("kind", ["option", "configuration", "start"])
def test_the_journal_gets_the_reason_as_an_error(tmp_path: Path, kind: str) -> None:
    """`journalctl --priority err` shows why a service does not start."""
    with socket.create_server((HOST, 0)) as taken:
        options = {
            "option": ["--max-topics=x"],
            "configuration": [f"--secret-file={tmp_path / 'missing'}", *listen("fast")],
            "start": [f"--listen=cafe=tcp:{taken.getsockname()[1]}:interface={HOST}"],
        }
        lines, code = journalled(tmp_path, *options[kind])
    assert code == 1
    assert lines[-1].startswith("<3>pubsub: "), lines


def test_a_logger_of_the_operators_own(start: Start, tmp_path: Path) -> None:
    """twistd's --logger replaces the broker's log."""
    (tmp_path / "own_log.py").write_text(
        "import sys\n"
        "from twisted.logger import FileLogObserver, formatEvent\n"
        "def observer():\n"
        "    return FileLogObserver(sys.stdout, lambda event: f'own: {formatEvent(event)}\\n')\n"
    )
    result = subprocess.run(
        [
            *MODES[MODE].command(
                ["-n", "--pidfile=", "--logger=own_log.observer"],
                ["--listen=cafe=tcp:1:interface=203.0.113.1", "--store=memory"],
            )
        ],
        cwd=tmp_path,
        env=environment({"PYTHONPATH": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert "own: pubsub " in result.stdout, result
