"""HTTP: positions of readers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.http_api.readers.reader_positions import READERS, ReaderPositions
from pubsub.store.memory_store import MemoryStore
from tests.unit.committed_history import SlowDisk
from tests.unit.fakes import make_broker
from tests.unit.streams import logged
from tests.unit.web import Answer, WebClient, WebHouse, admin_settings


class ReaderTests(SynchronousTestCase):
    """/v1/readers"""

    def setUp(self) -> None:
        self.house = WebHouse(max_readers=2)
        self.house.publish("a", b"1", b"2", b"3")

    def put(self, name: str, **body: Any) -> Answer:
        """Report a position."""
        client = self.house.connect()
        client.ask("PUT", f"/v1/readers/{name}", body)
        return client.answer("PUT")

    def delete(self, name: str) -> int:
        """Delete a reader."""
        client = self.house.connect()
        client.ask("DELETE", f"/v1/readers/{name}")
        return client.answer("DELETE").status

    def readers(self) -> list[Any]:
        """Return all readers."""
        rows: list[Any] = self.house.get("/v1/readers").json["items"]
        return rows

    def test_positions_and_lag(self) -> None:
        epoch = self.house.store.epoch
        assert self.put("a%20%2F%C3%BC", offset=1).status == 204
        assert self.put("b", offset=3, epoch=epoch).status == 204
        self.house.publish("a", b"4")
        stamp = self.house.broker.listeners[0].wall.timestamp()
        first, second = self.readers()
        assert first == {
            "name": "a /ü", "owner": None, "offset": 1, "epoch": epoch, "updated": stamp, "lag": 3,
        }  # fmt: skip
        assert (second["name"], second["lag"]) == ("b", 1)
        assert self.put("b", offset=4).status == 204
        assert self.readers()[1]["lag"] == 0

    def test_a_reader_without_a_position(self) -> None:
        answer = self.house.get("/v1/readers/a")
        assert (answer.status, answer.json["error"]) == (404, "not-found")
        assert answer.headers["content-type"] == "application/problem+json"
        assert not self.house.broker.counters.refusals, "programs ask before the first position"

    def test_a_note_of_passed_offsets(self) -> None:
        assert self.put("a", offset=3, quiet_from=1, quiet_topics="ab12").status == 204
        (row,) = self.readers()
        assert (row["quiet_from"], row["quiet_topics"]) == (1, "ab12")
        assert self.put("a", offset=3, quiet_from=4).status == 400
        assert self.put("a", offset=3, quiet_from=1, quiet_topics="x" * 65).status == 400
        # A position without a note ends it.
        assert self.put("a", offset=3).status == 204
        assert "quiet_from" not in self.readers()[0]

    def test_the_list_is_paged(self) -> None:
        house = WebHouse(max_readers=400)
        house.publish("a", b"1")
        names = sorted([f"r{n:03}" for n in range(300)] + ["r\n%2F", "1 2 ", "ä" * 127])
        ada, admin = house.token("history", sub="ada" * 80), house.token("admin", sub="root")
        for name in names:
            client = house.connect()
            client.ask("PUT", f"/v1/readers/{quote(name, safe='')}", {"offset": 1})
            assert client.answer("PUT").status == 204
        for name in (names[0], names[-1]):
            client = house.connect()
            client.ask("PUT", f"/v1/readers/{quote(name, safe='')}", {"offset": 0}, ada)
            assert client.answer("PUT").status == 204
        found: list[tuple[str, str | None]] = []
        after = ""
        while True:
            page = house.get(f"/v1/readers?limit=2{after}", token=admin).json
            found += [(row["name"], row["owner"]) for row in page["items"]]
            if page["next"] is None:
                break
            after = f"&after={quote(page['next'], safe='')}"
        expected: list[tuple[str, str | None]] = [(name, None) for name in names]
        expected.insert(1, (names[0], "ada" * 80))
        assert found == [*expected, (names[-1], "ada" * 80)]
        first = house.get("/v1/readers").json
        assert len(first["items"]) == 100
        matching = house.get("/v1/readers?match=ada*", token=admin).json["items"]
        assert [row["name"] for row in matching] == [names[0], names[-1]]
        assert house.get("/v1/readers?match=r01*").json["next"] is None

    def test_a_page_behind_no_place_is_refused(self) -> None:
        for after in ("x", "-1%20a", "99999%20a", "%CE%B1%20a"):
            answer = self.house.get(f"/v1/readers?after={after}")
            assert answer.error == (400, "invalid-request"), after

    def test_a_deleted_reader(self) -> None:
        self.put("a", offset=1)
        assert self.delete("a") == 204
        assert self.delete("a") == 204
        assert self.readers() == []

    def test_the_number_of_readers_is_limited(self) -> None:
        assert [self.put(name, offset=0).status for name in "aba"] == [204] * 3
        assert self.put("c", offset=0).error == (507, "limit-reached")

    def test_invalid_positions(self) -> None:
        assert self.put("a", offset=4).error == (416, "beyond-end")
        assert self.put("a", offset=0, epoch="other").error == (409, "epoch")
        # After a restore of a backup, the position of a reader is also beyond the end.
        assert self.put("a", offset=4, epoch="other").error == (409, "epoch")
        for body in ({}, {"offset": -1}, {"offset": "x"}, {"offset": 1, "more": 2}):
            assert self.put("a", **body).error == (400, "invalid-request")
        for name in ("", "%ff", "x" * 256):
            assert self.put(name, offset=0).error == (400, "invalid-request")
        assert self.readers() == []


class UnwrittenTests(SynchronousTestCase):
    """Positions behind messages that are not written yet"""

    def setUp(self) -> None:
        self.disk = SlowDisk()
        self.house = WebHouse(self.disk)
        self.house.publish("a", b"1", b"2")

    def put(self, offset: int) -> WebClient:
        client = self.house.connect()
        client.ask("PUT", "/v1/readers/a", {"offset": offset})
        return client

    def test_they_are_stored_once_the_messages_are_written(self) -> None:
        client = self.put(2)
        assert self.house.get("/v1/readers").json["items"] == []
        self.disk.write()
        self.disk.commit()
        assert client.answer("PUT").status == 204
        assert self.house.get("/v1/readers").json["items"][0]["offset"] == 2

    def test_the_messages_cannot_be_written(self) -> None:
        client = self.put(2)
        self.disk.write(False)
        assert client.answer("PUT").error == (503, "history-unavailable")
        assert self.house.get("/v1/readers").json["items"] == []

    def test_a_position_beyond_all_messages(self) -> None:
        client = self.put(3)
        self.disk.write()
        assert client.answer("PUT").error == (416, "beyond-end")


class RestoreTests(SynchronousTestCase):
    """The positions that a history has"""

    def test_more_than_the_memory_is_for_are_kept_and_reported(self) -> None:
        store = MemoryStore(1000, 2**20)
        for number in range(8):
            store.put(READERS, f"r{number}", b'{"offset": 0, "epoch": "1-2", "updated": 0}')
        lines = logged(self)
        broker = make_broker(limits=BrokerLimits(max_memory=40_000), store=store)
        positions = ReaderPositions(broker.make_listener("admin", admin_settings()))
        before = broker.memory.used
        positions.restore()
        assert broker.memory.used == before + 8 * 1500
        (line,) = (line for line in lines if "readers" in line)
        assert line.startswith("the positions of 8 readers take more than a quarter of max-memory;")
