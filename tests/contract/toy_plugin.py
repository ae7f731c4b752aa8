"""A protocol that a test installs as a plugin."""

from __future__ import annotations

import os
from pathlib import Path

from tests.integration.clients import Client

DROPIN = """
from pubsub.plugin import WireProtocol

toy = WireProtocol("toy", 7999, "lines of text", "toy")
"""
SERVER = '''
"""toy: ``PUB topic payload`` and ``SUB topic``; deliveries are ``topic payload``."""

from dataclasses import dataclass

from pubsub.errors import Refused
from pubsub.settings import BOOLEAN, COUNT, Setting
from pubsub.wire.connection import Connection, ConnectionFactory
from pubsub.kernel import Columns

SETTINGS = (
    Setting("max-line", COUNT, 1000, "bytes a line may have"),
    Setting("shout", BOOLEAN, False, "deliver in capitals", flag="toy-shout"),
)


@dataclass(frozen=True)
class Lines:
    topic: str
    shout: bool
    limit: int = 1 << 20

    def encode(self, batch):
        name = self.topic.encode()
        lines = b"".join(b"%s %s\\n" % (name, payload) for payload in batch.payloads())
        return lines.upper() if self.shout else lines


class ToyConnection(Connection):
    delimiter = b"\\n"

    def __init__(self, listener):
        super().__init__(listener)
        self.publisher = listener.publisher(self, b"toy")

    def consume(self, data):
        *lines, rest = data.split(b"\\n")
        for line in lines:
            self.handle(line)
        if len(rest) > self.listener.settings["max-line"]:
            self.fail("too-long", b"ERR line too long\\n")
        return len(data) - len(rest), self.listener.settings["max-line"] + 1

    def handle(self, line):
        listener = self.listener
        try:
            match line.split(b" ", 2):
                case [b"PUB", name, payload]:
                    topic = listener.topics.create(name)
                    self.publisher.publish(topic, Columns.of([payload]))
                case [b"SUB", name]:
                    topic = listener.topics.create(name)
                    self.access.check_subscribe(topic.name)
                    encoding = Lines(topic.name, listener.settings["shout"])
                    listener.router.subscribe(self.open_outbox(), topic, encoding)
                case _:
                    self.reply(b"ERR what?\\n")
                    return
            self.reply(b"OK\\n")
        except Refused as refused:
            listener.refuse(refused.reason, self.label)
            self.reply(b"ERR %s\\n" % refused.reason.encode())

    def refusal(self, error):
        return b"ERR %s\\n" % error.reason.encode()

    def goodbye(self):
        return b"BYE\\n"

    def ended(self):
        if self.outbox is not None:
            self.outbox.shut("disconnected")


class ToyFactory(ConnectionFactory):
    def buildProtocol(self, addr):
        return ToyConnection(self.listener)


def make_factory(listener):
    return ToyFactory(listener)
'''


class Toy(Client):
    """A client of the toy protocol."""

    def ask(self, line: bytes) -> bytes:
        """Send a line and return the next line received."""
        self.send(line + b"\n")
        return self.line()

    def line(self) -> bytes:
        """Return the next line, empty at the end of the connection."""
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = self.sock.recv(1)
            if not byte:
                break
            line += byte
        return bytes(line.rstrip(b"\n"))


def path(home: Path) -> dict[str, str]:
    """Return an environment with that directory on the module path."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(home), os.environ.get("PYTHONPATH")]))}
