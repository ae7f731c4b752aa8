"""Brokers at a cluster of nats-servers, under load: servers that are killed, ways that stop.

``make test-long`` kills more servers, with the environment variable PUBSUB_NODE_KILLS.
"""

from __future__ import annotations

import json
import os
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.clients import Cafe, publish
from tests.integration.nats_cluster import nats_cluster
from tests.integration.nats_server import NatsServer, nats_server
from tests.integration.wire import wire_to
from tests.waiting import until

KILLS = int(os.environ.get("PUBSUB_NODE_KILLS", "2"))
CONNECTED = r"backplane: connected to nats://127\.0\.0\.1:(\d+)"
ROUND = 20


def join(start: Start, url: str) -> Broker:
    """Start a broker."""
    broker = start(*listen("cafe", "http"), f"--backplane={url}")
    broker.wait_line(CONNECTED)
    return broker


def drops(broker: Broker) -> dict[str, int]:
    """Return the messages that the broker has dropped, by reason."""
    with urllib.request.urlopen(f"http://{HOST}:{broker.port('http')}/v1/status") as answer:
        found: dict[str, int] = json.loads(answer.read())["stats"]["drops"]
    return {reason: count for reason, count in found.items() if reason.startswith("backplane-")}


class Traffic:
    """Publishes numbers at one broker, and collects those that reach a client of another.

    The publisher waits for its own broker's subscriber after each few numbers.
    """

    def __init__(self, here: Broker, there: Broker) -> None:
        self._publisher, self._local = Cafe.publisher(here), Cafe.subscriber(here)
        self._remote = Cafe.subscriber(there)
        self._news = threading.Condition()
        self._ends = False
        self._problems: list[BaseException] = []
        self.published = 0
        self.received: list[int] = []
        self._threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True)
            for work in (self._publish, self._receive)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            self._problems.append(problem)
            raise

    def _publish(self) -> None:
        while not self._ends:
            sent = [b"%d" % number for number in range(self.published, self.published + ROUND)]
            with self._news:
                self.published += ROUND
                self._news.notify_all()
            self._publisher.send(*[publish(1, one) for one in sent])
            assert self._local.receive_texts(ROUND) == sent
        self._publisher.send(publish(1, b"-1"))

    def _receive(self) -> None:
        while not self.received or self.received[-1] >= 0:
            number = int(self._remote.receive_texts(1)[0])
            with self._news:
                self.received.append(number)
                self._news.notify_all()

    def flowing(self) -> int:
        """Wait until a number arrives that is published from now on; return the last one."""
        before = self.published

        def arrived() -> bool:
            return bool(self.received and self.received[-1] >= before)

        with self._news:
            assert self._news.wait_for(arrived, TIMEOUT), self._problems
            return self.received[-1]

    def published_past(self, number: int) -> None:
        """Wait until ``number`` is published, whether it arrives or not."""
        with self._news:
            assert self._news.wait_for(lambda: self.published > number, TIMEOUT), self._problems

    def close(self) -> None:
        """Close the connections."""
        for client in (self._publisher, self._local, self._remote):
            client.close()

    def end(self) -> list[int]:
        """Return all numbers that have arrived."""
        self._ends = True
        for thread in self._threads:
            thread.join(TIMEOUT)
        assert not self._problems
        assert self.received.pop() == -1
        return self.received


@contextmanager
def traffic(here: Broker, there: Broker) -> Iterator[Traffic]:
    made = Traffic(here, there)
    try:
        made.flowing()
        yield made
    finally:
        made.close()


def node_of(broker: Broker, nodes: list[NatsServer]) -> NatsServer:
    """Return the node to which the broker has connected last."""
    port = int(re.findall(CONNECTED, broker.output)[-1])
    (node,) = [node for node in nodes if node.port == port]
    return node


