"""nsd: both dialects, Get from the history, and messages to and from cafe (seeds/nsd.md)."""

from __future__ import annotations

import base64
import json
import struct
import time

import pytest

from tests.integration.broker import Broker, Start, listen
from tests.integration.clients import Cafe, Nsd, message, publish
from tests.integration.threads import background

SUCCESS = b'{"_class":"SuccessResponse"}\n'
MAX_LINE = 4 * 1024 * 1024


@pytest.mark.parametrize("in_base64", [False, True], ids=["plain", "base64"])
def test_a_conversation(broker: Broker, in_base64: bool) -> None:
    with Nsd.to(broker, in_base64) as ada, Nsd.to(broker, in_base64) as ben:
        assert ben.refused("Subscribe", "ben", channel="ada") == "NO SUCH CHANNEL: ada"
        assert ada.refused("Publish", "ada", message=message("hi")) == "NO SUCH CHANNEL: ada"
        ada.do("Open", "ada")
        ben.do("Subscribe", "ben", channel="ada")
        ada.do("Publish", "ada", message=message("guten Tag, \u00dcbel \U0001f600", "Ada"))
        ada.do("Publish", "ada", message=message("two", "Ada", picture={"png": [1, 2.5, None]}))
        first, second = ben.get("ben")
        assert first == {
            "_class": "Message", "from": "Ada", "when": 1, "body": "guten Tag, Übel 😀",
        }  # fmt: skip
        assert second["picture"] == {"png": [1, 2.5, None]}
        assert list(second) == ["_class", "from", "when", "body", "picture"]
        assert ben.get("ben", 1) == [second]
        assert ben.get("ben", 2) == []
        # Its own messages are included, and a new connection makes no difference.
        with Nsd.to(broker, not in_base64) as again:
            assert again.get("ada") == [first, second]
        ben.do("Unsubscribe", "ben", channel="ada")
        assert ben.get("ben") == []


def test_literal_bytes(broker: Broker) -> None:
    with Nsd.to(broker) as client:
        client.send(
            b'{"_class":"OpenRequest","identity":"ada"}\n',
            b'{"message":{"body":"x","when":0,"from":"A","_class":"Message"},'
            b'"identity":"ada","_class":"PublishRequest"}\r\n',
            b'{"_class":"GetRequest","identity":"ada","after":0}\n',
            base64.b64encode(b'{"_class":"GetRequest","identity":"ada","after":1}') + b"\r\n",
            b"\n",
        )
        assert client.line() + b"\n" == SUCCESS
        assert client.line() + b"\n" == SUCCESS
        listed = b'{"_class":"Message","from":"A","when":1,"body":"x"}'
        assert client.line() == b'{"_class":"MessageListResponse","messages":[' + listed + b"]}"
        empty = b'{"_class":"MessageListResponse","messages":[]}'
        assert client.line() == base64.b64encode(empty)
        assert client.line() == b'{"_class":"ErrorResponse","error":"INVALID REQUEST: []"}'


def test_input_one_byte_at_a_time(broker: Broker) -> None:
    with Nsd.to(broker) as client:
        for value in b'{"_class":"OpenRequest","identity":"ada"}\r\n{nonsense\n':
            client.send(bytes([value]))
        assert client.line() + b"\n" == SUCCESS
        assert client.answer()["error"] == "INVALID REQUEST: [{nonsense]"


def test_pipelined_requests_are_answered_in_order(broker: Broker) -> None:
    with Nsd.to(broker) as client:
        client.do("Open", "ada")

        def ask() -> None:
            for n in range(500):
                client.put("Publish", "ada", message=message(str(n)))
                client.put("Get", "ada", after=n)

        with background(ask):
            for n in range(500):
                assert client.answer() == {"_class": "SuccessResponse"}
                (received,) = client.answer()["messages"]
                assert (received["when"], received["body"]) == (n + 1, str(n))


def test_from_cafe_to_get(broker: Broker) -> None:
    with Cafe.publisher(broker, 7, b"sensor") as publisher, Nsd.to(broker) as nsd:
        publisher.send(publish(7, "grüß".encode()), publish(8, b"elsewhere"), publish(7, b"\xff\0"))
        publisher.sync()
        nsd.do("Subscribe", "ada", channel="cafe/7")
        first, second = nsd.get("ada")
        assert first == {"_class": "Message", "from": "sensor", "when": 1, "body": "grüß"}
        # `when` counts all messages of the broker, so that it is not consecutive in a channel.
        assert second == {
            "_class": "Message", "from": "sensor", "when": 3, "body": "", "data": "/wA=",
        }  # fmt: skip
        assert nsd.get("ada", 1) == [second]


def test_from_publish_to_cafe(broker: Broker) -> None:
    with Cafe.subscriber(broker, b"\x07") as subscriber, Nsd.to(broker) as nsd:
        nsd.do("Open", "cafe/7")
        before = int(time.time() * 1000)
        nsd.do("Publish", "cafe/7", message=message("grüß", picture="cG5n"))
        received = subscriber.receive()
        channel, timestamp = struct.unpack_from("<BQ", received.payload)
        assert (channel, received.payload[9:]) == (7, "grüß".encode())
        # Milliseconds since the epoch, not `when`; tolerant, as the clock may be set.
        assert abs(timestamp - before) < 600_000


