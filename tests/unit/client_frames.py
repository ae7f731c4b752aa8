"""Frames of the HTTP client."""

from __future__ import annotations

from pubsub.client.http_session import HttpSession
from pubsub.wire.client_events import (
    Interest,
    Subscribed,
)
from pubsub.wire.client_wire import Role
from tests.unit.http_ends import EPOCH, HandMade, upgraded

NEWS, SPORT = Interest("news"), Interest("sport")


def subscribed(*interests: Interest) -> HandMade:
    """Return both ends, with subscriptions that begin at 3; their requests begin at 2."""
    far = upgraded(Role.SUBSCRIBER)
    for number, interest in enumerate(interests, 2):
        far.connection.subscribe(interest)
        reply = far.ok(number, topic=interest.name, start=3, epoch=EPOCH)
        assert far.receive(reply) == [Subscribed(interest)]
    far.requests()
    return far


def positions(far: HandMade) -> dict[Interest, str]:
    session = far.connection.session
    assert isinstance(session, HttpSession)
    return session.positions
