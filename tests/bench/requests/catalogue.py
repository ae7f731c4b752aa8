"""Every request of every protocol, and the state before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.bench.requests.audiences import Audiences
from tests.bench.requests.site import Peer, Result, Scale, Site
from tests.bench.requests.web import FastAndHttp
from tests.unit import cafe_wire as cafe
from tests.unit import nsd_lines as nsd
from tests.unit import rheos_wire as rheos
from tests.unit.brokers import QUERY, ready
from tests.unit.brokers import publish as spot_publish
from tests.unit.brokers import subscribe as spot_subscribe
from tests.unit.brokers import unsubscribe as spot_unsubscribe

# Requests that are sent at a time while everything is put in place.
_TOGETHER = 500
_CHANNELS = bytes(range(255))
_EVERYTHING = b"t/*"


def name_of(number: int) -> str:
    """Return the name of a topic."""
    return f"t/{number:06}"


def rheos_id(number: int) -> bytes:
    """Return a client id of rheos."""
    return (number + 1).to_bytes(16, "big")


def command(name: bytes, data: bytes = b"") -> bytes:
    """Return a short command frame of spot."""
    body = bytes([len(name)]) + name + data
    return bytes([4, len(body)]) + body


class Catalogue:
    """Sends every request to ``site`` after ``scale`` is in place; ``report`` gets each result."""

    def __init__(self, site: Site, scale: Scale, report: Callable[[Result], None]) -> None:
        self.site = site
        self.scale = scale
        self._report = report
        self._connected: list[Peer] = []

    def run(self) -> None:
        """Put everything in place and send every request."""
        self._put_in_place()
        self._cafe()
        self._nsd()
        self._rheos()
        self._spot()
        FastAndHttp(self).run()
        Audiences(self).run()

    def connect(self, wire: str, hello: bytes = b"") -> Peer:
        """Return a new connection that has sent ``hello``."""
        peer = self.site.connect(wire)
        if hello:
            peer.send(hello)
        self.site.settle()
        return peer

    def measure(
        self,
        wire: str,
        request: str,
        send: Callable[[int], object],
        before: Callable[[int], object] = lambda round: None,
    ) -> None:
        """Report the longest tick of ``send`` in each round; ``before`` is not measured."""
        rounds = []
        for number in range(self.scale.rounds):
            before(number)
            self.site.settle()
            rounds.append(self.site.longest(lambda number=number: send(number)))  # type: ignore[misc]
        self._report(Result(wire, request, rounds))

    def send_all(self, peer: Peer, requests: Iterator[bytes]) -> None:
        """Send many requests, some at a time."""
        together: list[bytes] = []
        for request in requests:
            together.append(request)
            if len(together) == _TOGETHER:
                peer.send(b"".join(together))
                together.clear()
        peer.send(b"".join(together))
        self.site.settle()
        peer.take()

    # The state before the requests

    def _put_in_place(self) -> None:
        scale = self.scale
        names = [name_of(number).encode() for number in range(scale.topics)]
        creator = self.connect("rheos")
        self.send_all(creator, (rheos.create(rheos_id(0), name) for name in names))
        # Each id and identity reads other topics.
        for number in range(scale.rheos_ids):
            own = self._own_topics(number)
            client = rheos_id(number + 1)
            self._connected.append(reader := self.connect("rheos"))
            self.send_all(reader, (rheos.subscribe(client, names[at]) for at in own))
        polling = self.connect("nsd")
        for number in range(scale.nsd_identities):
            own = self._own_topics(number)
            identity = f"reader-{number}"
            self.send_all(polling, (nsd.subscribe(identity, name_of(at)) for at in own))
        for _ in range(scale.spot_prefixes):
            self._connected.append(self.connect("spot", ready(b"DEALER")))
            self._connected[-1].send(spot_subscribe(_EVERYTHING))
            self.site.settle()
        creator.lose()
        self.site.settle()

    def _own_topics(self, number: int) -> range:
        first = number * self.scale.each % max(self.scale.topics - self.scale.each, 1)
        return range(first, first + self.scale.each)

    # The protocols

    def _cafe(self) -> None:
        peers: list[Peer] = []
        hello = cafe.hs_sub(_CHANNELS, b"reader")

        def connect(number: int) -> None:
            peers.append(self.connect("cafe"))

        def subscribed(number: int) -> None:
            peers.append(self.connect("cafe", hello))

        self.measure("cafe", "connect", lambda _: peers.append(self.site.connect("cafe")))
        self.measure(
            "cafe", "HANDSHAKE_PUB", lambda _: peers[-1].send(cafe.hs_pub(1, b"writer")), connect
        )
        self.measure("cafe", "PUBLISH", lambda _: peers[-1].send(cafe.publish(1, b"x")))
        self.measure("cafe", "PING", lambda _: peers[-1].send(cafe.PING))
        self.measure(
            "cafe", "HANDSHAKE_SUB, 255 channels", lambda _: peers[-1].send(hello), connect
        )
        self.measure("cafe", "UNSUBSCRIBE", lambda _: peers[-1].send(cafe.unsubscribe(1)))
        self.measure("cafe", "SUBSCRIBE", lambda _: peers[-1].send(cafe.subscribe(1)))
        self.measure(
            "cafe",
            "DISCONNECT, 255 channels",
            lambda _: peers[-1].send(cafe.DISCONNECT),
            subscribed,
        )
        self.measure(
            "cafe", "connection lost, 255 channels", lambda _: peers[-1].lose(), subscribed
        )

        def lost(number: int) -> None:
            subscribed(number)
            session = int.from_bytes(peers[-1].take()[8:16], "little")
            peers[-1].lose()
            self.site.settle()
            again = cafe.resume(b"reader", session)
            connect(number)
            peers[-1].take()
            resumed.append(cafe.hs_sub(_CHANNELS, again))

        resumed: list[bytes] = []
        self.measure(
            "cafe", "session resumed, 255 channels", lambda _: peers[-1].send(resumed[-1]), lost
        )

    def _nsd(self) -> None:
        peer = self.connect("nsd")
        end = name_of(self.scale.topics - 1)
        for request, line in (
            ("Open", lambda number: nsd.open_(f"own-{number}")),
            ("Publish", lambda number: nsd.publish(f"own-{number}", "x")),
            ("Subscribe, one of many", lambda number: nsd.subscribe("reader-0", f"own-{number}")),
            ("Unsubscribe, one of many", lambda _: nsd.unsubscribe("reader-0", name_of(1))),
            ("Subscribe, the first", lambda number: nsd.subscribe(f"new-{number}", end)),
            ("Get, all channels", lambda _: nsd.get("reader-1")),
            ("Get, nothing new", lambda _: nsd.get("reader-1", 10**9)),
        ):
            self.measure("nsd", request, lambda number, line=line: peer.send(line(number)))  # type: ignore[misc]
        peer.take()

    def _rheos(self) -> None:
        peer = self.connect("rheos")
        other: list[Peer] = []
        one, busy = rheos_id(1), rheos_id(2)
        self.measure(
            "rheos",
            "CREATE",
            lambda number: peer.send(rheos.create(rheos_id(0), b"own/%d" % number)),
        )
        self.measure(
            "rheos", "SUBSCRIBE", lambda number: peer.send(rheos.subscribe(rheos_id(0), b"own/0"))
        )
        self.measure(
            "rheos",
            "PUBLISH",
            lambda number: peer.send(rheos.publish(rheos_id(0), b"x", name=name_of(7).encode())),
        )

        def connect(number: int) -> None:
            other.append(self.connect("rheos"))

        name = name_of(self.scale.each * 2 % self.scale.topics).encode()
        self.measure(
            "rheos",
            "first request of an id with many subscriptions",
            lambda _: other[-1].send(rheos.subscribe(busy, name)),
            connect,
        )
        self.measure(
            "rheos",
            "connection lost with many subscriptions",
            lambda _: self._connected[0].lose(),
            lambda number: number and self._connected.pop(0),
        )
        self.measure(
            "rheos", "id used again", lambda _: other[-1].send(rheos.subscribe(one, name)), connect
        )

    def _spot(self) -> None:
        peer = self.connect("spot", ready(b"DEALER"))
        one = name_of(5).encode()
        for request, frames in (
            ("PUBLISH", spot_publish(one, b"x")),
            ("SUBSCRIBE to a topic", spot_subscribe(one)),
            ("UNSUBSCRIBE from a topic", spot_unsubscribe(one)),
            ("PING", command(b"PING", bytes(2))),
            ("QUERY", QUERY),
        ):
            self.measure("spot", request, lambda _, frames=frames: peer.send(frames))  # type: ignore[misc]
        self._spot_prefixes(peer)
        self._spot_sessions()

    def _spot_prefixes(self, peer: Peer) -> None:
        everything, none = spot_subscribe(_EVERYTHING), spot_unsubscribe(_EVERYTHING)
        self.measure(
            "spot",
            "SUBSCRIBE to the prefix of all topics",
            lambda _: peer.send(everything),
            lambda _: peer.send(none),
        )
        self.measure(
            "spot",
            "UNSUBSCRIBE from the prefix of all topics",
            lambda _: peer.send(none),
            lambda _: peer.send(everything),
        )
        sub = self.connect("spot", ready(b"SUB"))
        names = [name_of(at).encode() for at in range(self.scale.each - 100)]
        self.send_all(sub, (command(b"SUBSCRIBE", name) for name in names))
        self.measure(
            "spot",
            "CANCEL of one of many prefixes",
            lambda number: sub.send(command(b"CANCEL", names[number])),
        )
        self.measure(
            "spot",
            "SUBSCRIBE to one of many prefixes",
            lambda number: sub.send(command(b"SUBSCRIBE", names[number])),
        )

    def _spot_sessions(self) -> None:
        peers: list[Peer] = []

        def subscribed(number: int) -> None:
            peers.append(self.connect("spot", ready(b"DEALER", b"bob-%d" % number)))
            peers[-1].send(spot_subscribe(_EVERYTHING))
            self.site.settle()

        def lost(number: int) -> None:
            subscribed(number)
            peers[-1].lose()
            self.site.settle()

        self.measure("spot", "connection lost, all topics", lambda _: peers[-1].lose(), subscribed)
        self.measure(
            "spot",
            "return by identity, all topics",
            lambda number: peers.append(self.connect("spot", ready(b"DEALER", b"bob-%d" % number))),
            lost,
        )
