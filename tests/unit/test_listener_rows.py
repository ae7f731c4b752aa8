"""The fields of each listener in the list of listeners."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.tls_settings import TLS
from pubsub.management.listeners import listener_rows
from tests.unit.streams import House


class TlsTests(SynchronousTestCase):
    """The field tls"""

    def shown(self, endpoint: str, settings: object = None) -> object:
        house = House({"cafe": {"endpoint": endpoint}})
        listener = house.listeners["cafe"]
        listener.reconfigure({**listener.settings, TLS: settings})
        ((_, row),) = listener_rows(house.broker.readiness)
        assert row["tls"] is listener.tls
        return row["tls"]

    def test_endpoints_with_tls(self) -> None:
        for endpoint in ("ssl:0", "haproxy:ssl:0"):
            assert self.shown(endpoint) is True, endpoint

    def test_endpoints_without_tls(self) -> None:
        for endpoint in ("tcp:0", "haproxy:tcp:0", "unix:ssl:0"):
            assert self.shown(endpoint) is False, endpoint

    def test_the_settings_of_a_listener(self) -> None:
        assert self.shown("tcp:0", object()) is True
