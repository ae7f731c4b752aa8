"""Three nats-servers that are one cluster, each a process on free loopback ports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.integration.broker import HOST
from tests.integration.cluster import free_port
from tests.integration.nats_server import NatsServer
from tests.integration.wire import Wire
from tests.waiting import until

NODES = 3


class NatsCluster:
    """The nodes, each of which knows the routes to all of them; those of the first can be cut."""

    def __init__(self, directory: Path) -> None:
        ports = [free_port() for _ in range(NODES)]
        self._wires = [Wire(port) for port in ports]
        over_wires = [wire.port for wire in self._wires]
        self.nodes: list[NatsServer] = []
        for number, port in enumerate(ports):
            own = directory / f"node-{number}"
            own.mkdir()
            routes = [*over_wires[:1], *ports[1:]] if number else over_wires
            options = (
                "--cluster_name", "test", "--name", f"node-{number}",
                "--cluster", f"nats://{HOST}:{port}", "-m", "-1",
                # Nodes tell each other where the others are.
                "--cluster_advertise", f"{HOST}:{over_wires[number]}",
                "--routes", ",".join(f"nats://{HOST}:{route}" for route in routes),
            )  # fmt: skip
            self.nodes.append(NatsServer(own, *options))

    def cut(self) -> None:
        """Cut the first node off from the others."""
        for wire in self._wires:
            wire.cut()

    def url(self, *order: int) -> str:
        """Return the URL for a broker that tries the nodes in this order."""
        return "nats://" + ",".join(f"{HOST}:{self.nodes[number].port}" for number in order)

    def wait(self) -> None:
        """Wait until the nodes have a leader: before that a broker goes on to its next node."""
        until(lambda: all(node.is_healthy() for node in self.nodes), "the cluster is ready")

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.kill()
        for wire in self._wires:
            wire.cut()
            wire.close()


@contextlib.contextmanager
def nats_cluster(directory: Path) -> Iterator[NatsCluster]:
    """Run a cluster until the end of the context."""
    cluster = NatsCluster(directory)
    try:
        cluster.wait()
        yield cluster
    finally:
        cluster.close()