def test_nodes_are_killed_under_load(start: Start, tmp_path: Path) -> None:
    with nats_cluster(tmp_path) as cluster:
        here, there = join(start, cluster.url(0, 1, 2)), join(start, cluster.url(1, 2, 0))
        assert node_of(here, cluster.nodes) is not node_of(there, cluster.nodes)
        away: set[int] = set()
        with traffic(here, there) as load:
            first = load.received[0]
            for kill in range(KILLS):
                last = load.flowing()
                broker = (here, there)[kill % 2]
                connections = len(re.findall(CONNECTED, broker.output))
                node = node_of(broker, cluster.nodes)
                node.kill()
                broker.wait_line(CONNECTED, connections + 1)
                away.update(range(last, load.flowing()))
                node.start()
            received = load.end()
        # Once, in order; messages may be missing that were published while one of them was away.
        assert received == sorted(set(received))
        lost = set(range(first, received[-1])) - set(received)
        assert lost <= away
        counted = drops(here)
        assert counted.keys() == {"backplane-away"}
        assert 0 < counted["backplane-away"] <= len(lost)


def test_a_broker_starts_while_most_nodes_are_away(start: Start, tmp_path: Path) -> None:
    with nats_cluster(tmp_path) as cluster:
        for node in cluster.nodes[1:]:
            node.kill()
        until(lambda: not cluster.nodes[0].is_healthy(), "the node has no leader")
        broker = start(*listen("cafe", "http"), f"--backplane={cluster.url(0)}")
        broker.wait_line(r"the engine is away")
        for node in cluster.nodes[1:]:
            node.start()
        broker.wait_line(CONNECTED)


def test_a_node_that_lacks_most_others(start: Start, tmp_path: Path) -> None:
    """It passes messages on between its own brokers, so that nothing else shows it."""

    def shown() -> list[str]:
        url = f"http://{HOST}:{broker.port('http')}"
        with urllib.request.urlopen(f"{url}/v1/status") as answer:
            notices = [one["what"] for one in json.loads(answer.read())["attention"]]
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            samples = answer.read().decode().splitlines()
        return notices + [one for one in samples if one.startswith("pubsub_backplane_connected")]

    with nats_cluster(tmp_path) as cluster:
        broker, beside = join(start, cluster.url(0)), join(start, cluster.url(0, 1, 2))
        for node in cluster.nodes[1:]:
            node.kill()
        cut_off = r"most servers of the engine's cluster are away, or nats://.* is cut off"
        for one in (broker, beside):
            one.wait_line(cut_off)
        # The second one looks for another server, and stays too.
        with traffic(broker, beside) as load:
            load.end()
        assert len(re.findall(CONNECTED, beside.output)) == 1
        assert shown() == [
            "most servers of the backplane's cluster are away, or cut off from this broker's",
            "pubsub_backplane_connected 0.0",
        ]
        for node in cluster.nodes[1:]:
            node.start()
        broker.wait_line(r"most servers of the engine's cluster are there again")
        assert shown() == ["pubsub_backplane_connected 1.0"]
        assert len(re.findall(CONNECTED, broker.output)) == 1


def test_a_broker_leaves_a_node_that_is_cut_off(start: Start, tmp_path: Path) -> None:
    with nats_cluster(tmp_path) as cluster:
        here, there = join(start, cluster.url(0, 1, 2)), join(start, cluster.url(1, 2, 0))
        cluster.cut()
        here.wait_line(r"the engine is away: nats:\S+ is cut off from its cluster, and nats:")
        here.wait_line(CONNECTED, 2)
        with traffic(here, there) as load:
            load.end()
        assert node_of(here, cluster.nodes) is node_of(there, cluster.nodes)
        assert len(re.findall(CONNECTED, there.output)) == 1


def test_a_way_that_stops_for_a_moment_loses_nothing(start: Start, tmp_path: Path) -> None:
    with nats_server(tmp_path) as server, wire_to(server.port) as wire:
        behind, beside = join(start, f"nats://{HOST}:{wire.port}"), join(start, server.url)
        # The messages of its publishers, and those that its subscribers receive.
        for here, there in ((behind, beside), (beside, behind)):
            with traffic(here, there) as load:
                begin = load.received[0]
                wire.stop()
                # Its own clients are served meanwhile.
                load.published_past(load.published + 50 * ROUND)
                wire.go_on()
                load.flowing()
                received = load.end()
            assert received == list(range(begin, received[-1] + 1))
            assert not drops(here)
