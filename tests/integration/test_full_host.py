"""A publish to a topic of another broker is acknowledged only when that broker has stored it.

The disk of the host is full: none of its files may grow beyond a limit.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tests.integration.broker import HOST, Broker, Start
from tests.integration.clients import Nsd, message
from tests.integration.cluster import Member, Open, free_port, sockets
from tests.waiting import until

TOPIC = "orders"
_SUCCESS = {"_class": "SuccessResponse"}
_PAYLOAD = "x" * 900


@pytest.fixture
def connect() -> Iterator[Open]:
    """Yield a function that opens pyzmq sockets."""
    with sockets() as opener:
        yield opener


def limit_files(broker: Broker, nbytes: int) -> None:
    """Let no file of ``broker`` grow beyond ``nbytes``."""
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))


def pair(start: Start, path: Path) -> tuple[Member, Member]:
    """Return two connected brokers with a durable history; TOPIC is acknowledged from the disk."""
    ports = free_port(), free_port()
    first, second = (
        Member(
            start,
            HOST,
            port,
            [f"tcp://{HOST}:{other}"],
            [f"--store=log:{path / str(port)}", f"--durability={TOPIC}=sync"],
        )
        for port, other in zip(ports, reversed(ports), strict=True)
    )
    for member in (first, second):
        member.saw("is connected$")
    return first, second


def stored(nsd: Nsd) -> set[int]:
    """Return the numbers of the messages that the history of a broker has."""
    got: set[int] = set()
    after = 0
    while found := nsd.get("reader", after):
        got |= {int(each["body"].split()[0]) for each in found if each["body"] != "the first"}
        after = found[-1]["when"]
    return got


def test_messages_refused_by_the_full_disk_of_the_host_are_not_acknowledged(
    start: Start, connect: Open, tmp_path: Path
) -> None:
    member, host = pair(start, tmp_path)
    dealer = connect(zmq.DEALER, host.endpoint)

    def is_shared() -> bool:
        # The host refuses a new topic until it has asked the other broker for its topics.
        dealer.send(b"", b"\x01", TOPIC.encode(), b"the first")
        return "hosts more topics: 1" in member.broker.output

    until(is_shared, "the topic of the host")
    limit_files(host.broker, 384 * 1024)
    acknowledged: set[int] = set()
    refused: set[int] = set()
    with Nsd.to(member.broker) as nsd:
        nsd.do("Open", TOPIC)

        def publish() -> bool:
            number = len(acknowledged) + len(refused)
            body = message(f"{number} {_PAYLOAD}")
            answer = nsd.ask("Publish", TOPIC, message=body)
            (acknowledged if answer == _SUCCESS else refused).add(number)
            return answer == _SUCCESS

        for _ in range(3000):
            publish()
            if len(refused) == 50:
                break
        assert len(refused) == 50
        assert len(acknowledged) > 100
        host.saw("the log cannot be written; publishes are refused until it can")
        host.kill()
        broker = host.up()
        until(publish, "the host to store messages again")
    with Nsd.to(broker) as nsd:
        nsd.do("Subscribe", "reader", channel=TOPIC)
        assert acknowledged <= stored(nsd)
