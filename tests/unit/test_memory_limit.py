"""The warning about a ``max-memory`` beyond the limits of a container, a process or a machine."""

from __future__ import annotations

import resource
from pathlib import Path
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.server.memory_limit import warn_beyond_limit
from pubsub.store.history_location import StoreLocation
from tests.unit.fakes import scratch
from tests.unit.streams import logged

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
MEBIBYTE = 1024**2
V2 = "24 1 0:21 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "25 1 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "26 1 0:23 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


class MemoryLimitTests(SynchronousTestCase):
    """warn_beyond_limit"""

    def setUp(self) -> None:
        self.root = scratch(self)
        self.write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:   1 kB\n")
        self.lines = logged(self)
        self.patch(resource, "getrlimit", lambda kind: UNLIMITED)  # type: ignore[no-untyped-call]

    def write(self, name: str, content: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def v2(self, group: str, mounts: str = V2) -> None:
        """Put the process in this group."""
        self.write("proc/self/cgroup", f"0::{group}\n")
        self.write("proc/self/mountinfo", mounts)

    def warned(self, max_memory: int, store: StoreLocation | None = None) -> str:
        """Return the warning, or an empty string."""
        store = store or StoreLocation(Path("/nowhere"))
        settings = {"max-memory": max_memory, "store": store, "history": (1, 1)}
        del self.lines[:]
        warn_beyond_limit(settings, self.root)
        assert len(self.lines) < 2
        return "".join(self.lines)

    def test_mounts_of_any_name(self) -> None:
        """The source of a mount can be empty, and its place any bytes."""
        self.v2("/", "30 1 0:30 / /mnt rw - tmpfs  rw\n" + V2)
        path = self.root / "proc/self/mountinfo"
        path.write_bytes(b"31 1 0:31 / /\xff rw - tmpfs tmpfs rw\n" + path.read_bytes())
        self.write("sys/fs/cgroup/memory.max", "268435456\n")
        assert "memory.max (256M)" in self.warned(1024 * MEBIBYTE)

    def test_a_container(self) -> None:
        self.v2("/")
        self.write("sys/fs/cgroup/memory.max", "268435456\n")
        warning = (
            "max-memory: with {} the broker may exceed /sys/fs/cgroup/memory.max (256M), and the "
            "system then kills it or refuses it memory; set 128M or less, or raise that limit"
        )
        assert self.warned(1024 * MEBIBYTE) == warning.format("1G")
        assert self.warned(0) == warning.format("0")
        assert self.warned(129 * MEBIBYTE) == warning.format("129M")
        assert self.warned(128 * MEBIBYTE) == ""

    def test_a_service_in_a_slice(self) -> None:
        self.v2("/a.slice/b.service")
        self.write("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n")
        self.write("sys/fs/cgroup/a.slice/b.service/memory.high", "max\n")
        self.write("sys/fs/cgroup/a.slice/memory.max", str(600 * MEBIBYTE))
        assert self.warned(472 * MEBIBYTE) == ""
        assert "/sys/fs/cgroup/a.slice/memory.max (600M)" in self.warned(473 * MEBIBYTE)
        self.write("sys/fs/cgroup/a.slice/b.service/memory.high", str(500 * MEBIBYTE))
        assert "/a.slice/b.service/memory.high (500M)" in self.warned(472 * MEBIBYTE)

    def test_the_path_on_the_host(self) -> None:
        mounts = V2.replace("0:21 / ", "0:21 /docker/0123 ")
        self.v2("/docker/0123", mounts)
        self.write("sys/fs/cgroup/memory.max", "268435456\n")
        assert "/sys/fs/cgroup/memory.max (256M)" in self.warned(1024 * MEBIBYTE)

    def test_the_first_version_of_cgroups(self) -> None:
        self.write("proc/self/cgroup", "8:cpu:/x\n7:memory:/docker/0123\n0::/\n")
        for top, directory in (("/", "docker/0123/"), ("/docker/0123", "")):
            self.write("proc/self/mountinfo", V1.format(top=top))
            name = f"sys/fs/cgroup/memory/{directory}memory.limit_in_bytes"
            self.write(name, "268435456\n")
            assert f"/{name} (256M)" in self.warned(1024 * MEBIBYTE)
            self.write(name, f"{2**63 - 4096}\n")
            assert self.warned(1024 * MEBIBYTE) == self.warned(0) == ""

    def test_limits_of_the_process(self) -> None:
        limits = {resource.RLIMIT_AS: 1024, resource.RLIMIT_DATA: 900}

        def limit_of(kind: int) -> tuple[int, int]:
            return limits[kind] * MEBIBYTE, resource.RLIM_INFINITY

        with patch.object(resource, "getrlimit", limit_of):
            assert self.warned(640 * MEBIBYTE) == ""
            assert "RLIMIT_AS (1G)" in self.warned(641 * MEBIBYTE)
            limits[resource.RLIMIT_DATA] = 700
            assert "RLIMIT_DATA (700M)" in self.warned(640 * MEBIBYTE)

    def test_the_machine(self) -> None:
        assert self.warned(16 * 1024 * MEBIBYTE).startswith(
            "max-memory: with 16G the broker may exceed the memory of the machine (16G), "
        )
        assert self.warned(15 * 1024 * MEBIBYTE) == ""
        # Without a bound on purpose.
        assert self.warned(0) == ""

    def test_a_limit_that_is_too_small_for_the_history(self) -> None:
        self.v2("/")
        self.write("sys/fs/cgroup/memory.max", str(90 * MEBIBYTE))
        remedy = "; raise that limit, as the history alone needs more"
        assert self.warned(1024 * MEBIBYTE).endswith(remedy)

    def test_another_system(self) -> None:
        (self.root / "proc/meminfo").unlink()
        assert self.warned(1024**4) == ""
