"""The base class of tests with a house."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.unit.web import WebHouse


class HouseCase(SynchronousTestCase):
    """A broker with the API, and three messages."""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.house.publish("a", b"1", b"\xff2")
        self.house.publish("b", b"3")

    def values(self, target: str, **given: Any) -> list[bytes]:
        """Return the payloads of a range."""
        return [row["value"] for row in self.house.get(target, **given).rows]
