"""``SecretComparison``: brokers at one bucket find out that their master secrets differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.memory_engine.memory_state import MemoryBucket, MemoryState
from pubsub.backplane.state.secret_comparison import (
    PREFIX,
    SecretComparison,
    decode_mark,
    mark_of,
)
from pubsub.broker.credentials.master_secrets import KeySource, MasterSecret, SecretRing
from tests.unit.fakes import make_broker
from tests.unit.streams import logged

ONE = MasterSecret("main", "HS256", b"1" * 32)
OTHER = replace(ONE, key=b"2" * 32)
LOCK = MasterSecret("login", "EdDSA", Ed25519PrivateKey.from_private_bytes(b"3" * 32).public_key())
NEVER = 0.0


class MarkTests(SynchronousTestCase):
    """mark_of"""

    def mark(self, *secrets: MasterSecret, now: float = NEVER, **more: Any) -> str:
        return mark_of(SecretRing(secrets, **more), now)

    def test_the_order_does_not_matter(self) -> None:
        assert self.mark(ONE, LOCK) == self.mark(LOCK, ONE)

    def test_whatever_makes_that_a_token_is_refused_matters(self) -> None:
        others = [
            self.mark(),
            self.mark(OTHER),
            self.mark(LOCK),
            self.mark(ONE, LOCK),
            self.mark(replace(ONE, algorithm="HS512")),
            self.mark(replace(ONE, id="second")),
            self.mark(replace(ONE, kid="second")),
        ]
        assert self.mark(ONE) not in others

    def test_secrets_that_have_ended_do_not_matter(self) -> None:
        ended = replace(LOCK, ends=10.0)
        assert self.mark(ONE, ended, now=10.0) == self.mark(ONE)
        assert self.mark(ONE, ended, now=9.0) != self.mark(ONE)

    def test_keys_that_are_fetched_do_not_matter(self) -> None:
        source = KeySource("login", "https://login.example.com/keys")
        fetched = {"login": (replace(LOCK, id="login/1"),)}
        found = self.mark(ONE, sources=[source], fetched=fetched)
        assert found == self.mark(ONE, sources=[source]) == self.mark(ONE)

    def test_it_is_too_short_to_confirm_a_guess(self) -> None:
        assert len(self.mark(ONE)) == 4


class One:
    """A broker and its comparison."""

    def __init__(self, case: ComparisonTests, name: str, *secrets: MasterSecret) -> None:
        self.broker = make_broker(clock=case.clock, ring=SecretRing(secrets))
        self.broker.statistics.name = name
        self.state = MemoryState(case.bucket, lambda call: case.clock.callLater(0, call))
        self.compared = SecretComparison(self.broker, self.state, case.clock, case.clock.seconds)
        self.compared.startService()

    @property
    def others(self) -> list[str]:
        found: list[str] = self.compared.figures()["other_secrets"]
        return found


class ComparisonTests(SynchronousTestCase):
    """Brokers at one bucket"""

    def setUp(self) -> None:
        self.bucket = MemoryBucket()
        self.clock = Clock()
        self.clock.advance(1000)
        self.lines = logged(self)

    def wait(self, seconds: int = 90) -> None:
        self.clock.pump([1.0] * seconds)

    def said(self) -> list[str]:
        return [line for line in self.lines if line.startswith("backplane: ")]

    def test_the_same_secrets(self) -> None:
        brokers = [One(self, name, ONE, LOCK) for name in "abc"]
        self.wait()
        assert [one.others for one in brokers] == [[], [], []]
        assert self.said() == []

    def test_a_broker_with_another_one(self) -> None:
        a, b, c = One(self, "a", ONE), One(self, "b", ONE), One(self, "c", OTHER)
        self.wait()
        assert [one.others for one in (a, b, c)] == [["c"], ["c"], ["a", "b"]]
        assert len(self.said()) == 3
        assert "are at a, b: " in self.said()[2]
        self.wait(600)
        assert len(self.said()) == 3
        c.broker.tokens.replace(SecretRing([ONE]))
        self.wait(30)
        assert [one.others for one in (a, b, c)] == [[], [], []]
        assert self.said()[3:] == ["backplane: the master secrets are the same at all brokers"] * 3

    def test_brokers_that_are_reloaded_one_after_the_other(self) -> None:
        a, b = One(self, "a", ONE), One(self, "b", ONE)
        self.wait()
        a.broker.tokens.replace(SecretRing([ONE, LOCK]))
        self.wait(40)
        b.broker.tokens.replace(SecretRing([ONE, LOCK]))
        self.wait()
        assert self.said() == []

    def test_a_broker_that_stops_counts_no_more(self) -> None:
        a, b = One(self, "a", ONE), One(self, "b", OTHER)
        self.wait()
        b.compared.stopService()
        self.wait(12)
        assert a.others == []
        self.wait()
        assert a.others == []

    def test_a_broker_that_is_killed_counts_for_a_while(self) -> None:
        a, b = One(self, "a", ONE), One(self, "b", OTHER)
        self.wait()
        self.bucket.states.remove(b.state)
        b.compared._ticker.stop()
        self.wait(60)
        assert a.others == ["b"]
        self.wait(60)
        assert a.others == []

    def test_another_broker_of_the_same_name(self) -> None:
        a, b = One(self, "a", ONE), One(self, "b", ONE)
        twin = One(self, "a", ONE)
        self.wait(600)
        assert [one.compared.figures()["namesake"] for one in (a, b, twin)] == [True, False, True]
        assert [line.partition(" too: ")[0] for line in self.said()] == [
            "backplane: another broker has the name a"
        ] * 2
        a.state.leave()
        a.state.come_back()
        self.wait()
        assert len(self.said()) == 2
        twin.compared.stopService()
        self.wait()
        assert not a.compared.figures()["namesake"]
        assert self.said()[2:] == ["backplane: no other broker has the name a any more"]

    def test_a_broker_that_was_killed_and_started_again_is_not_another_one(self) -> None:
        before = One(self, "a", ONE)
        self.wait()
        self.bucket.states.remove(before.state)
        before.compared._ticker.stop()
        after = One(self, "a", ONE)
        self.wait(600)
        assert not after.compared.figures()["namesake"]
        assert self.said() == []

    def test_the_engine_goes_away_and_loses_everything(self) -> None:
        a, b = One(self, "a", ONE), One(self, "b", OTHER)
        self.wait()
        a.state.leave()
        b.state.leave()
        self.wait(300)
        assert a.others == ["b"]
        self.bucket.clear()
        a.broker.tokens.replace(SecretRing([OTHER]))
        a.state.come_back()
        b.state.come_back()
        self.wait()
        assert (a.others, b.others) == ([], [])
        assert len([key for key in self.bucket.entries if key.startswith(PREFIX)]) == 2

    def test_values_of_other_versions_are_ignored(self) -> None:
        a = One(self, "a", ONE)
        for value in (b"", b"[]", b"{", b'{"v":2,"name":"b","mark":"0000"}', b'{"v":1}'):
            assert decode_mark(value) is None
            self.bucket.write(PREFIX + "x", value)
        self.wait()
        assert a.others == []

    def test_nothing_of_the_secrets_is_in_the_bucket(self) -> None:
        One(self, "a", ONE, LOCK)
        self.wait()
        (found,) = (e.value for key, e in self.bucket.entries.items() if key.startswith(PREFIX))
        value = decode_mark(found)
        assert value is not None
        assert (value.name, len(value.mark)) == ("a", 4)
        assert len(found) < 60
        assert self.bucket.seconds
        assert all(self.bucket.seconds.values())
