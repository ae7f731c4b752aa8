"""Addresses of clients as text."""

from __future__ import annotations

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.wire.peer_address import UNIX, address_text, host_of, is_local, network_of
from tests.unit.web import WebClient, WebHouse

MAPPED = IPv6Address("TCP", "::ffff:192.0.2.7", 4711)
SIXTH = IPv6Address("TCP", "2001:db8::7", 4711)


class AddressTests(SynchronousTestCase):
    """An address"""

    def test_a_socket_for_both_versions_shows_ipv4_as_such(self) -> None:
        assert host_of(MAPPED) == host_of(IPv4Address("TCP", "192.0.2.7", 1)) == "192.0.2.7"
        assert address_text(MAPPED) == "192.0.2.7:4711"
        # Otherwise all clients of IPv4 would be those of one network.
        assert network_of(host_of(MAPPED)) == "192.0.2.7"

    def test_other_addresses(self) -> None:
        assert (host_of(SIXTH), address_text(SIXTH)) == ("2001:db8::7", "[2001:db8::7]:4711")
        hexadecimal = IPv6Address("TCP", "::ffff:c000:207", 1)
        assert host_of(hexadecimal) == "::ffff:c000:207"
        assert host_of(UNIXAddress(None)) == address_text(UNIXAddress(None)) == UNIX

    def test_the_addresses_of_this_machine(self) -> None:
        for host in ("::1", "::ffff:127.0.0.1"):
            assert is_local(IPv6Address("TCP", host, 1))
        assert is_local(IPv4Address("TCP", "127.0.0.1", 1))
        assert is_local(UNIXAddress(None))
        assert not is_local(MAPPED)
        assert not is_local(IPv6Address("TCP", "fe80::1%lo", 1))

    def test_a_client_of_this_machine_at_a_socket_for_both_versions(self) -> None:
        house = WebHouse(allow_anonymous="auto")
        house.broker.tokens.replace(SecretRing())
        for host, status in (("::ffff:127.0.0.1", 200), ("::ffff:192.0.2.7", 401)):
            client = WebClient(house.factory, house.clock, IPv6Address("TCP", host, 4711))
            assert client.get("/v1/configuration").status == status
