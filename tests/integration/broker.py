"""The broker under test: a process of ``twistd pubsub`` whose output is read by line.

Nothing here sleeps: a thread reads the output, and a test waits for a line, for the end of the
process, or for a timeout that only a hanging broker reaches.

The environment variable BROKER_MODE starts brokers in one of ``MODES``, so that the same tests try
them without tuning, or in another reactor.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.forked_process import fork, run_fork

HOST = "127.0.0.1"
TWISTD = str(Path(sys.executable).with_name("twistd"))
# Generous, as only a hanging broker takes so long.
TIMEOUT = 90.0
DEFECTS = ("Traceback", "Unhandled Error", "Unhandled error")
STARTED = r"history: "
MODE = os.environ.get("BROKER_MODE", "default")
_LISTENING = re.compile(r"\b([\w-]+) on (tcp|tls|udp) 127\.0\.0\.1:(\d+)$")
_STOPPED = re.compile(
    r"stopped: (?P<published>\d+) published, (?P<delivered>\d+) delivered, "
    r"(?P<dropped>\d+) dropped, (?P<refused>\d+) refused"
)


@dataclass(frozen=True)
class Mode:
    """A way to start a broker: options of twistd, options of pubsub, environment variables."""

    of_twistd: Sequence[str] = ()
    of_pubsub: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    # Otherwise each broker is an execution of the script, with the imports of its own.
    forked: bool = True

    def command(self, twistd: Sequence[str], pubsub: Sequence[str]) -> list[str]:
        """Return the command with these options of twistd and of pubsub."""
        return [TWISTD, *self.of_twistd, *twistd, "pubsub", *self.of_pubsub, *pubsub]


MODES = {
    "default": Mode(),
    "plain": Mode((), ["--tuning=off"], {"PUBSUB_KERNEL": "interpreted"}, forked=False),
    "asyncio": Mode(["--reactor=asyncio"]),
}


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without the variables of a service manager."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LISTEN_", "NOTIFY_"))}
    return {**kept, "PYTHONUNBUFFERED": "1", **MODES[MODE].environment, **(extra or {})}


def listen(*protocols: str) -> list[str]:
    """Return options that serve these protocols on free loopback ports."""
    return [f"--listen={name}=tcp:0:interface={HOST}" for name in protocols]


def stored(options: Sequence[str]) -> list[str]:
    """Return ``options`` with a history in memory, unless they name a store."""
    if any(option.startswith("--store") for option in options):
        return list(options)
    return [*options, "--store=memory"]


def run(
    options: Sequence[str],
    cwd: Path,
    before: Sequence[str] = ("-n", "--pidfile="),
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``twistd <before> pubsub <options>`` to its end."""
    command = MODES[MODE].command(before, stored(options))
    if MODES[MODE].forked and not env:
        done = run_fork(command, cwd, environment(), TIMEOUT / 2)
        if done is not None:
            return done
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT / 2,
        check=False,
    )


def run_to_end(
    command: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` to its end, with ``env`` added to the environment of the tests."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def run_python(code: str, *arguments: str, env: dict[str, str], cwd: Path | None = None) -> str:
    """Run ``code`` in a Python process, which must succeed, and return its output."""
    result = run_to_end([sys.executable, "-c", code, *arguments], env, cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


class Broker:
    """A running broker, made by ``running`` or the fixture ``start``."""

    def __init__(
        self,
        options: Sequence[str],
        cwd: Path,
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._killed = False
        command = MODES[MODE].command(("-n", "--pidfile="), stored(options))
        forked = None
        if MODES[MODE].forked and not (before or env or pass_fds):
            forked = fork(command, cwd, environment())
        self._process = forked or subprocess.Popen(
            [*before, *command],
            cwd=cwd,
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        """The output so far."""
        with self._news:
            return "".join(self._lines)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._add(line.decode(errors="replace"))
        self._add(None)

    def _add(self, line: str | None) -> None:
        with self._news:
            if line is None:
                self._ended = True
            else:
                self._lines.append(line)
            self._news.notify_all()

    def wait_line(self, pattern: str, count: int = 1) -> re.Match[str]:
        """Wait for the ``count``-th match of ``pattern`` in the output and return it."""
        expression = re.compile(pattern, re.MULTILINE)
        deadline = time.monotonic() + TIMEOUT
        with self._news:
            while True:
                found = list(expression.finditer("".join(self._lines)))
                if len(found) >= count:
                    return found[count - 1]
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    raise AssertionError(f"no {pattern!r} in:\n{''.join(self._lines)}")
                self._news.wait(left)

    def ports(self, protocol: str, kind: str = "tcp") -> list[int]:
        """Return the ports of this protocol's listeners in the order of their start; ``tcp``
        includes TLS."""
        found = (_LISTENING.search(line.rstrip()) for line in self.output.splitlines())
        kinds = ("tcp", "tls") if kind == "tcp" else (kind,)
        return [int(m[3]) for m in found if m is not None and m[1] == protocol and m[2] in kinds]

    def port(self, protocol: str, kind: str = "tcp") -> int:
        """Return the port of this protocol's first listener."""
        return self.ports(protocol, kind)[0]

    def memory(self, field: str = "VmRSS") -> int:
        """Return the resident memory in bytes: the present (VmRSS) or the highest (VmHWM)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
        assert match is not None
        return int(match[1]) * 1024

    def page_faults(self) -> int:
        """Return the number of page faults so far."""
        after_name = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2]
        return int(after_name.split()[7])

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        if self.alive:
            self._process.send_signal(number)

    def wait(self, seconds: float = TIMEOUT) -> int:
        """Wait for its end, read all output and return the exit code. Raises TimeoutExpired."""
        code = self._process.wait(seconds)
        self._reader.join(TIMEOUT)
        return code

    def kill(self) -> None:
        """Kill it as part of the test."""
        self._killed = True
        self.discard()

    def stop(self) -> None:
        """Stop it with SIGTERM. Unless it was killed, it must end without an error."""
        if self._killed:
            return
        self.signal()
        try:
            code = self.wait()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not stop:\n{self.output}") from None
        # After a clean shutdown twistd ends itself with the signal.
        assert code in (0, -signal.SIGTERM, -signal.SIGINT), self.output

    def totals(self) -> dict[str, int]:
        """Return the numbers of the ``stopped:`` line."""
        match = _STOPPED.search(self.output)
        assert match is not None, self.output
        return {name: int(value) for name, value in match.groupdict().items()}

    def check(self) -> None:
        """Check that the output has no sign of a defect."""
        assert not any(word in self.output for word in DEFECTS), self.output

    def discard(self) -> None:
        """Kill it in any state."""
        if self.alive:
            self._process.kill()
        self.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


Start = Callable[..., Broker]


@contextlib.contextmanager
def brokers(cwd: Path) -> Iterator[Start]:
    """Yield a function that starts brokers: ``start(*options, env=None, before=(), pass_fds=())``.

    At the end each must stop on SIGTERM without a sign of a defect.
    """
    started: list[Broker] = []

    def start(
        *options: str,
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
    ) -> Broker:
        broker = Broker(options, cwd, env, before, pass_fds)
        try:
            broker.wait_line(STARTED)
        except BaseException:
            broker.discard()
            raise
        started.append(broker)
        return broker

    try:
        yield start
        for broker in started:
            broker.stop()
            broker.check()
    finally:
        for broker in started:
            broker.discard()
