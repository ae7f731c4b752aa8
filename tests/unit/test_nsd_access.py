"""nsd: replies to a client without rights, and a list that is sent while rights change."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_table import AccessRule, Who
from tests.unit import nsd_lines as wire
from tests.unit.nsd_lines import NOTHING, SUCCESS, Nsd
from tests.unit.nsd_rules import ANY, EVERYTHING, apply
from tests.unit.streams import Client

DENIED = AccessRule("test", False, ANY, Who(), ("ada", "secret", "absent"))


def say(client: Client, line: bytes) -> bytes:
    """Send a request and return the response."""
    client.send(line)
    return client.take()


class NameTests(SynchronousTestCase):
    """A channel that exists and one that does not look alike to a client without the right"""

    def test_every_request(self) -> None:
        nsd = Nsd()
        nsd.ask(wire.open_("secret"), wire.open_("ben"))
        apply(nsd, DENIED, EVERYTHING)
        client = nsd.connect("nsd")
        for name in ("secret", "absent"):
            for line in (
                wire.open_(name),
                wire.publish(name, "x"),
                wire.publish(name, "x" * 2000),
                wire.subscribe("ben", name),
                wire.unsubscribe("ben", name),
            ):
                assert say(client, line) == wire.error(f"NOT AUTHORIZED: {name}"), line

    def test_with_the_right_they_differ(self) -> None:
        nsd = Nsd()
        client = nsd.connect("nsd")
        for line in (
            wire.publish("absent", "x"),
            wire.subscribe("b", "absent"),
            wire.unsubscribe("b", "absent"),
        ):
            assert say(client, line) == wire.error("NO SUCH CHANNEL: absent")

    def test_an_old_subscription_can_be_ended(self) -> None:
        nsd = Nsd()
        nsd.ask(wire.open_("secret"), wire.subscribe("ben", "secret"))
        apply(nsd, DENIED, EVERYTHING)
        assert say(nsd.connect("nsd"), wire.unsubscribe("ben", "secret")) == SUCCESS

    def test_a_channel_that_may_not_be_read_is_opened_without_a_subscription(self) -> None:
        nsd = Nsd(allow_subscribe="", max_subscriptions=0)
        client = nsd.connect("nsd")
        assert say(client, wire.open_("ada")) == SUCCESS
        assert say(client, wire.publish("ada", "x")) == SUCCESS
        listener = nsd.listeners["nsd"]
        listener.reconfigure(
            {**listener.settings, "allow-subscribe": ("*",), "max-subscriptions": 1}
        )
        assert say(client, wire.get("ada")) == NOTHING
        assert say(client, wire.open_("ada")) == SUCCESS
        assert wire.bodies(say(client, wire.get("ada"))) == ["x"]

    def test_an_anonymous_client_that_is_not_served(self) -> None:
        nsd = Nsd()
        nsd.ask(wire.open_("secret"), wire.subscribe("ben", "secret"))
        client = nsd.connect("nsd")
        listener = nsd.listeners["nsd"]
        listener.reconfigure({**listener.settings, "allow-anonymous": "off"})
        for line, name in (
            (wire.get("ben"), "ben"),
            (wire.subscribe("ben", "secret"), "ben"),
            (wire.unsubscribe("ben", "secret"), "ben"),
            (wire.open_("new"), "new"),
            (wire.publish("secret", "x"), "secret"),
        ):
            assert say(client, line) == wire.error(f"NOT AUTHORIZED: {name}"), line


class ListTests(SynchronousTestCase):
    """A Get whose response takes many pages"""

    def setUp(self) -> None:
        self.nsd = Nsd(max_body=200_000)
        self.texts = self.nsd.write_history(60, 100_000)
        self.nsd.ask(wire.open_("ben"), wire.publish("ben", "last"), wire.subscribe("cy", "ada"),
                     wire.subscribe("cy", "ben"))  # fmt: skip

    def get_while(self, *rules: AccessRule) -> list[str]:
        """Return the result of a Get; the rules are replaced while it is sent."""
        client = wire.slow_client(self.nsd)
        client.send(wire.get("cy"))
        self.nsd.pump()
        apply(self.nsd, *rules)
        client.stream.read()
        self.nsd.pump(200)
        return wire.bodies(client.take())

    def test_a_channel_is_left_out_from_the_revocation_on(self) -> None:
        got = self.get_while(DENIED, EVERYTHING)
        assert 0 < len(got) < 40
        assert got == [*self.texts[: len(got) - 1], "last"]

    def test_a_change_that_takes_nothing_away_changes_nothing(self) -> None:
        assert self.get_while(EVERYTHING) == [*self.texts, "last"]

    def test_a_channel_allowed_during_a_get_is_in_the_next_one(self) -> None:
        apply(self.nsd, AccessRule("test", False, ANY, Who(), ("ben",)), EVERYTHING)
        assert self.get_while(EVERYTHING) == self.texts
