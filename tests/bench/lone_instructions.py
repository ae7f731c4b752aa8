"""The cost of a message that comes alone, by function: ``python -m tests.bench.lone_instructions``.

A broker of cafe runs under valgrind with 50 publishers and a subscriber in its process. Each
function on the path of a message is called many times, with what it gets for a message of 64 bytes.
A row includes the rows below it that are indented more. The first message of a tick is published at
once, the others together (see ``pubsub/broker/publishing/gathering.py``). The work of the system's
kernel is not counted. The last rows are of ticks that follow ticks of several, whose first message
is gathered.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Fewer than are gathered together.
_CALLS = 100
# Messages of a tick, as the row of lone messages of the traffic table has them.
_TOGETHER = 25
_PUBLISHERS = 50
_SECONDS = 900
_CHANNEL = 1
# Of publishers that have a topic each.
_OWN_CHANNELS = range(2, 2 + _TOGETHER)
Call = Callable[[], object]


# The broker


def _connection(reactor: Any, port: int) -> tuple[Any, Any]:
    """Return the connection of a publisher that has published, and the subscriber's client."""
    from pubsub.wire.light_transport import LightTransport
    from tests.bench.lockstep import Client, until
    from tests.bench.wires.cafe import ACK_SIZE, CafeWire

    wire = CafeWire()
    clients = [
        Client(port, wire.publisher_hello([_CHANNEL], f"p{number}"))
        for number in range(_PUBLISHERS)
    ]
    clients.append(Client(port, wire.subscriber_hello([_CHANNEL], "s")))
    until(clients, [ACK_SIZE] * len(clients))
    due = ACK_SIZE
    for _ in range(20):
        for client in clients[:-1]:
            client.send(wire.publication(_CHANNEL, 64).before + bytes(64))
        due += wire.delivery(_CHANNEL, 64).size * _PUBLISHERS
        until(clients, [ACK_SIZE] * _PUBLISHERS + [due])
    found = (one.protocol for one in reactor.getReaders() if isinstance(one, LightTransport))
    return next(one for one in found if one.publisher is not None), clients


def _devices(reactor: Any, port: int, sender: bytes) -> tuple[list[tuple[Any, bytes]], Any]:
    """Return connections that publish to a topic each, with a message, and the client of all.

    ``sender`` is that of no other connection.
    """
    from pubsub.wire.light_transport import LightTransport
    from tests.bench.lockstep import Client, until
    from tests.bench.wires.cafe import ACK_SIZE, CafeWire

    wire, due = CafeWire(), ACK_SIZE
    datas = [wire.publication(channel, 64).before + bytes(64) for channel in _OWN_CHANNELS]
    clients = [
        Client(port, wire.publisher_hello([channel], f"{sender.decode()}{channel:03}"))
        for channel in _OWN_CHANNELS
    ]
    clients.append(Client(port, wire.subscriber_hello(list(_OWN_CHANNELS), "all")))
    until(clients, [ACK_SIZE] * len(clients))
    for _ in range(20):
        for client, data in zip(clients, datas, strict=False):
            client.send(data)
        due += wire.delivery(_CHANNEL, 64).size * _TOGETHER
        until(clients, [ACK_SIZE] * _TOGETHER + [due])
    found = [one.protocol for one in reactor.getReaders() if isinstance(one, LightTransport)]
    own = [one for one in found if one.publisher and one.publisher.sender.startswith(sender)]
    own.sort(key=lambda one: one.publisher.sender)
    return list(zip(own, datas, strict=True)), clients


def _following(router: Any, call: Call) -> Call:
    """Return ``call``, made after another message in its tick."""

    def following() -> None:
        router.gathers = True
        call()

    return following


def _tick(router: Any, reads: list[tuple[Any, bytes]]) -> Call:
    """Return a call in which connections receive their ``reads``, and the router flushes."""

    def tick() -> None:
        for connection, data in reads:
            connection.dataReceived(data)
        router.flush()

    return tick


