"""Reloading: secrets and rules change under live clients, and an error changes nothing."""

from __future__ import annotations

import json
import signal
from typing import Any
from unittest import mock

import pytest
from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import provider

from pubsub.errors import BadToken
from pubsub.server import reload
from pubsub.server.configuration_changes import hidden_changes
from pubsub.server.early_reload import EarlyReload
from pubsub.server.reload import LiveConfiguration
from pubsub.tuning import TUNED
from tests.unit.cafe_wire import (
    GAP,
    error,
    frames,
    handshaken,
    hs_pub,
    hs_sub,
    payloads,
    publish,
    resume,
    subscribe,
)
from tests.unit.fakes import START, scratch
from tests.unit.signalled import Signalled
from tests.unit.streams import Client, House, logged
from tests.unit.tokens import KEY, OTHER_KEY, PUBLIC_PEM, token, with_hmac


def received(client: Client) -> list[tuple[int, bytes] | int]:
    """Return the received frames: messages as channel and payload, errors as their code."""
    return [
        (payload[0], payload[9:]) if opcode == 0x13 else payload[0]
        for opcode, payload in frames(client.take())
    ]


class ReloadCase(SynchronousTestCase):
    """A house with a cafe listener, two secrets and an audit log."""

    def setUp(self) -> None:
        self.directory = scratch(self)
        self.first = self.secret("first", KEY)
        self.second = self.secret("second", OTHER_KEY)
        top = {"audit-log": str(self.directory / "audit"), "keys": {"first": self.first}}
        self.house = House({"cafe": {}}, top=top)
        self.broker = self.house.broker
        self.addCleanup(self.house.audit.close)
        self.reactor = Signalled()
        self.reloader = self.house.reloader(self.reactor)
        self.lines = logged(self)

    def secret(self, name: str, key: bytes) -> dict[str, str]:
        path = self.directory / name
        path.write_bytes(key)
        path.chmod(0o600)
        return {"secret-file": str(path)}

    def reload(self, keys: object = None, **settings: object) -> None:
        """Reload a file with these secrets and these settings of the cafe listener."""
        self.house.document["listen"] = [
            {"protocol": "cafe", **{k.replace("_", "-"): v for k, v in settings.items()}}
        ]
        if keys is not None:
            self.house.document["keys"] = keys
        self.reloader.reload()

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.directory / "audit").read_text().splitlines()]

    def client(self, handshake: bytes) -> Client:
        return handshaken(self.house, handshake)


class SecretTests(ReloadCase):
    """The ring of secrets"""

    def holds(self, key: bytes) -> bool:
        try:
            self.broker.tokens.check(token({}, with_hmac(key)), START)
        except BadToken:
            return False
        return True

    def test_new_secrets_count_and_removed_ones_do_not(self) -> None:
        assert [self.holds(key) for key in (KEY, OTHER_KEY)] == [True, False]
        self.reload({"first": self.first, "second": self.second})
        assert [self.holds(key) for key in (KEY, OTHER_KEY)] == [True, True]
        self.reload({"second": self.second})
        assert [self.holds(key) for key in (KEY, OTHER_KEY)] == [False, True]
        self.reload({})
        assert [self.holds(key) for key in (KEY, OTHER_KEY)] == [False, False]
        assert [(r["secrets_added"], r["secrets_removed"]) for r in self.audited()] == [
            (["second"], []),
            ([], ["first"]),
            ([], ["second"]),
        ]

    def test_the_files_are_read_again(self) -> None:
        (self.directory / "first").write_bytes(OTHER_KEY)
        self.reload()
        assert [self.holds(key) for key in (KEY, OTHER_KEY)] == [False, True]

    def test_cached_tokens_are_verified_again(self) -> None:
        raw = token({})
        found = self.broker.tokens.check(raw, START)
        self.reload({"second": self.second})
        assert not self.broker.tokens.valid(found, START)
        assert not self.broker.tokens.known(raw)
        with pytest.raises(BadToken):
            self.broker.tokens.check(raw, START)

    def test_public_keys_are_reloaded(self) -> None:
        path = self.directory / "public"
        path.write_bytes(PUBLIC_PEM)
        self.reload({"public": {"public-key-file": str(path)}})
        assert [secret.algorithm for secret in self.broker.tokens.ring] == ["EdDSA"]

    def test_no_secret_is_audited_or_logged(self) -> None:
        hidden = self.secret("hidden", b"very hidden " * 3)
        self.reload({"hidden": hidden})
        self.reload({"hidden": self.secret("hidden", b"weak hidden")})
        for text in (json.dumps(self.audited()), *self.lines):
            assert "very hidden" not in text
            assert "weak hidden" not in text


