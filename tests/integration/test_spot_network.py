"""spot: two brokers in a network that is partitioned without notice (§7.5).

Needs the right to create network namespaces. The namespace and its pair of virtual interfaces are
removed with the test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest
import zmq

from tests.integration.broker import Start
from tests.integration.clients import ERROR, Cafe, publish
from tests.integration.cluster import Member, free_port, sockets, subscribe
from tests.integration.needs import missing, not_allowed
from tests.waiting import until

# From the block reserved for network tests (RFC 2544); other processes of pytest have others.
_NET = f"198.18.{os.getpid() // 64 % 256}.{os.getpid() % 64 * 4}"
NEAR, FAR = (str(IPv4Address(_NET) + number) for number in (1, 2))


def ip(*words: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *words], check=True, timeout=10)


class Island:
    """A network namespace whose connection can be cut."""

    def __init__(self) -> None:
        self.name = f"spot{os.getpid()}"
        self._cable = f"v{os.getpid()}"
        ip("netns", "add", self.name)
        try:
            ip("link", "add", self._cable, "type", "veth", "peer", "far0", "netns", self.name)
            ip("addr", "add", f"{NEAR}/30", "dev", self._cable)
            ip("link", "set", self._cable, "up")
            ip("-n", self.name, "addr", "add", f"{FAR}/30", "dev", "far0")
            ip("-n", self.name, "link", "set", "lo", "up")
            self.mend()
        except BaseException:
            self.close()
            raise

    def cut(self) -> None:
        """Drop everything that is sent, without an error."""
        ip("-n", self.name, "link", "set", "far0", "down")

    def mend(self) -> None:
        """Undo ``cut``."""
        ip("-n", self.name, "link", "set", "far0", "up")

    def close(self) -> None:
        """Remove the namespace and the interfaces."""
        ip("netns", "del", self.name)


@pytest.fixture
def island() -> Iterator[Island]:
    """Yield a namespace."""
    if shutil.which("ip") is None:
        missing("ip(8)")
    try:
        made = Island()
    except subprocess.CalledProcessError:
        not_allowed("a network namespace")
    yield made
    made.close()


def test_a_partition_and_its_end(start: Start, island: Island) -> None:
    near_port, far_port = free_port(), free_port()
    near, far = f"tcp://{NEAR}:{near_port}", f"tcp://{FAR}:{far_port}"
    options = ["--cafe-channels=1:orders"]
    b = Member(start, FAR, far_port, [near], options, ("ip", "netns", "exec", island.name))
    a = Member(start, NEAR, near_port, [far], options)
    for member in (a, b):
        member.saw("is connected$")
    with sockets() as connect, Cafe.publisher(a.broker) as cafe:
        reader = subscribe(connect(zmq.DEALER, far), b"orders")
        reader.send(b"\x01", b"orders", b"hosted here")
        assert reader.receive()[-1] == b"hosted here"
        a.saw("hosts more topics: 1")
        sent = 0

        def publish_some() -> None:
            nonlocal sent
            cafe.send(*(publish(1, b"%d" % (sent + n)) for n in range(10)))
            sent += 10
            time.sleep(0.01)

        def is_noticed() -> bool:
            publish_some()
            return "silent for 3 heartbeats" in a.broker.output

        for _ in range(100):
            publish_some()
        island.cut()
        until(is_noticed, "the partition is noticed")
        for _ in range(100):
            publish_some()
        island.mend()
        a.saw("is connected$", 2)
        for _ in range(100):
            publish_some()
        refused = [frame for frame in cafe.sync() if frame.opcode == ERROR]
        assert len(refused) > 100
        got: list[int] = []
        while not got or got[-1] != sent - 1:
            got.append(int(reader.receive()[-1]))
        assert reader.nothing()
    assert got == sorted(set(got)), "out of order, or more than once"
    a.broker.stop()
    lost = sent - len(got)
    # Messages in flight at the cut are counted; some that just arrived may be as well.
    assert len(refused) < lost <= len(refused) + a.broker.totals()["dropped"]
