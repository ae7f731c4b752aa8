"""cafe over UDP in memory: a recording port, and a broker that uses it."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import succeed

from pubsub.protocols.cafe.datagram import CafeDatagrams
from pubsub.protocols.cafe.open_ports import OpenPorts
from tests.unit import cafe_wire as wire
from tests.unit.cafe_wire import GAP, Cafe

Address = tuple[str, int]
ALICE, BOB, CAROL = ("192.0.2.1", 4001), ("192.0.2.2", 4002), ("192.0.2.2", 4003)


class Port:
    """A UDP port that records datagrams and addresses. Writes fail while ``broken`` is set."""

    def __init__(self, protocol: CafeDatagrams) -> None:
        self.sent: list[tuple[bytes, Address]] = []
        self.broken: OSError | None = None
        self.stopped = False
        self._protocol = protocol

    def write(self, data: bytes, address: Address) -> None:
        assert isinstance(data, bytes)
        assert len(data) <= 65_507
        if self.broken is not None:
            raise self.broken
        self.sent.append((data, address))

    def stopListening(self) -> None:
        if not self.stopped:
            self.stopped = True
            self._protocol.doStop()  # type: ignore[no-untyped-call]


class Udp(Cafe):
    """A broker with a UDP port; sessions have the ids 1, 2, 3 and so on."""

    def __init__(self, **settings: Any) -> None:
        top = settings.pop("top", None)
        super().__init__(top, udp=True, **settings)
        self.protocol = self.factories["cafe"].datagram_protocol()
        # As if the system did not show any.
        self.protocol.ports = OpenPorts(lambda: succeed(None))
        self.port = Port(self.protocol)
        self.protocol.makeConnection(self.port)

    def send(self, address: Address, data: bytes) -> list[bytes]:
        """Deliver one datagram and return the datagrams sent to this peer in the same tick."""
        self.protocol.datagramReceived(data, address)
        self.turn()
        return self.take(address)

    def take(self, address: Address) -> list[bytes]:
        """Return the datagrams sent to ``address`` since the last call."""
        mine = [data for data, to in self.port.sent if to == address]
        self.port.sent = [entry for entry in self.port.sent if entry[1] != address]
        return mine

    def join(self, address: Address, handshake: bytes) -> None:
        """Open a session and wait until the gap has passed."""
        (answer,) = self.send(address, handshake)
        ((opcode, payload),) = wire.frames(answer)
        assert (opcode, payload[0]) == (0x03, 0)
        self.clock.advance(GAP)


def joined(**settings: Any) -> Udp:
    """Alice publishes on 1, Bob is subscribed to it."""
    udp = Udp(**settings)
    udp.join(ALICE, wire.hs_pub(1, b"alice"))
    udp.join(BOB, wire.hs_sub(b"\x01", b"bob"))
    return udp