class RuleTests(ReloadCase):
    """Rules, rates and live subscriptions"""

    def test_a_subscription_that_is_closed_ends_with_an_error(self) -> None:
        bob, alice = self.client(hs_sub(b"\x01\x02", b"bob")), self.client(hs_pub(1))
        alice.send(publish(1, b"before"))
        self.reload(allow_subscribe="cafe/2")
        alice.send(publish(1, b"after") + publish(2, b"two"))
        assert received(bob) == [(1, b"before"), 0x08, (2, b"two")]
        assert not bob.closed
        assert self.audited()[-1] == {
            "time": self.audited()[-1]["time"],
            "event": "reload",
            "secrets_added": [],
            "secrets_removed": [],
            "kept": 1,
            "removed": 1,
        }
        assert "reloaded: subscriptions kept: 1, ended: 1" in self.lines

    def test_every_ended_subscription_has_its_own_error(self) -> None:
        clients = [self.client(hs_sub(b"\x01\x02\x03")) for _ in range(3)]
        self.reload(allow_subscribe="cafe/3")
        assert [client.take() for client in clients] == [error(0x08) * 2] * 3
        assert self.broker.counters.refusals == {("cafe", "revoked"): 6}
        assert (self.audited()[-1]["kept"], self.audited()[-1]["removed"]) == (3, 6)

    def test_messages_of_the_present_tick_precede_the_error(self) -> None:
        bob, alice = self.client(hs_sub(b"\x01")), self.client(hs_pub(1))
        alice.stream.feed(publish(1, b"before"))
        self.reload(allow_subscribe="")
        assert received(bob) == [(1, b"before"), 0x08]

    def test_a_resumed_session_is_without_closed_topics(self) -> None:
        bob, alice = self.client(hs_sub(b"\x01\x02", b"bob")), self.client(hs_pub(1))
        (session,) = (s for s in self.broker.sessions._sessions.values() if s.client == b"bob")
        bob.stream.lose()
        alice.send(publish(1, b"one") + publish(2, b"two"))
        self.reload(allow_subscribe="cafe/2")
        again = self.house.connect("cafe")
        again.send(hs_sub(b"", resume(b"bob", session.id)))
        assert len(again.take()) == 16
        alice.send(publish(1, b"one") + publish(2, b"two again"))
        self.house.clock.advance(GAP)
        assert payloads(again.take()) == [b"two", b"two again"]

    def test_connected_publishers_are_refused(self) -> None:
        alice = self.client(hs_pub(1))
        self.reload(allow_publish="cafe/2")
        alice.send(publish(1, b"x") + publish(2, b"x"))
        assert alice.take() == error(0x08)

    def test_an_opened_topic_is_open_at_once(self) -> None:
        bob = self.client(hs_sub(b"\x01"))
        self.reload(allow_subscribe="")
        self.reload(allow_subscribe="*")
        bob.take()
        bob.send(subscribe(1))
        assert bob.take() == b""
        self.client(hs_pub(1)).send(publish(1, b"x"))
        assert payloads(bob.take()) == [b"x"]

    def test_new_rates_apply_to_new_connections(self) -> None:
        before = self.client(hs_pub(1))
        self.reload(rate_messages=2)
        after = self.client(hs_pub(1))
        for client, answer in ((before, b""), (after, error(0x04))):
            client.send(publish(1, b"1", b"2", b"3"))
            assert client.take() == answer

    def test_the_log_has_every_change(self) -> None:
        events: list[LogEvent] = []

        @provider(ILogObserver)
        def observe(event: LogEvent) -> None:
            events.append(event)

        globalLogPublisher.addObserver(observe)
        self.addCleanup(globalLogPublisher.removeObserver, observe)
        self.house.document["max-topics"] = 700
        self.house.document["listen"] = [{"protocol": "cafe", "port": 7999}]
        self.reloader.reload()
        found = {event["log_format"]: event for event in events}
        changes = [found[text] for text in found if text.startswith("reload: ")]
        assert len(changes) == 3
        assert all(event["unlimited"] for event in changes)