def steps(connection: Any, devices: list[tuple[Any, bytes]]) -> Mapping[str, Call]:
    """Return the calls for a lone message that ``connection`` has received, by their names.

    The last is for messages that ``devices`` have received, each to a topic of its own.
    """
    from tests.bench.wires.cafe import CafeWire

    data = CafeWire().publication(_CHANNEL, 64).before + bytes(64)
    conversations, publisher = connection._conversations, connection.publisher
    heads, topic = conversations.heads, conversations._topics[_CHANNEL]
    columns = heads.scan(data, 0)
    dispatcher, router = publisher._dispatcher, publisher._rules.router
    batch = dispatcher.publish(topic, columns, b"", "cafe", None, publisher)
    (audience,) = topic.groups.values()
    encoder = audience.encoder
    together = type(columns).of(columns.payloads() * _TOGETHER)
    counts = array("I", [1] * _TOGETHER).tobytes()
    senders = (counts, (publisher.sender,) * _TOGETHER)
    following = partial(_following, router)

    def first() -> None:
        router.gathers = False
        connection.dataReceived(data)

    return {
        "a call of nothing": lambda: None,
        "`Connection.dataReceived`, the first of a tick": first,
        "- `Publisher.publish`": lambda: publisher.publish(topic, columns),
        "-- `Dispatcher.publish`": lambda: dispatcher.publish(
            topic, columns, b"", "cafe", None, publisher
        ),
        "--- `WallClock.timestamp`": dispatcher._timestamp,
        "--- `Batch`": lambda: type(batch)((topic.name,), columns, 1, 5, b"", "cafe", None),
        "--- `Router.route`": lambda: router.route(topic, batch),
        "---- `_HeadEncoder.encode`": lambda: encoder.encode(batch),
        "`Connection.dataReceived`, another one": following(lambda: connection.dataReceived(data)),
        "- `CafeConnection.consume`": following(lambda: connection.consume(data)),
        "-- `HeadTable.put_alike`": following(
            lambda: heads.put_alike(data, dispatcher.gathering.queue, publisher)
        ),
        "-- `HeadTable.scan`": lambda: heads.scan(data, 0),
        "-- `Publisher.publish_soon`": following(lambda: publisher.publish_soon(topic, columns)),
        "--- `AccessRules.may_publish`": lambda: publisher.access.may_publish(topic.name),
        f"`Dispatcher.publish_together`, of {_TOGETHER}": lambda: dispatcher.publish_together(
            (topic,), together, senders, "cafe"
        ),
        f"{_TOGETHER} messages, and their flush": _tick(router, [(connection, data)] * _TOGETHER),
        f"{_TOGETHER} messages to a topic each, and their flush": _tick(router, devices),
    }


def serve() -> None:
    """Make the calls, and have valgrind write what it has counted after those of each name."""
    from tests.bench import lockstep

    port = lockstep.start("")
    connection, clients = _connection(lockstep.reactor, port)
    devices, others = _devices(lockstep.reactor, port, b"device")
    subscribers = (clients[-1], others[-1])
    # As within a tick, in which the clock is read once.
    lockstep.reactor.doIteration.__self__.number = sys.maxsize
    flush = connection.publisher._rules.router.flush
    for number, (name, call) in enumerate(steps(connection, devices).items()):
        for _ in range(_CALLS):
            call()
        flush()
        for subscriber in subscribers:
            subscriber.pump()
        os.getppid()
        for _ in range(_CALLS):
            call()
        os.getppid()
        flush()
        for subscriber in subscribers:
            subscriber.pump()
        print(number, name, flush=True)


# The counts


def measure() -> dict[str, float]:
    """Return the instructions of a call, by its name."""
    with TemporaryDirectory(prefix="bench-lone-") as directory:
        out = Path(directory, "out")
        options = ["--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={out}"]
        command = ["valgrind", *options, sys.executable, "-m", __spec__.name, "serve"]
        text = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        ).stdout
        names = [line.split(" ", 1)[1] for line in text.splitlines()]
        # The first file of each two is of what came before the calls.
        counts = [_count(Path(f"{out}.{2 * place + 2}")) for place in range(len(names))]
    return {name: (count - counts[0]) / _CALLS for name, count in zip(names, counts, strict=True)}


def _count(path: Path) -> int:
    found = re.search(r"^(?:summary|totals): (\d+)", path.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def main() -> None:
    """Print a table."""
    print("| function | instructions |\n| --- | ---: |")
    for name, instructions in list(measure().items())[1:]:
        print(f"| {name} | {instructions:,.0f} |")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
