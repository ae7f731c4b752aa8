"""Handshakes that one address may do: of TLS and of CURVE."""

from __future__ import annotations

import ssl

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.clients.handshake_rates import ADDRESSES, BURST_SECONDS, HandshakeRates
from tests.unit.fakes import make_broker, make_listener, scratch
from tests.unit.spot_security import curve, secure_house
from tests.unit.streams import Stream
from tests.unit.tls_streams import client_context, tls_end

HERE, THERE = "192.0.2.1", "192.0.2.2"


class RateTests(SynchronousTestCase):
    """HandshakeRates"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.rates = HandshakeRates(self.clock.seconds)

    def admitted(self, rate: float = 10, address: str = HERE) -> int:
        """Return how many are admitted at once."""
        count = 0
        while count < 5000 and self.rates.admit(address, rate):
            count += 1
        return count

    def test_a_burst_of_some_seconds_and_then_the_rate(self) -> None:
        assert self.admitted() == 10 * BURST_SECONDS
        for _ in range(3):
            self.clock.advance(1)
            assert self.admitted() == 10
        self.clock.advance(0.5)
        assert self.admitted() == 5
        self.clock.advance(3600)
        assert self.admitted() == 10 * BURST_SECONDS

    def test_refused_ones_do_not_count(self) -> None:
        self.admitted()
        for _ in range(1000):
            assert not self.rates.admit(HERE, 10)
        self.clock.advance(1)
        assert self.admitted() == 10

    def test_addresses_do_not_share(self) -> None:
        self.admitted()
        assert self.admitted(address=THERE) == 10 * BURST_SECONDS

    def test_zero_is_no_limit_and_costs_nothing(self) -> None:
        assert self.admitted(0) == 5000
        assert len(self.rates) == 0

    def test_other_rates_count_at_once(self) -> None:
        self.admitted()
        assert not self.rates.admit(HERE, 5)
        assert self.rates.admit(HERE, 1000)

    def test_addresses_are_bounded(self) -> None:
        for number in range(ADDRESSES):
            self.rates.admit(f"net {number}", 0.1)
            assert self.rates.admit(HERE, 0.1) is (number == 0)
        assert len(self.rates) == ADDRESSES
        # The one that continues is remembered.
        assert not self.rates.admit(HERE, 0.1)


class TlsTests(SynchronousTestCase):
    """Handshakes of TLS"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.asked: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.lost: list[str] = []
        self.left = 1

    def admit(self, address: str) -> bool:
        self.asked.append(address)
        self.left -= 1
        return self.left >= 0

    def begin(self, address: IAddress, hello: bool = True) -> Stream:
        """Connect and send a ClientHello."""
        lost = self.lost

        class Application(Protocol):
            """The protocol served over TLS."""

            def connectionLost(self, reason: object = None) -> None:
                lost.append("lost")

        stream = Stream(self.clock, address)
        tls_end(
            Factory.forProtocol(Application),
            stream,
            self.clock,
            lambda reason, client: self.refused.append((reason, client)),
            admit=self.admit,
        )
        if hello:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = client_context(ssl.TLSVersion.TLSv1_3).wrap_bio(incoming, outgoing)
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                stream.feed(outgoing.read())
        return stream

    def test_one_too_many_is_not_begun(self) -> None:
        first = self.begin(IPv4Address("TCP", HERE, 1))
        assert first.received
        second = self.begin(IPv4Address("TCP", HERE, 2))
        assert not second.received
        assert second.closed
        assert self.refused == [("handshake-rate", f"{HERE}:2")]
        assert self.asked == [HERE, HERE]
        second.lose()
        assert self.lost == ["lost"]
        assert not first.closed

    def test_it_is_asked_once_with_the_first_byte(self) -> None:
        self.begin(IPv4Address("TCP", HERE, 1), hello=False)
        assert self.asked == []
        stream = self.begin(IPv4Address("TCP", HERE, 1))
        stream.feed(b"more")
        assert self.asked == [HERE]

    def test_networks_of_ipv6(self) -> None:
        self.begin(IPv6Address("TCP", "2001:db8::1:2", 1))
        assert self.asked == ["2001:db8::/64"]

    def test_clients_of_this_machine_are_not_bounded(self) -> None:
        self.left = 0
        for address in (
            IPv4Address("TCP", "127.0.0.1", 1),
            IPv6Address("TCP", "::1", 1),
            UNIXAddress(None),
        ):
            assert self.begin(address).received
        assert self.asked == []
        assert self.refused == []


class ListenerTests(SynchronousTestCase):
    """All listeners of a broker together"""

    def test_an_address_has_one_account(self) -> None:
        broker = make_broker()
        one, other = (make_listener(broker, handshake_rate=1) for _ in range(2))
        for number in range(int(BURST_SECONDS)):
            assert (one, other)[number % 2].admit_handshake(HERE)
        assert not one.admit_handshake(HERE)
        assert not other.admit_handshake(HERE)
        assert make_listener(broker, handshake_rate=0).admit_handshake(HERE)

    def test_no_honest_client_notices_the_default(self) -> None:
        listener = make_listener(make_broker())
        assert all(listener.admit_handshake(HERE) for _ in range(1000))
        assert not listener.admit_handshake(HERE)


class CurveTests(SynchronousTestCase):
    """Handshakes of CURVE"""

    def test_one_too_many_is_refused_before_its_boxes_are_opened(self) -> None:
        house = secure_house(scratch(self), "curve,null", handshake_rate=1)
        for _ in range(int(BURST_SECONDS)):
            assert curve(house).done
        late = curve(house)
        assert not late.done
        assert late.closed
        assert house.broker.counters.refusals["spot", "handshake-rate"] == 1
        house.advance(1)
        assert curve(house).done
