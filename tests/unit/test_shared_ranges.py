"""HTTP: ranges of a shared history between positions have the same messages at every broker."""

from __future__ import annotations

import json
import secrets
from errno import EIO
from pathlib import Path
from urllib.parse import quote

from twisted.internet import reactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, ensureDeferred, fail, maybeDeferred

from pubsub.backplane.positions import position_index
from pubsub.backplane.positions.shared_position import SharedPosition, decode
from pubsub.http_api.reading import shared_ranges
from pubsub.http_api.server import HttpApiFactory
from pubsub.kernel import Columns
from pubsub.store.records.parcel import Parcel
from pubsub.store.shared_store import SharedStore
from tests.unit.fakes import scratch
from tests.unit.logs import keep_everything
from tests.unit.replicas import Node, ReplicaCase
from tests.unit.streams import House
from tests.unit.web import Answer, WebClient, WebHouse, admin_settings

ADDRESS = IPv4Address("TCP", "192.0.2.7", 40_001)


class RangeTests(ReplicaCase):
    """/v1/bounds and /v1/history with positions"""

    async def get(self, node: Node, path: str) -> Answer:
        """Return the answer of a broker."""
        listener = node.broker.make_listener("admin", admin_settings())
        factory = HttpApiFactory(listener, maybeDeferred)
        client = WebClient(factory, node.house.clock, ADDRESS)
        client.ask("GET", path)
        received = client.stream.received
        await self.until(lambda: b"\r\n\r\n" in received)
        if b"chunked" in received:
            await self.until(lambda: received.endswith(b"0\r\n\r\n"))
        return client.answer()

    async def position(self, node: Node, query: str = "") -> str:
        """Return a position of a broker."""
        answer = await self.get(node, f"/v1/bounds?{query}")
        assert answer.status == 200, answer.json
        found = answer.json["position"]
        assert isinstance(found, str)
        return found

    async def read(self, node: Node, begin: str, end: str) -> list[str]:
        """Return the payloads of a range."""
        path = f"/v1/history?format=jsonl&from={quote(begin)}&to={quote(end)}"
        answer = await self.get(node, path)
        assert answer.status == 200, answer.json
        return [json.loads(line)["value"] for line in answer.body.decode().splitlines()]

    async def test_ranges_are_the_same_at_two_brokers(self) -> None:
        self.patch(position_index, "_APPENDS", 5)
        here, there = self.node(), self.node()
        for number in range(12):
            here.publish("t", b"h%d" % number, b"H%d" % number)
            there.publish("t", b"t%d" % number)
            if number == 5:
                await self.settled(here, there)
        await self.settled(here, there)
        for node in (here, there):
            await self.until(lambda node=node: node.store.committed == 36)  # type: ignore[misc]
        payloads = [one.decode() for one in await here.payloads()]
        cuts = [0, 1, 4, 5, 17, 18, 33, 36]
        positions = [await self.position(here, f"at={cut}") for cut in cuts]
        positions[-1] = await self.position(here)
        assert decode(positions[0]).origins == {}
        for low, high, begin, end in zip(cuts, cuts[1:], positions, positions[1:], strict=False):
            assert await self.read(here, begin, end) == payloads[low:high]
            assert sorted(await self.read(there, begin, end)) == sorted(payloads[low:high])
        # A reader that has read up to a position here continues there, and comes back.
        begin = positions[3]
        end = await self.position(there, f"at=20&from={quote(begin)}")
        some = await self.read(there, begin, end)
        rest = await self.read(here, end, await self.position(here, f"from={quote(end)}"))
        assert sorted([*payloads[:5], *some, *rest]) == sorted(payloads)

    async def test_bounds_of_a_shared_history(self) -> None:
        here, there = self.node(), self.node()
        for number in range(4):
            here.publish("t", b"h%d" % number)
        await self.settled(here, there)
        there.publish("t", b"t")
        await self.settled(here, there)
        for node in (here, there):
            await self.until(lambda node=node: node.history.positions.settled == 5)  # type: ignore[misc]
        begin = await self.position(here, "at=2")
        for node, stop in ((here, 5), (there, 5)):
            found = (await self.get(node, f"/v1/bounds?from={quote(begin)}")).json
            assert found["at"] == stop
            assert 0 <= found["low"] <= 2 <= found["high"] <= stop
            assert found["whole"] == 0
            assert found["shared"] == self.log.identity

    async def test_a_range_from_an_offset_on(self) -> None:
        here, there = self.node(), self.node()
        for number in range(6):
            here.publish("t", b"h%d" % number)
        await self.settled(here, there)
        await self.until(lambda: here.store.committed == 6)
        begin, end = await self.position(here, "at=1"), await self.position(here)
        path = f"/v1/history?format=jsonl&from={quote(begin)}&to={quote(end)}"
        answer = await self.get(here, f"{path}&start=4&epoch={here.store.epoch}")
        assert answer.headers["Pubsub-Start"] == "4"
        found = [json.loads(line)["value"] for line in answer.body.decode().splitlines()]
        assert found == ["h4", "h5"]

    async def test_messages_that_a_broker_never_got(self) -> None:
        here = self.node()
        for number in range(4):
            here.publish("t", b"h%d" % number)
            await self.settled(here)
        await self.until(lambda: here.history.positions.settled == 4)
        begin, middle = await self.position(here, "at=0"), await self.position(here)
        # The engine removes its messages before a broker has read them.
        self.log.remove(len(self.log.messages))
        there = self.node()
        await self.until(lambda: there.figure("connected") == 1)
        here.publish("t", b"later")
        await self.settled(here, there)
        assert await there.payloads() == [b"later"]
        await self.until(lambda: there.history.positions.settled == 1)
        await self.until(lambda: here.history.positions.settled == 5)
        found = (await self.get(there, "/v1/bounds")).json
        assert found["whole"] == 0
        # The offsets from which on nothing is missing are those of its first message.
        low = await self.position(there, "at=0")
        assert await self.read(there, low, await self.position(there)) == ["later"]
        assert await self.read(here, middle, await self.position(here)) == ["later"]
        there = await self.again(there)
        await self.settled(here, there)
        for path in (
            f"/v1/history?format=jsonl&from={quote(begin)}&to={quote(middle)}",
            f"/v1/bounds?from={quote(begin)}",
        ):
            answer = await self.get(there, path)
            assert (answer.status, answer.json["error"]) == (409, "position-unknown"), path
            assert (await self.get(there, f"{path}&skip_expired=1")).status == 200

    async def test_what_was_stored_before_the_history_was_shared(self) -> None:
        path = scratch(self) / "alone"
        await self.alone(path)
        there = self.node(path)
        there.publish("t", b"shared")
        await self.settled(there)
        await self.until(lambda: there.history.positions.settled == 2)
        found = (await self.get(there, "/v1/bounds")).json
        assert found["whole"] == 1
        low = await self.position(there, "at=1")
        assert await self.read(there, low, await self.position(there)) == ["shared"]
        begin = await self.position(there, "at=0")
        answer = await self.get(there, f"/v1/history?from={quote(begin)}")
        assert (answer.status, answer.json["error"]) == (409, "position-unknown")

    async def alone(self, path: Path) -> None:
        """Make a history with a message, of a broker without others."""
        store = SharedStore(path, reactor, keep_everything())
        house = House({"spot": {}}, store=store, draw=secrets.randbits)
        house.broker.startService()
        topic = house.broker.topics.create("t")
        house.broker.dispatcher.publish(topic, Columns.of([b"own"]), b"me", "spot")
        ended = house.broker.stopService()
        house.advance(60)
        await ended

    async def test_a_history_that_cannot_be_read(self) -> None:
        here = self.node()
        here.publish("t", b"1")
        await self.settled(here)
        await here.stop()

        def read_parcel(*given: object) -> Deferred[Parcel]:
            return fail(OSError(EIO, "Input/output error"))

        self.patch(SharedStore, "read_parcel", read_parcel)
        # The checkpoint of the index is older than the message.
        here = self.node(here.path)
        answer = await self.get(here, "/v1/bounds")
        assert (answer.status, answer.json["error"]) == (503, "backplane-away")
        assert len(self.flushLoggedErrors(OSError)) == 1  # type: ignore[no-untyped-call]

    async def test_a_request_while_the_broker_stops(self) -> None:
        here = self.node()
        here.publish("t", b"1")
        await self.settled(here)
        await here.stop()
        reading: list[Deferred[Parcel]] = []

        def read_parcel(*given: object) -> Deferred[Parcel]:
            reading.append(Deferred())
            return reading[-1]

        self.patch(SharedStore, "read_parcel", read_parcel)
        here = self.node(here.path)
        answer = ensureDeferred(self.get(here, "/v1/bounds"))
        assert reading
        self.assertNoResult(answer)  # type: ignore[no-untyped-call]
        await here.stop()
        assert (await answer).error == (503, "backplane-away")

    async def test_requests_that_are_refused(self) -> None:
        here, there = self.node(), self.node()
        here.publish("t", b"1")
        await self.settled(here, there)
        mine = SharedPosition(9999, {here.history.origin: {5: 7}}).encode()
        unknown = SharedPosition(0, {here.history.origin: {5: 7}}).encode()
        self.patch(shared_ranges, "_TIMEOUT", 0.01)
        for query, status, code in (
            (f"from={quote(mine)}", 503, "not-reached"),
            (f"from={quote(unknown)}", 409, "position-unknown"),
            ("from=x", 400, "invalid-request"),
            (f"from={quote(unknown)}&stop=1", 400, "invalid-request"),
            (f"from={quote(unknown)}&start=0&epoch=9-x", 409, "epoch"),
        ):
            answer = await self.get(there, f"/v1/history?{query}")
            assert (answer.status, answer.json["error"]) == (status, code)
        answer = await self.get(there, "/v1/bounds?at=5")
        assert (answer.status, answer.json["error"]) == (416, "beyond-end")
        house = WebHouse()
        assert "position" not in house.get("/v1/bounds").json
        for path in (f"/v1/history?from={quote(mine)}", "/v1/bounds?at=0"):
            answer = house.get(path)
            assert (answer.status, answer.json["error"]) == (409, "not-shared")