class ErrorTests(ReloadCase):
    """Invalid configurations"""

    def test_an_error_changes_nothing(self) -> None:
        bob = self.client(hs_sub(b"\x01"))
        ring, access = self.broker.tokens.ring, self.house.listeners["cafe"].access
        weak = self.secret("weak", b"weak")
        missing = {"secret-file": str(self.directory / "missing")}
        wrong: list[object] = [{"weak": weak}, {"first": missing}, {"first": {}}, {"x": 1}, "keys"]
        for keys in wrong:
            self.reload(keys, allow_subscribe="")
        self.reload({}, allow_subscribe=7)
        self.reload({}, slow_consumer="wait", allow_subscribe="")
        assert self.broker.tokens.ring is ring
        assert self.house.listeners["cafe"].access is access
        assert bob.take() == b""
        assert self.audited() == []

    def test_an_error_is_one_line(self) -> None:
        self.reload({}, max_body=1)
        (line,) = self.lines
        assert line.startswith("reload failed, nothing is changed: [[listen]] max-body: ")

    def test_the_next_reload_takes_effect(self) -> None:
        self.reload({"first": {}})
        self.reload({"second": self.second})
        assert [secret.id for secret in self.broker.tokens.ring] == ["second"]

    def test_credentials_that_need_a_restart_are_reported(self) -> None:
        self.reload()
        running = self.house.read()
        self.house.document["backplane"] = "nats://u:one@localhost"
        with_first = self.house.read()
        self.house.document["backplane"] = "nats://u:two@localhost"
        assert hidden_changes(running, with_first) == []
        assert hidden_changes(with_first, self.house.read()) == ["backplane"]
        live = LiveConfiguration(self.broker, with_first, self.house.clock, TUNED)
        live.apply(self.house.read())
        assert "reload: the credentials in backplane stay until a restart" in self.lines
        assert not any("two" in line for line in self.lines)


class SignalTests(ReloadCase):
    """SIGHUP"""

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(signal.signal, signal.SIGHUP, signal.getsignal(signal.SIGHUP))

    def test_the_signal_reloads_in_the_reactors_own_time(self) -> None:
        self.reloader.startService()
        self.house.document["keys"] = {"second": self.second}
        signal.raise_signal(signal.SIGHUP)
        assert [secret.id for secret in self.broker.tokens.ring] == ["first"]
        (call,) = self.reactor.calls
        call()
        assert [secret.id for secret in self.broker.tokens.ring] == ["second"]
        self.reloader.stopService()

    def test_a_signal_before_the_start_reloads_after_it(self) -> None:
        early = EarlyReload()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        early.watch()
        signal.raise_signal(signal.SIGHUP)
        self.enterContext(mock.patch.object(reload, "early_reload", early))
        self.house.document["keys"] = {"second": self.second}
        self.reloader.startService()
        (call,) = self.reactor.calls
        call()
        assert [secret.id for secret in self.broker.tokens.ring] == ["second"]
        self.reloader.stopService()

    def test_while_stopping_the_signal_does_nothing(self) -> None:
        self.reloader.startService()
        self.reloader.stopService()
        signal.raise_signal(signal.SIGHUP)
        assert self.reactor.calls == []


class AccessTableTests(ReloadCase):
    """[[access]]"""

    def table(self, *rules: dict[str, str]) -> None:
        self.house.document["access"] = list(rules)
        self.reload()

    def test_subscriptions_that_are_no_longer_allowed_end(self) -> None:
        reader = self.client(hs_sub(b"\x01\x02"))
        self.table({"deny": "subscribe", "topics": "cafe/1"}, {"allow": "*"})
        assert reader.take() == error(8)
        assert "reloaded: subscriptions kept: 1, ended: 1" in self.lines
        self.table({"deny": "subscribe", "network": "192.0.2.0/24"}, {"allow": "*"})
        assert reader.take() == error(8)
        del self.house.document["access"]
        self.reload()
        assert self.broker.listeners[0].access.may_subscribe("cafe/1")

    def test_a_listener_that_the_file_no_longer_has_follows_the_rules_too(self) -> None:
        self.house.document["access"] = [{"allow": "subscribe"}]
        self.house.document["listen"] = [{"protocol": "cafe", "port": 7999}]
        self.reloader.reload()
        access = self.broker.listeners[0].access
        assert access.may_subscribe("cafe/1")
        assert not access.may("publish", "cafe/1")

    def test_a_mistake_changes_nothing(self) -> None:
        self.table({"allow": "everything"})
        assert self.broker.listeners[0].access.may("publish", "cafe/1")
        assert any("[[access]] 1 allow: expected publish" in line for line in self.lines)
