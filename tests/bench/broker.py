"""The measured process: its start on a core, its resource usage, and its stop."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench import BenchError
from tests.bench.wires import PREPARATIONS, Preparation, Wire

HOST = "127.0.0.1"
START_SECONDS = 30.0
# Brokers give their clients ten seconds to disconnect.
STOP_SECONDS = 15.0
POLL_SECONDS = 0.05
LOG_TAIL_LINES = 15


class Broker:
    """A context manager for one broker process.

    The broker is ready when `ready` matches its output. The first group of the match is its port,
    and a second group, if there is one, the port for publishers. The process runs in a temporary
    directory with `files`, which only their owner can read, and which is deleted at the end. Other
    paths in `command` must be absolute. `variables` are added to the environment.
    """

    def __init__(
        self,
        command: Sequence[str],
        ready: re.Pattern[str],
        core: int,
        files: Mapping[str, bytes] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.port = self.publish_port = 0
        self._command = command
        self._ready = ready
        self._core = core
        # The line with the port must not stay in a buffer.
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(variables or {})}
        self._directory = tempfile.TemporaryDirectory(prefix="bench-broker-")
        self._log = Path(self._directory.name, "output")
        for name, content in (files or {}).items():
            path = Path(self._directory.name, name)
            path.touch(mode=0o600)
            path.write_bytes(content)

    def __enter__(self) -> Broker:
        try:
            self._process = self._start()
        except BaseException:
            self._directory.cleanup()
            raise
        try:
            self._await_port()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> subprocess.Popen[bytes]:
        # A child inherits the affinity of its parent. Set later, it would miss existing threads.
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self._core})
        try:
            with self._log.open("wb") as output:
                return subprocess.Popen(
                    self._command,
                    cwd=self._directory.name,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
        except OSError as error:
            raise BenchError(f"cannot start {self._command[0]}: {error}") from error
        finally:
            os.sched_setaffinity(0, cores)

    def _await_port(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while (match := self._ready.search(self._log.read_text(errors="replace"))) is None:
            if self._exited_within(POLL_SECONDS):
                raise self._start_error(f"exited with {self._process.returncode}")
            if time.monotonic() > deadline:
                raise self._start_error(f"did not report its port within {START_SECONDS:.0f} s")
        self.port = int(match[1])
        self.publish_port = int(match[match.re.groups])

    def _start_error(self, what: str) -> BenchError:
        error = BenchError(f"the broker {what}: {' '.join(self._command)}")
        error.add_note(self.log_tail())
        return error

    def _exited_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _stop(self) -> None:
        self._process.terminate()
        if not self._exited_within(STOP_SECONDS):
            self._process.kill()
            self._process.wait()
        self._directory.cleanup()

    @property
    def directory(self) -> Path:
        """The directory in which the process runs."""
        return Path(self._directory.name)

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @property
    def publish_address(self) -> tuple[str, int]:
        """The address for publishers, for most brokers the same as `address`."""
        return HOST, self.publish_port

    def output(self) -> str:
        """Return all that the process has written."""
        return self._log.read_text(errors="replace")

    def log_tail(self) -> str:
        """Return the last lines of the output."""
        return "\n".join(self.output().splitlines()[-LOG_TAIL_LINES:])

    def cpu_seconds(self) -> float:
        """Return the CPU time of all threads, user and system, with nanosecond resolution.

        The clock is that of clock_getcpuclockid(3), which Python offers for threads only.
        /proc/<pid>/stat has a resolution of a hundredth of a second.
        """
        try:
            return time.clock_gettime((~self._process.pid << 3) | 2)
        except OSError as error:
            raise BenchError(f"the broker has exited: {error}") from error

    def spread(self, cores: set[int]) -> None:
        """Let all threads, and those that they start, run on these cores."""
        for thread in Path(f"/proc/{self._process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)

    def held_up_seconds(self) -> float:
        """Return how long the main thread was ready to run while its core was busy."""
        return int(self._proc("schedstat").split()[1]) / 1e9

    def resident_bytes(self) -> int:
        """Return the resident memory (VmRSS)."""
        match = re.search(r"^VmRSS:\s+(\d+) kB$", self._proc("status"), re.MULTILINE)
        return int(match[1]) * 1024 if match else 0

    def _proc(self, name: str) -> str:
        try:
            return Path(f"/proc/{self._process.pid}/{name}").read_text()
        except OSError as error:
            raise BenchError(f"the broker has exited: {error}") from error

    def python_version(self) -> str:
        """Return the version of the broker's interpreter, which can differ from this one."""
        return _first_line([os.readlink(f"/proc/{self._process.pid}/exe"), "-V"])


def twistd_broker(
    twistd: Path,
    wire: Wire,
    options: Sequence[str],
    core: int,
    variables: Mapping[str, str] | None = None,
) -> Broker:
    """Return this project's broker on a free loopback port, with `options` added."""
    listen = f"{wire.name}=tcp:0:interface={HOST}"
    prepared = PREPARATIONS.get(wire.name, Preparation())
    command = [str(twistd), "-n", "--pidfile=", "pubsub", "--listen", listen]
    ready = re.compile(rf"{wire.name} on tcp {re.escape(HOST)}:(\d+)")
    # Only durable runs use a file.
    store = [] if any(option.startswith("--store") for option in options) else ["--store=memory"]
    command += [*prepared.options, *store, *options]
    return Broker(command, ready, core, prepared.files, variables)


def twisted_version(twistd: Path) -> str:
    """Return the version of Twisted that `twistd` belongs to."""
    return _first_line([str(twistd), "--version"]).rpartition(" ")[2]


def kernel_of(twistd: Path) -> str:
    """Return which kernel the environment of `twistd` has: compiled or interpreted."""
    code = "from pubsub.kernel import COMPILED as c; print(c and 'compiled' or 'interpreted')"
    return _first_line([str(twistd.with_name("python")), "-c", code]) + " kernel"


def _first_line(command: Sequence[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return (result.stdout.splitlines() or ["unknown"])[0]


def port_of(broker: Broker, protocol: str) -> int:
    """Return the TCP port of a protocol of this broker. Raises BenchError."""
    found = re.search(rf"\b{protocol} on tcp {re.escape(HOST)}:(\d+)", broker.output())
    if found is None:
        raise BenchError(f"the broker does not serve {protocol}")
    return int(found[1])
