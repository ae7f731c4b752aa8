"""HTTP: leases of readers' names."""

from __future__ import annotations

from unittest.mock import Mock, call

from twisted.trial.unittest import SynchronousTestCase

from pubsub.http_api.readers.reader_leases import LEASE_BYTES, LEASE_SECONDS, _Lease, _no_leases
from tests.unit.web import Answer, WebHouse


class LeaseTests(SynchronousTestCase):
    """/v1/leases"""

    def setUp(self) -> None:
        self.house = WebHouse(max_readers=2)

    def put(self, holder: str, name: str = "daily") -> Answer:
        """Ask for a lease."""
        client = self.house.connect()
        client.ask("PUT", f"/v1/leases/{name}", {"holder": holder})
        return client.answer("PUT")

    def delete(self, holder: str, name: str = "daily") -> int:
        """Release a lease."""
        client = self.house.connect()
        client.ask("DELETE", f"/v1/leases/{name}?holder={holder}")
        return client.answer("DELETE").status

    def test_one_holder_at_a_time(self) -> None:
        assert self.put("a").json == {"seconds": LEASE_SECONDS}
        self.house.clock.advance(4)
        refused = self.put("b")
        assert refused.error == (409, "reader-in-use")
        assert refused.json["seconds"] == LEASE_SECONDS - 4
        assert self.put("b", "nightly").status == 200

    def test_a_holder_renews_its_lease(self) -> None:
        for _ in range(3):
            assert self.put("a").status == 200
            self.house.clock.advance(LEASE_SECONDS - 1)
        assert self.put("b").status == 409

    def test_a_lease_ends_by_itself(self) -> None:
        self.put("a")
        self.house.clock.advance(LEASE_SECONDS)
        assert self.put("b").status == 200
        assert self.put("a").status == 409

    def test_a_released_name(self) -> None:
        self.put("a")
        assert self.delete("b") == 204
        assert self.put("b").status == 409
        assert self.delete("a") == 204
        assert self.put("b").status == 200
        assert self.delete("a") == 204
        assert self.put("a").status == 409

    def test_leases_are_limited_and_counted(self) -> None:
        memory = self.house.broker.memory
        reserve, free = Mock(wraps=memory.reserve), Mock(wraps=memory.free)
        self.patch(memory, "reserve", reserve)  # type: ignore[no-untyped-call]
        self.patch(memory, "free", free)  # type: ignore[no-untyped-call]
        one = call(LEASE_BYTES)
        assert [self.put("a", name).status for name in "xyx"] == [200] * 3
        assert self.put("a", "z").error == (507, "limit-reached")
        assert reserve.call_args_list.count(one) == 2
        self.house.clock.advance(LEASE_SECONDS)
        assert self.put("a", "z").status == 200
        assert self.delete("a", "z") == 204
        assert reserve.call_args_list.count(one) == free.call_args_list.count(one) == 3

    def test_nothing_is_kept_of_owners_without_one(self) -> None:
        _, counts = self.house.listener.shared(_Lease, _no_leases)
        self.put("a", "x")
        self.put("a", "y")
        assert counts == {None: 2}
        self.delete("a", "x")
        self.house.clock.advance(LEASE_SECONDS)
        self.put("a")
        self.delete("a")
        assert list(counts) == []

    def test_an_ended_lease_is_not_charged(self) -> None:
        """Also without another request for a lease."""
        free = Mock(wraps=self.house.broker.memory.free)
        self.patch(self.house.broker.memory, "free", free)  # type: ignore[no-untyped-call]
        self.put("a")
        self.house.clock.pump([1] * LEASE_SECONDS)
        assert free.call_args_list.count(call(LEASE_BYTES)) == 1

    def test_invalid_requests(self) -> None:
        client = self.house.connect()
        for body in ({}, {"holder": ""}, {"holder": 5}, {"holder": "x" * 256}, {"more": "x"}):
            client.ask("PUT", "/v1/leases/daily", body)
            assert client.answer("PUT").error == (400, "invalid-request")
