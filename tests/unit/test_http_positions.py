"""HTTP: positions of readers."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.unit.web import Answer, WebHouse


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
        rows: list[Any] = self.house.get("/v1/readers").json["readers"]
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
        for body in ({}, {"offset": -1}, {"offset": "x"}, {"offset": 1, "more": 2}):
            assert self.put("a", **body).error == (400, "invalid-request")
        for name in ("", "%ff", "x" * 256):
            assert self.put(name, offset=0).error == (400, "invalid-request")
        assert self.readers() == []
