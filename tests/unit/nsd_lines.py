"""nsd lines, and a broker with an nsd listener."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.streams import Client, ProtocolHouse

SUCCESS = b'{"_class":"SuccessResponse"}\n'
NOTHING = b'{"_class":"MessageListResponse","messages":[]}\n'


def open_(identity: str) -> bytes:
    return b'{"_class":"OpenRequest","identity":"%b"}\n' % identity.encode()


def subscribe(identity: str, channel: str) -> bytes:
    line = '{{"_class":"SubscribeRequest","identity":"{}","channel":"{}"}}\n'
    return line.format(identity, channel).encode()


def unsubscribe(identity: str, channel: str) -> bytes:
    return subscribe(identity, channel).replace(b"Subscribe", b"Unsubscribe")


def get(identity: str, after: int = 0) -> bytes:
    return b'{"_class":"GetRequest","identity":"%b","after":%d}\n' % (identity.encode(), after)


def publish(identity: str, body: str, **extra: object) -> bytes:
    message = {"_class": "Message", "from": identity, "when": 0, "body": body, **extra}
    request = {"_class": "PublishRequest", "identity": identity, "message": message}
    return json.dumps(request).encode() + b"\n"


def error(text: str) -> bytes:
    return b'{"_class":"ErrorResponse","error":%b}\n' % json.dumps(text).encode()


def bodies(line: bytes) -> list[str]:
    """Return the bodies of a MessageListResponse, which must be exactly one line."""
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    response = json.loads(line)
    assert response["_class"] == "MessageListResponse"
    return [message["body"] for message in response["messages"]]


class Nsd(ProtocolHouse):
    """A broker with one nsd listener."""

    served = "nsd"

    def ask(self, *lines: bytes) -> list[Any]:
        """Send ``lines`` over a new connection and return the responses."""
        client = self.connect("nsd")
        client.send(b"".join(lines))
        self.pump()
        responses = client.take().splitlines()
        client.stream.lose(clean=True)
        assert len(responses) == len(lines)
        return [json.loads(response) for response in responses]

    def write_history(self, count: int, size: int, identity: str = "ada") -> list[str]:
        """Open an identity and publish ``count`` bodies of about ``size`` characters."""
        texts = [f"{number:05}" + "." * size for number in range(count)]
        client = self.connect("nsd")
        client.send(open_(identity))
        for text in texts:
            client.send(publish(identity, text))
        assert client.take() == SUCCESS * (count + 1)
        client.stream.lose(clean=True)
        return texts


def slow_client(house: Nsd) -> Client:
    """Return a client that does not read."""
    client = house.connect("nsd")
    client.stream.stop_reading()
    return client
