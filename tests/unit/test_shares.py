"""Shares of the HTTP API's clients, and the share to which a request counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.http_headers import Headers

from pubsub.http_api.requests.client_share import client_of
from pubsub.http_api.requests.shares import Shares
from pubsub.wire.peer_address import network_of
from tests.unit.web import WebHouse


class SharesTests(SynchronousTestCase):
    """Shares"""

    def taken(self, shares: Shares, client: str) -> int:
        """Take one unit at a time as long as that is possible; return how many were taken."""
        count = 0
        while shares.take(client, 1):
            count += 1
        return count

    def test_alone_a_client_may_hold_half(self) -> None:
        assert self.taken(Shares(lambda: 16), "a") == 8

    def test_each_client_leaves_room_for_the_next(self) -> None:
        shares = Shares(lambda: 32)
        assert [self.taken(shares, client) for client in "abcde"] == [16, 8, 4, 2, 1]

    def test_a_returned_share_can_be_taken_by_others(self) -> None:
        shares = Shares(lambda: 16)
        self.taken(shares, "a")
        shares.free("a", 6)
        assert (shares.used, shares.held("a"), shares.held("b")) == (2, 2, 0)
        assert self.taken(shares, "b") == 7

    def test_the_first_units_are_granted_while_there_are_any(self) -> None:
        shares = Shares(lambda: 10)
        assert not shares.take("a", 11)
        assert shares.take("a", 9)
        assert shares.take("b", 1)
        assert not shares.take("c", 1)
        assert shares.take("c", 0)

    def test_the_limit_may_change(self) -> None:
        limit = 1
        shares = Shares(lambda: limit)
        assert shares.take("a", 1)
        assert not shares.take("b", 1)
        limit = 2
        assert shares.take("b", 1)

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6)), max_size=40))
    def test_no_client_takes_more_than_it_leaves(self, steps: list[tuple[str, int]]) -> None:
        shares = Shares(lambda: 20)
        held = dict.fromkeys("abc", 0)
        for client, amount in steps:
            if shares.take(client, amount):
                assert not held[client] or held[client] + amount <= 20 - shares.used
                held[client] += amount
            elif held[client] > amount:
                shares.free(client, amount)
                held[client] -= amount
            assert shares.used == sum(held.values()) <= 20
            assert all(shares.held(one) == count for one, count in held.items())


class ClientTests(SynchronousTestCase):
    """Whose share it is"""

    def test_an_ipv6_network_is_one_client(self) -> None:
        assert network_of("2001:db8:1:2:3:4:5:6") == network_of("2001:db8:1:2::1")
        assert network_of("2001:db8:1:2::1") != network_of("2001:db8:1:3::1")
        assert network_of("fe80::1%eth0") == "fe80::/64"
        assert [network_of(host) for host in ("192.0.2.1", "unix")] == ["192.0.2.1", "unix"]

    def test_a_known_token_stands_for_its_subject(self) -> None:
        house = WebHouse()
        token = house.token()

        def client(header: bytes | None, host: str = "192.0.2.1") -> object:
            headers = Headers({} if header is None else {b"authorization": [header]})
            return client_of(headers, house.listener, host)

        nobody = client(None)
        assert client(b"Bearer " + token) == nobody
        house.get("/v1/topics", token=token)
        bob = client(b"bearer  " + token)
        assert bob != nobody
        assert client(b"Bearer " + token, "192.0.2.2") == bob
        assert client(b"Basic " + token) == client(b"Bearer x") == nobody
        house.pass_time(3601)
        assert client(b"Bearer " + token) == nobody
