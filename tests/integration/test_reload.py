"""Reloading and draining a broker with real processes and sockets, as an operator does."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.integration.broker import HOST, Broker, Start
from tests.integration.clients import (
    DISCONNECT,
    MESSAGE,
    Cafe,
    Frame,
    handshake_pub,
    handshake_sub,
    publish,
)
from tests.integration.cluster import free_port
from tests.integration.command import output, run, settings, url


def payload(client: Cafe) -> bytes:
    """Return the payload of the next message."""
    frame: Frame = client.receive()
    assert frame.opcode == MESSAGE
    return frame.payload[9:]


class Operated:
    """A broker with a file, which is written again and reloaded."""

    def __init__(self, start: Start, directory: Path) -> None:
        self.path = directory / "pubsub.toml"
        self.home = directory
        self.ports = [free_port() for _ in range(3)]
        self.write([0])
        self.broker = start("--config", str(self.path), "--admin-port=0")
        self._reloads = 0

    def write(self, places: list[int], **top: str) -> None:
        """Write a file with cafe on these of the ports."""
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in top.items()]
        for place in places:
            endpoint = f"tcp:{self.ports[place]}:interface={HOST}"
            lines += ["[[listen]]", 'protocol = "cafe"', f'endpoint = "{endpoint}"']
        self.path.write_text("\n".join(lines) + "\n")

    def reload(self, places: list[int], **top: str) -> None:
        self.write(places, **top)
        self._reloads += 1
        self.broker.signal(signal.SIGHUP)
        self.broker.wait_line(r"reloaded: ", self._reloads)

    def subscriber(self, place: int) -> Cafe:
        client = Cafe(self.ports[place])
        client.shake(handshake_sub())
        return client

    def publisher(self, place: int) -> Cafe:
        client = Cafe(self.ports[place])
        client.shake(handshake_pub())
        return client

    def command(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return run(*arguments, env=settings(url(self.broker, "http"), self.home))


def test_listeners_come_and_go(start: Start, tmp_path: Path) -> None:
    operated = Operated(start, tmp_path)
    staying = operated.subscriber(0)
    operated.reload([0, 1])
    operated.broker.wait_line(rf"cafe on tcp {HOST}:{operated.ports[1]}")
    leaving = operated.subscriber(1)
    with operated.publisher(1) as publisher:
        publisher.send(publish(1, b"one"))
        assert payload(staying) == payload(leaving) == b"one"
        operated.reload([0])
        assert publisher.receive_rest() == [(DISCONNECT, b"")]
    assert leaving.receive_rest() == [(DISCONNECT, b"")]
    leaving.close()
    with operated.publisher(0) as publisher:
        publisher.send(publish(1, b"two"))
        assert payload(staying) == b"two"
    staying.close()


def test_the_broker_moves(start: Start, tmp_path: Path) -> None:
    operated = Operated(start, tmp_path)
    operated.reload([2])
    operated.broker.wait_line(rf"cafe on tcp {HOST}:{operated.ports[2]}")
    with operated.subscriber(2) as client:
        client.sync()


def test_a_broker_ends_while_its_configuration_is_read(start: Start, tmp_path: Path) -> None:
    operated = Operated(start, tmp_path)
    # Nobody writes into the pipe, as on a file system that does not answer.
    operated.path.unlink()
    os.mkfifo(operated.path)
    operated.broker.signal(signal.SIGHUP)
    with operated.publisher(0) as client:
        client.sync()
    operated.broker.stop()


def test_a_reload_does_the_changes_that_check_config_lists(start: Start, tmp_path: Path) -> None:
    operated = Operated(start, tmp_path)
    where = f"--url={url(operated.broker, 'http')}"
    operated.write([0, 1], max_topics="700", tuning="false")
    done = operated.command("check-config", str(operated.path), where)
    assert done.returncode == 3, done
    lines = done.stdout.decode().splitlines()
    assert "max-topics: 100000 becomes 700 (at once)" in lines
    assert f"listener cafe tcp:{operated.ports[1]}:interface={HOST} is added" in lines
    assert "max-topics: 100000 becomes 700 (at once)" in lines
    operated.reload([0, 1], max_topics="700", tuning="false")
    operated.broker.wait_line("reload: tuning stays on until a restart makes it off")
    done = operated.command("check-config", str(operated.path), where)
    assert [line for line in done.stdout.decode().splitlines() if "max-topics" in line] == []
    operated.write([0], max_topics='"many"')
    done = operated.command("check-config", str(operated.path), where)
    assert done.returncode == 1
    assert done.stderr.decode().startswith(f"pubsub: {operated.path}: max-topics: expected")


def test_draining_a_listener_and_serving_again(start: Start, tmp_path: Path) -> None:
    operated = Operated(start, tmp_path)
    env = settings(url(operated.broker, "http"), tmp_path)
    client = operated.subscriber(0)
    reply = output("drain", "--listener=cafe", env=env)
    assert reply.decode().splitlines() == [
        f"draining cafe tcp:{operated.ports[0]}:interface={HOST}",
        "clients leave within 10 s",
    ]
    assert client.receive_rest() == [(DISCONNECT, b"")]
    client.close()
    assert operated.broker.alive
    operated.reload([0])
    operated.broker.wait_line(rf"cafe on tcp {HOST}:{operated.ports[0]}", 2)
    with operated.subscriber(0) as again:
        again.sync()


def test_draining_the_process(start: Start, tmp_path: Path) -> None:
    operated = Operated(start, tmp_path)
    broker: Broker = operated.broker
    client = operated.subscriber(0)
    with operated.publisher(0) as publisher:
        publisher.send(publish(1, b"last"))
        publisher.sync()
        reply = output("drain", env=settings(url(broker, "http"), tmp_path))
        assert reply.decode().splitlines()[-1] == "the broker stops within 10 s"
    assert payload(client) == b"last"
    assert client.receive_rest() == [(DISCONNECT, b"")]
    client.close()
    assert broker.wait() == 0
    assert broker.totals()["dropped"] == 0
