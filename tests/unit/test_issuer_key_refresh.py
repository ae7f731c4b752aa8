"""Keys of issuers that are fetched: the schedule, rotation, failures, and reloads."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.issuer_key_refresh import EARLY_SECONDS, RETRY_SECONDS
from pubsub.broker.credentials.master_secrets import KeySource, MasterSecret
from pubsub.errors import BadToken
from pubsub.management.status import status_of
from tests.unit.fakes import START
from tests.unit.fast_wire import create, subscribe
from tests.unit.streams import House, logged
from tests.unit.tokens import token

URL = "https://login.example.com/keys"
REFRESH = 300


class Issuer:
    """An issuer whose set of keys the broker fetches; the test ends each fetch."""

    def __init__(self) -> None:
        self.private: dict[str, Ed25519PrivateKey] = {}
        self.asked: list[KeySource] = []
        self.pending: list[Deferred[list[MasterSecret]]] = []
        self.cancelled = 0

    def fetch(self, source: KeySource) -> Deferred[list[MasterSecret]]:
        """Take part in a broker as its fetcher."""
        self.asked.append(source)
        pending: Deferred[list[MasterSecret]] = Deferred(self._cancel)
        self.pending.append(pending)
        return pending

    def _cancel(self, pending: Deferred[list[MasterSecret]]) -> None:
        self.pending.remove(pending)
        self.cancelled += 1

    def publish(self, *kids: str) -> None:
        """End the fetch with these keys."""
        keys = [
            MasterSecret(f"corp/{kid}", "EdDSA", self.key(kid).public_key(), kid=kid)
            for kid in kids
        ]
        self.pending.pop(0).callback(keys)

    def fail(self, reason: str = "away") -> None:
        """End the fetch without keys."""
        self.pending.pop(0).errback(OSError(reason))

    def key(self, kid: str) -> Ed25519PrivateKey:
        return self.private.setdefault(kid, Ed25519PrivateKey.generate())

    def token(self, kid: str, **claims: object) -> bytes:
        """Return a token that the key ``kid`` has signed."""
        return token(claims, self.key(kid).sign, "EdDSA", kid=kid)


class RefreshCase(SynchronousTestCase):
    """A broker with a fast listener and one issuer."""

    def setUp(self) -> None:
        self.issuer = Issuer()
        self.lines = logged(self)
        self.house = self.make({"corp": self.table()})
        self.house.broker.startService()
        self.addCleanup(self.house.broker.issuer_key_refresh.stop)

    def table(self, **settings: object) -> dict[str, object]:
        given = {"jwks-url": URL, "jwks-refresh": REFRESH, **settings}
        return {name.replace("_", "-"): value for name, value in given.items()}

    def make(self, keys: dict[str, Any]) -> House:
        return House({"fast": {}}, top={"keys": keys}, fetch_keys=self.issuer.fetch)

    def accepts(self, raw: bytes) -> bool:
        try:
            self.house.broker.tokens.check(raw, START)
        except BadToken:
            return False
        return True

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = self.house.broker.statistics.snapshot()["issuers"]["corp"]
        return found

    def reload(self, **keys: dict[str, object]) -> None:
        self.house.document["keys"] = keys
        self.house.reloader().reload()


class ScheduleTests(RefreshCase):
    """When keys are fetched"""

    def test_keys_are_fetched_at_the_start_and_every_refresh(self) -> None:
        assert [source.url for source in self.issuer.asked] == [URL]
        assert self.figures() == {"keys": 0, "age": None, "fetches": 0, "failures": 0}
        self.issuer.publish("a", "b")
        assert self.figures() == {"keys": 2, "age": 0, "fetches": 1, "failures": 0}
        self.house.advance(REFRESH - 1)
        assert len(self.issuer.asked) == 1
        assert self.figures()["age"] == REFRESH - 1
        self.house.advance(1)
        assert len(self.issuer.asked) == 2
        # The next is due only after this one has ended.
        self.house.advance(REFRESH * 2)
        assert len(self.issuer.asked) == 2

    def test_tokens_are_refused_until_there_are_keys(self) -> None:
        raw = self.issuer.token("a")
        assert not self.accepts(raw)
        self.issuer.publish("a")
        assert self.accepts(raw)

    def test_a_failure_is_retried_sooner_and_keeps_the_keys(self) -> None:
        self.issuer.fail("no route\nto host")
        assert any("no route\\nto host; its tokens are refused" in line for line in self.lines)
        self.house.advance(RETRY_SECONDS)
        self.issuer.publish("a")
        self.house.advance(REFRESH)
        self.issuer.fail()
        assert any("the keys that were fetched before stay" in line for line in self.lines)
        assert self.accepts(self.issuer.token("a"))
        assert self.figures() == {"keys": 1, "age": REFRESH, "fetches": 3, "failures": 2}
        self.house.advance(RETRY_SECONDS)
        assert len(self.issuer.asked) == 4

    def test_the_broker_is_ready_without_keys_and_says_so(self) -> None:
        assert self.attention() == []
        self.issuer.fail()
        assert self.attention() == [
            "the keys of the issuer corp could not be fetched: its tokens are refused"
        ]
        self.house.advance(RETRY_SECONDS)
        self.issuer.publish("a")
        assert self.attention() == []

    def attention(self) -> list[str]:
        broker = self.house.broker
        status = status_of(broker.statistics, broker.readiness)
        assert broker.readiness.started
        # The clock of a test is late.
        return [one["what"] for one in status["attention"] if "issuer" in one["what"]]

    def test_a_stop_ends_the_fetch(self) -> None:
        self.house.broker.issuer_key_refresh.stop()
        assert self.issuer.cancelled == 1
        self.house.advance(REFRESH * 2)
        assert len(self.issuer.asked) == 1


class UnknownKeyTests(RefreshCase):
    """Tokens whose key is not known"""

    def test_one_causes_a_fetch_and_is_refused_meanwhile(self) -> None:
        self.issuer.publish("a")
        self.house.advance(EARLY_SECONDS)
        raw = self.issuer.token("new")
        assert not self.accepts(raw)
        # Nothing was done while the token was checked.
        assert len(self.issuer.asked) == 1
        self.house.turn()
        assert len(self.issuer.asked) == 2
        self.issuer.publish("a", "new")
        assert self.accepts(raw)

    def test_many_cause_one_fetch_in_a_while(self) -> None:
        self.issuer.publish("a")
        for number in range(50):
            assert not self.accepts(self.issuer.token(f"at once {number}"))
            self.house.turn()
        assert len(self.issuer.asked) == 1
        for number in range(5):
            self.house.advance(EARLY_SECONDS)
            for other in range(20):
                assert not self.accepts(self.issuer.token(f"{number} {other}"))
                self.house.turn()
            assert len(self.issuer.asked) == number + 2
            self.issuer.publish("a")

    def test_the_schedule_goes_on_after_it(self) -> None:
        self.issuer.publish("a")
        self.house.advance(EARLY_SECONDS)
        self.accepts(self.issuer.token("new"))
        self.house.turn()
        self.issuer.publish("a")
        self.house.advance(REFRESH - 1)
        assert len(self.issuer.asked) == 2
        self.house.advance(1)
        assert len(self.issuer.asked) == 3

    def test_other_refused_tokens_cause_none(self) -> None:
        self.issuer.publish("a")
        self.house.advance(EARLY_SECONDS)
        forged = token({}, Ed25519PrivateKey.generate().sign, "EdDSA", kid="a")
        for raw in (forged, token({}, kid="unknown"), token({}), b"eyJ"):
            assert not self.accepts(raw)
        self.house.turn()
        assert len(self.issuer.asked) == 1


class RotationTests(RefreshCase):
    """Keys that come and go"""

    def test_subscriptions_of_a_key_that_is_gone_end(self) -> None:
        self.issuer.publish("old", "new")
        claims = {"permissions": ["*"], "queue_key": "k"}
        old, new = (self.issuer.token(kid, **claims) for kid in ("old", "new"))
        clients = [self.house.connect("fast") for _ in range(2)]
        clients[0].send(create(old) + subscribe(old))
        clients[1].send(subscribe(new))
        self.house.pump()
        assert self.house.broker.router.subscriptions == 2
        self.house.advance(REFRESH)
        self.issuer.publish("new")
        self.house.pump()
        assert self.house.broker.router.subscriptions == 1
        assert not self.accepts(old)
        assert self.accepts(new)

    def test_equal_keys_change_nothing(self) -> None:
        self.issuer.publish("a", "b")
        raw = self.issuer.token("a")
        assert self.accepts(raw)
        self.house.advance(REFRESH)
        self.issuer.publish("b", "a")
        assert self.house.broker.tokens.known(raw)

    def test_no_key_takes_the_id_of_a_configured_secret(self) -> None:
        self.issuer.publish("a")
        own = MasterSecret("corp/a", "HS256", b"k" * 32)
        ring = self.house.broker.tokens.ring
        both = type(ring)([own], sources=ring.sources, fetched=ring.fetched)
        assert list(both) == [own]

    def test_the_audit_log_has_changes(self) -> None:
        found: list[tuple[str, dict[str, Any]]] = []
        self.house.audit.watcher = lambda event, fields: found.append((event, dict(fields)))
        self.issuer.publish("a")
        self.house.advance(REFRESH)
        self.issuer.publish("b")
        self.house.pump()
        changes = {"kept": 0, "removed": 0, "issuer": "corp"}
        assert found == [
            ("keys", {"secrets_added": ["corp/a"], "secrets_removed": [], **changes}),
            ("keys", {"secrets_added": ["corp/b"], "secrets_removed": ["corp/a"], **changes}),
        ]


class ReloadTests(RefreshCase):
    """Issuers that a reload adds, changes and removes"""

    def test_an_issuer_is_added_and_removed(self) -> None:
        self.issuer.publish("a")
        self.reload(corp=self.table(), other=self.table(jwks_url=f"{URL}/other"))
        assert [source.id for source in self.issuer.asked] == ["corp", "other"]
        # Known keys stay meanwhile.
        assert self.accepts(self.issuer.token("a"))
        self.reload(other=self.table(jwks_url=f"{URL}/other"))
        assert not self.accepts(self.issuer.token("a"))
        self.reload()
        assert self.issuer.cancelled == 1
        assert not self.house.broker.tokens.ring.has_issuers
        self.house.advance(REFRESH * 2)
        assert len(self.issuer.asked) == 2

    def test_another_url_needs_other_keys(self) -> None:
        self.issuer.publish("a")
        self.reload(corp=self.table(jwks_url="https://login.example.org"))
        assert not self.accepts(self.issuer.token("a"))
        assert len(self.issuer.asked) == 2

    def test_other_settings_need_none(self) -> None:
        self.issuer.publish("a")
        self.reload(corp=self.table(issuer="https://a", jwks_refresh=10))
        assert len(self.issuer.asked) == 1
        assert not self.accepts(self.issuer.token("a"))
        assert self.accepts(self.issuer.token("a", iss="https://a"))
        self.house.advance(10)
        assert len(self.issuer.asked) == 2

    def test_a_reload_that_fails_changes_nothing(self) -> None:
        self.issuer.publish("a")
        self.house.document["listen"] = [{"protocol": "fast", "endpoint": "nonsense:1"}]
        self.reload(other=self.table())
        assert self.accepts(self.issuer.token("a"))
        self.house.advance(REFRESH)
        assert [source.id for source in self.issuer.asked] == ["corp", "corp"]

    def test_a_broker_without_a_fetcher_fetches_nothing(self) -> None:
        house = House({"fast": {}}, top={"keys": {"corp": {"jwks-url": URL}}})
        house.broker.startService()
        assert house.broker.statistics.snapshot()["issuers"]["corp"]["fetches"] == 0
