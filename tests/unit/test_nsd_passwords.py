"""nsd: the password of an identity (nsd §1.4)."""

from __future__ import annotations

import json

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.identity import PASSWORD, Identity
from pubsub.errors import ConfigurationError
from pubsub.store.memory_store import MemoryStore
from tests.unit import nsd_lines as wire
from tests.unit.fakes import scratch
from tests.unit.nsd_lines import NOTHING, SUCCESS, Nsd
from tests.unit.streams import Client, logged
from tests.unit.user_files import user_file

WRONG = wire.error("WRONG PASSWORD")


def with_password(line: bytes, password: object = "sesame") -> bytes:
    """Return a request with the field ``password``."""
    return json.dumps({**json.loads(line), "password": password}).encode() + b"\n"


class NsdPasswordTests(SynchronousTestCase):
    """identity-password"""

    def nsd(
        self, mode: str = "required", events: bool = False, store: MemoryStore | None = None
    ) -> Nsd:
        top = {"password-file": user_file(scratch(self)), "events": events}
        return Nsd(top, store=store, identity_password=mode)

    def say(self, client: Client, nsd: Nsd, line: bytes) -> bytes:
        client.send(line)
        nsd.pump(5)
        return client.take()

    def test_a_password_is_given_once_a_connection(self) -> None:
        nsd = self.nsd()
        client = nsd.connect("nsd")
        assert self.say(client, nsd, with_password(wire.open_("bob"))) == SUCCESS
        assert client.protocol.identity == Identity("bob", PASSWORD, host="192.0.2.1")
        assert self.say(client, nsd, wire.publish("bob", "hello")) == SUCCESS
        assert wire.bodies(self.say(client, nsd, wire.get("bob"))) == ["hello"]

    def test_without_it_or_with_a_wrong_one_the_request_is_refused(self) -> None:
        nsd = self.nsd()
        client = nsd.connect("nsd")
        for line in (
            wire.open_("bob"),
            wire.open_("nobody"),
            with_password(wire.open_("bob"), "wrong"),
            with_password(wire.open_("nobody"), "wrong"),
            with_password(wire.open_("bob"), ""),
        ):
            assert self.say(client, nsd, line) == WRONG
        assert not client.closed
        assert nsd.broker.counters.refusals == {("nsd", "wrong-password"): 5}
        assert "bob" not in nsd.broker.topics

    def test_an_identity_of_a_user_belongs_to_the_user(self) -> None:
        nsd = self.nsd("optional")
        client = nsd.connect("nsd")
        assert self.say(client, nsd, with_password(wire.open_("ann"), "other")) == SUCCESS
        assert self.say(client, nsd, wire.get("bob")) == WRONG
        assert self.say(client, nsd, wire.open_("desk")) == SUCCESS
        other = nsd.connect("nsd")
        assert self.say(other, nsd, wire.open_("desk")) == SUCCESS
        for line in (
            wire.get("ann"),
            wire.publish("ann", "x"),
            wire.subscribe("ann", "desk"),
            wire.open_("ann"),
        ):
            assert self.say(other, nsd, line) == WRONG

    def test_publishes_of_a_known_form_need_the_password_too(self) -> None:
        for mode in ("optional", "required"):
            nsd = self.nsd(mode)
            bob, eve = nsd.connect("nsd"), nsd.connect("nsd")
            self.say(bob, nsd, with_password(wire.open_("bob")))
            for _ in range(3):
                assert self.say(bob, nsd, wire.publish("bob", "hello") * 2) == SUCCESS * 2
                assert self.say(eve, nsd, wire.publish("bob", "forged") * 2) == WRONG * 2
            assert nsd.broker.counters.refusals == {("nsd", "wrong-password"): 6}
            # A line of the same read may prove the identity.
            lines = with_password(wire.open_("ann"), "other") + wire.publish("ann", "x") * 2
            assert self.say(eve, nsd, lines) == SUCCESS * 3
            assert wire.bodies(self.say(bob, nsd, wire.get("bob"))) == ["hello"] * 6

    def test_other_identities_belong_to_their_first_subscriber(self) -> None:
        store = MemoryStore(1000, 10**6)
        for _ in range(2):
            nsd = self.nsd(store=store)
            bob, ann = nsd.connect("nsd"), nsd.connect("nsd")
            assert self.say(bob, nsd, with_password(wire.open_("bob"))) == SUCCESS
            assert self.say(ann, nsd, with_password(wire.open_("ann"), "other")) == SUCCESS
            for line in (
                wire.subscribe("desk", "bob"),
                wire.open_("desk"),
                wire.publish("desk", "x"),
            ):
                assert self.say(bob, nsd, line) == SUCCESS
            for line in (
                wire.get("desk"),
                wire.subscribe("desk", "ann"),
                wire.unsubscribe("desk", "bob"),
                wire.unsubscribe("desk", "desk"),
            ):
                assert self.say(ann, nsd, line) == WRONG
            # Its channel belongs to no user.
            for line in (
                wire.open_("desk"),
                wire.publish("desk", "y"),
                wire.subscribe("ann", "desk"),
            ):
                assert self.say(ann, nsd, line) == SUCCESS
            assert wire.bodies(self.say(bob, nsd, wire.get("desk")))[-2:] == ["x", "y"]
            bob.stream.lose()
            ann.stream.lose()

    def test_an_identity_that_is_opened_first_is_shared(self) -> None:
        nsd = self.nsd()
        bob, ann = nsd.connect("nsd"), nsd.connect("nsd")
        self.say(bob, nsd, with_password(wire.open_("bob")))
        self.say(ann, nsd, with_password(wire.open_("ann"), "other"))
        assert self.say(bob, nsd, wire.open_("desk") + wire.subscribe("desk", "bob")) == SUCCESS * 2
        assert (
            self.say(ann, nsd, wire.get("desk") + wire.subscribe("desk", "ann"))
            == NOTHING + SUCCESS
        )

    def test_requests_wait_in_order_for_the_verification(self) -> None:
        nsd = self.nsd()
        client = nsd.connect("nsd")
        client.stream.feed(
            with_password(wire.open_("bob")) + wire.publish("bob", "1") + wire.publish("bob", "2")
        )
        client.stream.feed(wire.get("bob"))
        assert client.take() == b""
        assert client.stream.paused
        nsd.pump(5)
        first, second, third, messages = client.take().splitlines(keepends=True)
        assert [first, second, third] == [SUCCESS] * 3
        assert wire.bodies(messages) == ["1", "2"]

    def test_a_client_that_closes_its_half_gets_its_responses(self) -> None:
        nsd = self.nsd()
        client = nsd.connect("nsd")
        client.stream.feed(with_password(wire.open_("bob")) + wire.publish("bob", "1"))
        client.protocol.readConnectionLost()
        nsd.pump(5)
        assert client.take() == SUCCESS * 2
        assert client.closed

    def test_publishes_that_repeat_the_password_are_handled_alike(self) -> None:
        nsd = self.nsd()
        client = nsd.connect("nsd")
        lines = [with_password(wire.publish("bob", str(n))) for n in range(6)]
        assert (
            self.say(client, nsd, with_password(wire.open_("bob")) + b"".join(lines)) == SUCCESS * 7
        )
        assert "sesame" not in repr(vars(client.protocol))
        assert nsd.broker.passwords.verified == 1

    def test_the_password_is_not_stored_or_shown(self) -> None:
        nsd = self.nsd(events=True)
        nsd.start()
        lines = logged(self)
        client = nsd.connect("nsd")
        self.say(client, nsd, with_password(wire.open_("bob")))
        self.say(client, nsd, with_password(wire.publish("bob", "text")))
        self.say(client, nsd, with_password(wire.open_("bob"), "hunter2"))
        malformed = with_password(wire.open_("bob"), "hunter2").replace(b"OpenRequest", b"Nonsense")
        self.say(client, nsd, malformed)
        self.say(client, nsd, malformed[:-3] + b"\n")
        self.say(client, nsd, with_password(wire.open_("bob"), ["hunter2"]))
        nsd.pump(5)
        page = self.successResultOf(nsd.store.read(0, None, 10**6))
        shown = b"".join(one for batch in page.batches for one in batch.payloads())
        assert b"malformed" in shown
        for secret in ("hunter2", "sesame"):
            assert secret.encode() not in shown
            assert secret not in "".join(lines)
        assert b"aHVudGVyMg" not in shown

    def test_a_password_that_is_no_text_is_an_invalid_request(self) -> None:
        nsd = self.nsd()
        client = nsd.connect("nsd")
        assert b"INVALID REQUEST" in self.say(client, nsd, with_password(wire.open_("bob"), 7))

    def test_by_default_the_field_is_ignored(self) -> None:
        nsd = Nsd()
        client = nsd.connect("nsd")
        assert self.say(client, nsd, with_password(wire.open_("bob"), 7)) == SUCCESS

    def test_a_busy_broker_says_so(self) -> None:
        nsd = self.nsd()
        nsd.broker.passwords.stop()
        client = nsd.connect("nsd")
        assert self.say(client, nsd, with_password(wire.get("bob"))) == wire.error("BROKER BUSY")
        assert self.say(client, nsd, with_password(wire.get("bob"), "x")) != NOTHING

    def test_a_client_that_leaves_costs_no_verification(self) -> None:
        nsd = self.nsd()
        client = nsd.connect("nsd")
        client.stream.feed(with_password(wire.get("bob")))
        client.stream.lose()
        nsd.pump(5)
        assert nsd.broker.passwords.verified == 0

    def test_without_users_the_listener_is_not_made(self) -> None:
        with pytest.raises(ConfigurationError, match="set password-file"):
            Nsd(identity_password="optional")
