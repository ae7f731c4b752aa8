"""Two HTTP listeners of one broker: readers, leases and batches are those of the broker."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import maybeDeferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.http_api.server import HttpApiFactory
from tests.unit.web import Answer, WebHouse, admin_settings, stream_of
from tests.unit.writing_case import table


class TwoListenersTests(SynchronousTestCase):
    """Requests at one listener, and at another"""

    def setUp(self) -> None:
        self.house = house = WebHouse()
        self.first = house.factory
        self.second = self.added()

    def added(self) -> HttpApiFactory:
        """Return another listener, which a reload has added."""
        listener = self.house.broker.make_listener("admin", admin_settings())
        factory = HttpApiFactory(listener, maybeDeferred)
        factory.startFactory()  # type: ignore[no-untyped-call]
        return factory

    def ask(self, factory: HttpApiFactory, method: str, path: str, body: object) -> Answer:
        self.house.factory = factory
        client = self.house.connect()
        client.ask(method, path, body)
        return client.answer(method)

    def commit(self, factory: HttpApiFactory, batch: int, *parts: str) -> Any:
        """Return the reply to a commit."""
        body = {"query": "q", "batch": batch, "parts": list(parts)}
        return self.ask(factory, "POST", "/v1/commit", body).json

    def stage(self, factory: HttpApiFactory, batch: int) -> str:
        """Stage a message; return the id of the part."""
        data = stream_of(table(["t"], [b"x"]))
        part: str = self.ask(factory, "POST", f"/v1/stage?query=q&batch={batch}", data).json["part"]
        return part

    def test_a_batch_is_committed_once(self) -> None:
        part = self.stage(self.first, 0)
        assert self.commit(self.second, 0, part)["duplicate"] is False
        assert self.commit(self.first, 0, part)["duplicate"] is True
        assert self.commit(self.added(), 0, self.stage(self.second, 0))["duplicate"] is True
        assert len(self.house.get("/v1/topics/t/messages").lines) == 1

    def test_readers(self) -> None:
        self.house.publish("t", b"1", b"2")
        position = {"offset": 1, "epoch": self.house.store.epoch}
        assert self.ask(self.first, "PUT", "/v1/readers/r", position).status == 204
        for factory in (self.second, self.added()):
            assert b'"offset": 1' in self.ask(factory, "GET", "/v1/readers", None).body
        assert self.ask(self.second, "DELETE", "/v1/readers/r", None).status == 204
        assert b'"offset": 1' not in self.ask(self.first, "GET", "/v1/readers", None).body

    def test_leases(self) -> None:
        assert self.ask(self.first, "PUT", "/v1/leases/r", {"holder": "a"}).status == 200
        refused = self.ask(self.second, "PUT", "/v1/leases/r", {"holder": "b"})
        assert refused.error == (409, "reader-in-use")
