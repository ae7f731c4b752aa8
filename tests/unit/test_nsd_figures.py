"""nsd: the broker's figures in the response to Get (nsd §3.5)."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_table import AccessRule, Who
from pubsub.broker.figures.statistics import Statistics
from pubsub.broker.figures.stats_topic import TOPIC
from tests.unit import nsd_lines as wire
from tests.unit.nsd_lines import NOTHING, Nsd
from tests.unit.nsd_rules import ANY, EVERYTHING, apply
from tests.unit.streams import Client


class FiguresTests(SynchronousTestCase):
    """An identity that is subscribed to the figures"""

    def setUp(self) -> None:
        self.nsd = Nsd(grant=TOPIC)
        self.nsd.start()
        self.client = self.nsd.connect("nsd")
        self.nsd.ask(wire.subscribe("ada", TOPIC))

    def messages(self, after: int = 0, client: Client | None = None) -> list[dict[str, Any]]:
        """Return the messages of a response to Get."""
        client = client or self.client
        client.send(wire.get("ada", after))
        self.nsd.pump()
        found: list[dict[str, Any]] = json.loads(client.take())["messages"]
        return found

    def test_a_message(self) -> None:
        (message,) = self.messages()
        assert {name: message[name] for name in ("_class", "from", "when")} == {
            "_class": "Message", "from": "", "when": 0,
        }  # fmt: skip
        assert json.loads(message["body"]).keys() == self.nsd.broker.statistics.snapshot().keys()
        assert self.nsd.store.next_offset == 0

    def test_those_of_a_second_come_once_over_a_connection(self) -> None:
        found = []
        for _ in range(12):
            found += self.messages(0)
            self.nsd.advance(0.25)
        uptimes = [json.loads(message["body"])["uptime"] for message in found]
        assert len(uptimes) == 3
        assert [int(uptime) for uptime in uptimes] == [0, 1, 2]
        assert len(self.messages(0, self.nsd.connect("nsd"))) == 1

    def test_they_are_last_and_nothing_is_missed_behind_them(self) -> None:
        self.nsd.ask(
            wire.open_("ben"),
            wire.publish("ben", "not for ada"),
            wire.open_("ada"),
            wire.publish("ada", "1"),
        )
        self.nsd.ask(wire.publish("ben", "not for ada either"))
        first, figures = self.messages()
        assert (first["body"], first["when"]) == ("1", 2)
        assert figures["when"] == 3
        self.nsd.ask(wire.publish("ada", "2"))
        (second,) = self.messages(figures["when"])
        assert (second["body"], second["when"]) == ("2", 4)

    def test_a_client_that_is_ahead_is_not_sent_back(self) -> None:
        (figures,) = self.messages(after=1000)
        assert figures["when"] == 1000
        self.nsd.advance(1)
        (figures,) = self.messages(after=-5)
        assert figures["when"] == 0

    def test_a_client_with_a_number_that_no_offset_can_have(self) -> None:
        for after in (2**63 - 1, 2**63, 2**64, 10**4000):
            (figures,) = self.messages(after)
            assert figures["when"] == after
            self.nsd.advance(1)

    def test_they_are_behind_a_list_of_many_pages(self) -> None:
        nsd = self.nsd = Nsd(grant=TOPIC, max_body=100_000)
        nsd.start()
        texts = nsd.write_history(20, 50_000)
        nsd.ask(wire.subscribe("ada", TOPIC))
        found = self.messages(0, nsd.connect("nsd"))
        assert [message["body"] for message in found[:-1]] == texts
        assert found[-1]["when"] == found[-2]["when"] == 20

    def test_one_snapshot_serves_all_in_a_second(self) -> None:
        clients = [self.nsd.connect("nsd") for _ in range(5)]
        snapshot = self.nsd.broker.statistics.snapshot()
        with patch.object(Statistics, "snapshot", return_value=snapshot) as made:
            for client in clients:
                assert len(self.messages(0, client)) == 1
        assert made.call_count == 1

    def test_they_count_as_sent(self) -> None:
        traffic = self.nsd.broker.counters.traffic["nsd"]
        before = traffic.written.messages
        self.messages()
        self.messages()
        assert traffic.written.messages == before + 1

    def test_they_end_with_the_right(self) -> None:
        self.nsd = Nsd()
        self.nsd.start()
        apply(self.nsd, AccessRule("test", True, ANY, Who(), (TOPIC,)))
        self.nsd.ask(wire.subscribe("ada", TOPIC))
        client = self.nsd.connect("nsd")
        assert len(self.messages(0, client)) == 1
        apply(self.nsd, EVERYTHING)
        self.nsd.advance(2)
        assert self.messages(0, client) == []


class OthersTests(SynchronousTestCase):
    """Everybody else"""

    def test_nothing_is_put_together_for_them(self) -> None:
        nsd = Nsd(grant=TOPIC)
        nsd.start()
        nsd.ask(wire.subscribe("ada", TOPIC), wire.open_("ben"))
        client = nsd.connect("nsd")
        with patch.object(Statistics, "snapshot", side_effect=AssertionError):
            client.send(wire.get("ben") + wire.get("nobody"))
            nsd.advance(3)
        assert client.take() == NOTHING * 2
        assert not self.flushLoggedErrors()  # type: ignore[no-untyped-call]

    def test_without_the_right_there_are_none(self) -> None:
        nsd = Nsd()
        nsd.start()
        nsd.factories["nsd"]._identities.subscribe("ada", TOPIC, 10, 10)
        client = nsd.connect("nsd")
        client.send(wire.get("ada"))
        nsd.pump()
        assert client.take() == NOTHING
