"""A publishing link under events of any kind in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.client.broker_urls import BrokerUrls
from pubsub.client.client_errors import ClientError
from pubsub.client.client_url import parse_urls
from pubsub.client.link import LinkState
from pubsub.client.link_timing import Timing
from pubsub.client.publish_requests import PublishRequest
from pubsub.client.publishing_link import PublishingLink
from pubsub.client.tickets import Ticket
from pubsub.kernel import Columns
from pubsub.protocols.cafe.channels import CHANNELS
from pubsub.protocols.cafe.client import CafeWire
from pubsub.protocols.cafe.codec import Disconnect, Error, HandshakeAck, Pong, encode
from pubsub.wire.client_events import Level
from pubsub.wire.client_wire import WireOptions

# From each state to those of the table of link.py.
NEXT = {
    LinkState.IDLE: {LinkState.CONNECTING, LinkState.CLOSED},
    LinkState.CONNECTING: {
        LinkState.OPENING,
        LinkState.BACKING_OFF,
        LinkState.IDLE,
        LinkState.CLOSED,
    },
    LinkState.OPENING: {
        LinkState.READY,
        LinkState.CONNECTING,
        LinkState.BACKING_OFF,
        LinkState.IDLE,
        LinkState.CLOSED,
    },
    LinkState.READY: {LinkState.BACKING_OFF, LinkState.IDLE, LinkState.CLOSING},
    LinkState.BACKING_OFF: {LinkState.CONNECTING, LinkState.CLOSED},
    LinkState.CLOSING: {LinkState.CLOSED},
    LinkState.CLOSED: set(),
}
REPLIES = {
    "acknowledged": encode(HandshakeAck(0, 5)),
    "refused": encode(HandshakeAck(8, 0)),
    "unknown session": encode(HandshakeAck(1, 0)),
    "pong": encode(Pong()),
    "error": encode(Error(4)),
    "goodbye": encode(Disconnect()),
    "noise": b"HTTP/1.1 400\r\n\r\n",
}
STEPS = st.lists(
    st.sampled_from(
        [*REPLIES, "start", "connected", "lost", "publish", "confirm", "pump", "wait", "close"]
    ),
    max_size=40,
)


class Driven:
    """A link, and the tickets of everything that was published with confirmation."""

    def __init__(self, *urls: str) -> None:
        brokers = BrokerUrls(parse_urls(urls or ("cafe://h",)))
        wire = CafeWire(WireOptions(values={"channels": CHANNELS.parse("0-255")}))
        self.link = PublishingLink(wire, brokers, Timing(), lambda: 0.5, 1000, lambda notice: None)
        self.now = 0.0
        self.tickets: list[Ticket[Level]] = []
        self.called: list[int] = []

    def step(self, name: str) -> None:
        """Do one thing, as the driver and the client would."""
        link = self.link
        match name:
            case "start":
                link.start(self.now)
            case "connected":
                link.connected(self.now)
            case "lost":
                link.lost("broken", self.now)
            case "publish" | "confirm":
                self.publish(name == "confirm")
            case "pump":
                link.pump(self.now)
            case "wait":
                self.now += 7
                link.tick(self.now)
            case "close":
                link.close(self.now)
            case _:
                link.received(REPLIES[name], self.now)
        link.take_output()
        link.take_commands()

    def publish(self, confirm: bool) -> None:
        if self.link.state in (LinkState.CLOSING, LinkState.CLOSED) or not self.link.has_room():
            return
        ticket: Ticket[Level] | None = None
        if confirm:
            ticket = Ticket(self.now + 30)
            number = len(self.tickets)
            self.tickets.append(ticket)
            ticket.when_done(lambda: self.called.append(number))
        self.link.add(PublishRequest("cafe/7", Columns.one(b"x" * 20), ticket=ticket))


class OrderTests(SynchronousTestCase):
    @given(STEPS, st.sampled_from([("cafe://h",), ("cafe://h", "cafe://i", "cafe://j")]))
    def test_states_follow_the_table_and_every_ticket_is_done_once(
        self, steps: list[str], urls: tuple[str, ...]
    ) -> None:
        driven = Driven(*urls)
        link = driven.link
        for name in steps:
            before = link.state
            driven.step(name)
            reachable = {before} | NEXT[before]
            # One input may carry a link through an intermediate state.
            for state in NEXT[before]:
                reachable |= NEXT[state]
            assert link.state in reachable, (before, name, link.state)
            assert 0 <= link.nbytes <= 1000 + 84
        link.close(driven.now)
        assert link.nbytes == 0
        assert sorted(driven.called) == list(range(len(driven.tickets)))
        for ticket in driven.tickets:
            assert isinstance(ticket.error, ClientError) or ticket.result is Level.HANDLED

    @given(STEPS)
    def test_a_link_can_always_be_closed(self, steps: list[str]) -> None:
        driven = Driven()
        for name in ("start", "connected", "acknowledged", *steps):
            driven.step(name)
        driven.link.close(driven.now)
        driven.link.tick(driven.now + 60)
        assert driven.link.state is LinkState.CLOSED
        assert driven.link.gone.done
        assert driven.link.deadline() is None

    def test_a_wait_that_is_not_over(self) -> None:
        """The link is looked at earlier for a call that has waited for too long."""
        driven = Driven()
        link = driven.link
        for state, steps in (
            (LinkState.CONNECTING, ("start",)),
            (LinkState.OPENING, ("connected",)),
            (LinkState.READY, ("acknowledged",)),
            (LinkState.BACKING_OFF, ("lost",)),
        ):
            for name in steps:
                driven.step(name)
            link.tick(driven.now + 0.01)
            assert link.state is state
            assert link.take_commands() == []
            assert link.take_output() == b""
        link.tick(driven.now + 0.1)
        assert link.state is LinkState.CONNECTING
