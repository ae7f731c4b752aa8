"""Requests whose messages have many subscribers, or that bring many messages at a time."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING

from tests.bench import BenchError
from tests.bench.requests.web import exchange, http, part_of
from tests.unit import cafe_wire as cafe
from tests.unit import fast_wire as fast

if TYPE_CHECKING:
    from tests.bench.requests.catalogue import Catalogue
    from tests.bench.requests.site import Peer

_TOKEN = fast.grant()
# The channel of all subscribers, that of the followers, and those of which each has some.
_ALL, _FOLLOWED, _CHANNELS = 254, 253, range(200)
_EACH = 20
_PAYLOAD, _MAX_LINES = b"8 bytes.", 5000
_REQUESTS = 300


def socket_frame(**members: object) -> bytes:
    """Return a request as a frame of a WebSocket, which is masked with zeros."""
    data = json.dumps({"id": 1, **members}).encode().ljust(126)
    return b"\x81\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data


class Audiences:
    """A part of the ``Catalogue``."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._site = catalogue.site
        self._scale = catalogue.scale
        self._subscribers: list[Peer] = []
        self._random = Random(1)

    def run(self) -> None:
        """Send every request."""
        self._subscribe()
        self._publish()
        self._rotate()
        self._many_small()
        self._web_socket()

    def _subscribe(self) -> None:
        for number in range(self._scale.subscribers):
            channels = bytes([_ALL, *self._random.sample(_CHANNELS, _EACH)])
            peer = self._catalogue.site.connect("cafe")
            peer.send(cafe.hs_sub(channels, b"many-%d" % number))
            self._subscribers.append(peer)
            if not number % 50:
                self._site.settle()
        self._site.settle()

    def _take(self) -> None:
        self._site.settle()
        for peer in self._subscribers:
            peer.take()

    def _publish(self) -> None:
        measure, count = self._catalogue.measure, f"{len(self._subscribers):,} subscribers"
        publisher = self._catalogue.connect("cafe", cafe.hs_pub(_ALL, b"to many"))
        measure(
            "cafe", f"PUBLISH, {count}", lambda _: publisher.send(cafe.publish(_ALL, b"x" * 64))
        )

        def mixed(number: int) -> bytes:
            # Another combination of channels each time.
            return b"".join([cafe.publish(each, b"x") for each in _CHANNELS if each != number])

        # The kernel learns the channels' frames.
        publisher.send(mixed(-1))
        self._take()
        label = f"PUBLISH to {len(_CHANNELS) - 1} channels, {count} of {_EACH} each"
        measure("cafe", f"{label}, first use", lambda n: publisher.send(mixed(n)))
        measure("cafe", label, lambda _: publisher.send(mixed(0)))
        self._take()
        self._commit(label.removeprefix("PUBLISH to "))

    def _commit(self, label: str) -> None:
        peer = self._catalogue.connect("http")
        commits: list[object] = []

        def staged(number: int) -> None:
            part = part_of([f"cafe/{each}" for each in _CHANNELS if each != number + 50])
            answer = self._ask(peer, http("POST", f"/v1/stage?query=m&batch={number}", part))
            found = json.loads(answer.partition(b"\r\n\r\n")[2])["part"]
            commits.append({"query": "m", "batch": number, "parts": [found]})

        self._catalogue.measure(
            "http",
            f"POST /v1/commit, {label}",
            lambda _: self._ask(peer, http("POST", "/v1/commit", commits[-1])),
            staged,
        )
        self._take()

    def _ask(self, peer: Peer, data: bytes) -> bytes:
        return exchange(self._site, peer, data)

    def _rotate(self) -> None:
        measure = self._catalogue.measure
        owner = self._catalogue.connect("fast")
        topic = fast.topic_id("rotated")
        owner.send(fast.create(_TOKEN, "rotated"))
        self._site.settle()
        readers = [self._catalogue.connect("fast") for _ in range(self._scale.subscribers)]
        for reader in readers:
            reader.send(fast.subscribe(_TOKEN, topic))
        self._site.settle()
        label = f"{len(readers):,} subscribers"
        # A token that may rotate has the key that is in use.
        keys = [f"key-{number}" for number in range(self._scale.rounds)]
        owners = [_TOKEN, *[fast.grant(key=key) for key in keys]]
        measure(
            "fast",
            f"PUBLISH, {label}",
            lambda _: owner.send(fast.publish(_TOKEN, b"x", topic=topic)),
        )
        measure(
            "fast",
            f"ROTATE_KEY, {label}",
            lambda n: owner.send(fast.rotate(owners[n], b"key-%d" % n, topic)),
        )
        for reader in readers:
            reader.lose()
        self._site.settle()

    def _many_small(self) -> None:
        """Many messages in one read, to those that get them as JSON."""
        measure = self._catalogue.measure
        publisher = self._catalogue.connect("cafe", cafe.hs_pub(_FOLLOWED, b"small"))
        many = cafe.publish(_FOLLOWED, *[_PAYLOAD] * self._scale.small_messages)
        label = f"PUBLISH, {self._scale.small_messages:,} of 8 B"
        measure("cafe", label, lambda _: publisher.send(many))
        topic = f"/v1/topics/cafe%2F{_FOLLOWED}/messages"
        for kind in ("jsonl", "events"):
            follower = self._catalogue.connect("http")
            follower.send(http("GET", f"{topic}?follow=1&format={kind}"))
            self._site.settle()
            measure("cafe", f"{label}, to {kind}", lambda _: publisher.send(many))
            follower.lose()
            self._site.settle()
        self._to_sockets(label, publisher, many)
        self._in_http(topic)

    def _to_sockets(self, label: str, publisher: Peer, many: bytes) -> None:
        measure = self._catalogue.measure
        follower = self._connect_socket()
        for binary in (False, True):
            follower.send(socket_frame(op="subscribe", topic=f"cafe/{_FOLLOWED}", binary=binary))
            self._site.settle()
            kind = "WebSocket, binary" if binary else "WebSocket"
            measure("cafe", f"{label}, to a {kind}", lambda _: publisher.send(many))
            follower.send(socket_frame(op="unsubscribe", topic=f"cafe/{_FOLLOWED}"))
            self._site.settle()
            follower.take()
        follower.lose()

    def _in_http(self, topic: str) -> None:
        measure = self._catalogue.measure
        peer = self._catalogue.connect("http")
        measure("http", "GET messages", lambda _: self._ask(peer, http("GET", topic + "?start=0")))
        count = min(self._scale.small_messages, _MAX_LINES)
        lines = b'{"value": "8 bytes."}\n' * count
        data = http("POST", topic, lines).replace(
            b"\r\n\r\n", b"\r\nContent-Type: application/x-ndjson\r\n\r\n", 1
        )
        measure("http", f"POST messages, {count:,} lines", lambda _: self._ask(peer, data))

    def _connect_socket(self) -> Peer:
        peer = self._catalogue.connect("http")
        lines = (
            "GET /v1/ws HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Protocol: pubsub.v1.json", "", "",
        )  # fmt: skip
        peer.send("\r\n".join(lines).encode())
        peer.wait()
        self._site.settle()
        peer.send(socket_frame(op="connect", token=_TOKEN.decode()))
        self._site.settle()
        if b'"ok"' not in peer.take():
            raise BenchError("the WebSocket is not connected")
        return peer

    def _web_socket(self) -> None:
        measure = self._catalogue.measure
        peer = self._connect_socket()
        topic = "t/000003"
        for request, frame in (
            ("ping", socket_frame(op="ping")),
            ("subscribe", socket_frame(op="subscribe", topic=topic, start="earliest")),
            ("publish", socket_frame(op="publish", topic=topic, value="x")),
            ("acknowledge", socket_frame(op="acknowledge", reader="r", offset=0)),
            ("unsubscribe", socket_frame(op="unsubscribe", topic=topic)),
            (
                f"publish, {_REQUESTS} together",
                socket_frame(op="publish", topic=topic, value="x") * _REQUESTS,
            ),
        ):
            measure("http", f"WebSocket {request}", lambda _, frame=frame: peer.send(frame))  # type: ignore[misc]
        peer.take()
