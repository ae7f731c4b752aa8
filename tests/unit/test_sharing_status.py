"""What the status shows of a backplane in trouble."""

from __future__ import annotations

from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from pubsub.management.status import status_of
from tests.unit.fakes import make_broker


class SharingStatusTests(SynchronousTestCase):
    """The notices about the backplane"""

    def notices(self, **backplane: str) -> list[str]:
        broker = make_broker()
        stats = {**broker.statistics.snapshot(), "backplane": backplane}
        with mock.patch.object(broker.statistics, "snapshot", return_value=stats):
            attention = status_of(broker.statistics, broker.readiness)["attention"]
        return [one["what"] for one in attention if "history" in one["what"] + one["do"]]

    def test_an_engine_that_does_not_store(self) -> None:
        found = self.notices(trouble="", history_trouble="the engine: insufficient resources")
        assert found == ["the history is not shared: the engine: insufficient resources"]

    def test_too_many_messages_wait(self) -> None:
        found = self.notices(trouble="refused", history_full="yes")
        assert found == [
            "the messages that wait for the shared history have reached backplane-spool-bytes",
            "the backplane is away: refused",
        ]

    def test_an_engine_that_is_away(self) -> None:
        assert self.notices(trouble="refused", history_trouble="x") == [
            "the backplane is away: refused"
        ]

    def test_an_account_without_permissions(self) -> None:
        violation = 'nats: permissions violation for publish to "pubsub.v1.h.x"'
        broker = make_broker()
        stats = {**broker.statistics.snapshot(), "backplane": {"complaint": violation}}
        with mock.patch.object(broker.statistics, "snapshot", return_value=stats):
            attention = status_of(broker.statistics, broker.readiness)["attention"]
        expected = f"the backplane reports: {violation}"
        assert expected in [one["what"] for one in attention]

    def test_a_server_that_is_cut_off(self) -> None:
        broker = make_broker()
        stats = {**broker.statistics.snapshot(), "backplane": {"trouble": "", "cut_off": True}}
        with mock.patch.object(broker.statistics, "snapshot", return_value=stats):
            attention = status_of(broker.statistics, broker.readiness)["attention"]
        expected = "most servers of the backplane's cluster are away, or cut off from this broker's"
        assert expected in [one["what"] for one in attention]

    def test_peers_that_are_lost(self) -> None:
        broker = make_broker()
        for lost, expected in ((1, ["1 of 3 peers cannot be reached"]), (0, [])):
            peers = {"connected": 2, "connecting": 0, "lost": lost}
            stats = {**broker.statistics.snapshot(), "peers": peers}
            with mock.patch.object(broker.statistics, "snapshot", return_value=stats):
                attention = status_of(broker.statistics, broker.readiness)["attention"]
            assert [one["what"] for one in attention if "peers" in one["what"]] == expected

    def test_brokers_with_other_secrets(self) -> None:
        broker = make_broker()
        stats = {**broker.statistics.snapshot(), "backplane": {"other_secrets": ["b", "c"]}}
        with mock.patch.object(broker.statistics, "snapshot", return_value=stats):
            attention = status_of(broker.statistics, broker.readiness)["attention"]
        expected = "other master secrets than here are at b, c"
        assert expected in [one["what"] for one in attention]

    def test_another_broker_of_the_same_name(self) -> None:
        broker = make_broker()
        text = "another broker of the backplane has the name of this one"
        for namesake in (True, False):
            stats = {**broker.statistics.snapshot(), "backplane": {"namesake": namesake}}
            with mock.patch.object(broker.statistics, "snapshot", return_value=stats):
                attention = status_of(broker.statistics, broker.readiness)["attention"]
            assert (text in [one["what"] for one in attention]) is namesake

    def test_no_trouble(self) -> None:
        assert self.notices(trouble="", history_trouble="") == []