def test_when_is_one_sequence_over_all_protocols(broker: Broker) -> None:
    with Cafe.publisher(broker, 1) as publisher, Nsd.to(broker) as nsd:
        nsd.do("Open", "ada")
        nsd.do("Subscribe", "ada", channel="cafe/1")
        for n in range(20):
            publisher.send(publish(1, b"c%d" % n))
            publisher.sync()
            nsd.do("Publish", "ada", message=message(f"n{n}"))
        received = nsd.get("ada")
        assert [m["when"] for m in received] == list(range(1, 41))
        assert [m["body"] for m in received] == [f"{c}{n}" for n in range(20) for c in "cn"]


def test_errors_keep_the_connection(start: Start) -> None:
    broker = start(*listen("nsd"), "--nsd-max-body=3")
    with Nsd.to(broker) as client:
        client.do("Open", "ada")
        assert client.refused("Publish", "ada", message=message("four")) == (
            "MESSAGE TOO BIG: 4 characters"
        )
        client.do("Publish", "ada", message=message("\U0001f600" * 3, attachment="x" * 5000))
        for line in (b"nonsense!", b"[]", b'{"_class":"OpenRequest"}', b'{"_class":"x"}'):
            client.send(line + b"\n")
            shown = client.answer()["error"]
            assert shown == f"INVALID REQUEST: [{line.decode()}]"
        client.send(b"{" + b"x" * 500 + b"\n")
        assert client.answer()["error"] == "INVALID REQUEST: [{" + "x" * 199 + "]"
        assert [m["when"] for m in client.get("ada")] == [1]


def test_the_longest_line(broker: Broker) -> None:
    with Nsd.to(broker) as client:
        client.do("Open", "ada")
        start, end = (
            b'{"_class":"PublishRequest","identity":"ada","message":{"_class":"Message",'
            b'"from":"A","when":0,"body":"","attachment":"'
        ), b'"}}'  # fmt: skip
        attachment = b"x" * (MAX_LINE - len(start) - len(end))
        client.send(start, attachment, end, b"\n")
        assert client.line() + b"\n" == SUCCESS
        (received,) = client.get("ada")
        assert received["attachment"] == attachment.decode()


def test_the_error_for_a_long_line_arrives_while_the_client_still_sends(broker: Broker) -> None:
    with Nsd.to(broker) as client:
        client.send(b"y" * (MAX_LINE + 1), bytes(1024 * 1024))
        answer = client.answer()
        assert answer["error"] == "INVALID REQUEST: [" + "y" * 200 + "]"
        assert client.at_end()


@pytest.mark.modes
@pytest.mark.parametrize("in_base64", [False, True], ids=["plain", "base64"])
def test_a_long_list_is_streamed(start: Start, in_base64: bool) -> None:
    """The list is larger than the broker's memory, and the client delays its reading."""
    broker = start(*listen("cafe", "nsd"), "--max-memory=64M", "--history=100000,48M")
    with Cafe.publisher(broker) as publisher, Nsd.to(broker, in_base64, 16 * 1024) as nsd:
        publisher.send(*[publish(1, b"%05d" % n + b"x" * 10_000) for n in range(4000)])
        publisher.sync()
        nsd.do("Subscribe", "ada", channel="cafe/1")
        before = broker.memory("VmHWM")
        nsd.put("Get", "ada", after=0)
        nsd.put("Open", "ada")
        with Nsd.to(broker) as other:
            # Meanwhile others are served.
            other.do("Open", "ben")
        messages = nsd.answer()["messages"]
        assert [m["body"][:5] for m in messages] == [f"{n:05}" for n in range(4000)]
        assert [m["when"] for m in messages] == list(range(1, 4001))
        assert nsd.answer() == {"_class": "SuccessResponse"}
        assert broker.memory("VmHWM") - before < 30 * 1024 * 1024


def test_a_reset_while_a_list_is_sent(broker: Broker) -> None:
    with Cafe.publisher(broker) as publisher:
        publisher.send(*[publish(1, bytes(50_000)) for _ in range(400)])
        publisher.sync()
    for n in range(5):
        client = Nsd.to(broker, receive_buffer=4096)
        client.do("Subscribe", "ada", channel="cafe/1")
        client.put("Get", "ada", after=0)
        client.sock.recv(1 + 1000 * n)
        client.reset()
    with Nsd.to(broker) as client:
        assert len(client.get("ada")) == 400


def test_two_hundred_connections(broker: Broker) -> None:
    clients = [Nsd.to(broker, in_base64=bool(n % 2)) for n in range(200)]
    for n, client in enumerate(clients):
        client.put("Open", f"id{n}")
    for n, client in enumerate(clients):
        assert client.answer() == {"_class": "SuccessResponse"}
        client.put("Publish", f"id{n}", message=message(f"of {n}"))
    for n, client in enumerate(clients):
        assert client.answer() == {"_class": "SuccessResponse"}
        assert [m["body"] for m in client.get(f"id{n}")] == [f"of {n}"]
        client.close()


def test_history_keeps_the_newest(start: Start) -> None:
    broker = start(*listen("nsd"), "--history=10")
    with Nsd.to(broker) as client:
        client.do("Open", "ada")
        for n in range(30):
            client.do("Publish", "ada", message=message(str(n)))
        assert [m["when"] for m in client.get("ada")] == list(range(21, 31))


def test_each_response_is_one_line(broker: Broker) -> None:
    with Nsd.to(broker) as client:
        client.do("Open", "ada")
        client.do("Publish", "ada", message=message("two\nlines\u2028\r"))
        client.put("Get", "ada", after=0)
        line = client.line()
        assert json.loads(line)["messages"][0]["body"] == "two\nlines\u2028\r"
        client.do("Open", "ada")
