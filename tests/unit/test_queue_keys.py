"""Queue keys: closing a topic, rotating its key, and the subscriptions that stay."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.audit_log.audit import AuditLog
from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.broker.credentials.queue_keys import QueueKeys
from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.delivery.slow_policy import SlowPolicy
from pubsub.broker.routing import sliced_routing
from pubsub.broker.topic_space.topics import KeyChange, Topic
from pubsub.errors import HistoryUnavailable, NotAuthorized, WrongKey
from pubsub.kernel import Columns
from tests.unit.fakes import (
    START,
    Lines,
    Reader,
    Ruled,
    Transport,
    clock_at,
    make_broker,
    make_listener,
    scratch,
)
from tests.unit.tokens import hmac_secret, token


class KeyHolder(Transport):
    """A subscriber that has presented a key and stays as long as it is the topic's key."""

    def __init__(self, key: bytes) -> None:
        super().__init__()
        self.key = key
        self.asked: list[tuple[Topic, KeyChange | None]] = []

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        self.asked.append((topic, change))
        return change is None or self.key == change.new


class KeyCase(SynchronousTestCase):
    """A broker with an audit log, and topics."""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.path = scratch(self) / "audit"
        self.audit = AuditLog(self.clock.seconds, str(self.path))
        self.addCleanup(self.audit.close)
        ring = SecretRing([hmac_secret()])
        self.broker = make_broker(self.clock, ring=ring, audit=self.audit)
        self.keys = self.broker.queue_keys
        self.topic = self.broker.topics.create("orders")

    def subscriber(self, key: bytes, topic: Topic | None = None) -> KeyHolder:
        holder = KeyHolder(key)
        reader = Reader(recheck=holder.recheck)
        traffic = self.broker.counters.traffic["toy"]
        box = Outbox(self.broker.cursors, holder, SlowPolicy(), reader, traffic)
        holder.outbox = box
        self.broker.router.subscribe(box, topic or self.topic, Lines())
        return holder

    def publish(self, payload: bytes) -> None:
        self.broker.dispatcher.publish(self.topic, Columns.of([payload]), b"", "toy")

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


class MatchTests(KeyCase):
    """matches"""

    def test_only_the_topics_own_key_matches(self) -> None:
        other = self.broker.topics.create("other")
        self.keys.close(self.topic, b"key", "ada", "client")
        self.keys.close(other, b"other key", "ada", "client")
        assert self.keys.matches(self.topic, b"key")
        for key in (b"", b"ke", b"key ", b"KEY", b"other key"):
            assert not self.keys.matches(self.topic, key)

    def test_nothing_matches_a_topic_without_a_key(self) -> None:
        for key in (b"", b"key"):
            assert not self.keys.matches(self.topic, key)
        assert self.topic not in self.keys

    def test_an_empty_key_opens_nothing(self) -> None:
        self.keys.close(self.topic, b"", "ada", "client")
        assert not self.keys.matches(self.topic, b"")

    def test_keys_are_compared_in_constant_time(self) -> None:
        self.keys.close(self.topic, b"key", "ada", "client")
        compare = patch.object(hmac, "compare_digest", wraps=hmac.compare_digest)
        for key in (b"key", b"not", b""):
            with compare as compared:
                self.keys.matches(self.topic, key)
            compared.assert_called_once_with(b"key", key)


class ChangeTests(KeyCase):
    """close, rotate and forget"""

    def test_closing_ends_the_subscriptions_without_the_key(self) -> None:
        holder, other = self.subscriber(b"key"), self.subscriber(b"other")
        self.keys.close(self.topic, b"key", "ada", "192.0.2.1:5")
        assert self.topic in self.keys
        self.publish(b"x")
        self.clock.advance(0)
        assert (holder.data, other.data) == (b"x\n", b"")
        assert holder.asked == other.asked == [(self.topic, KeyChange(None, b"key"))]
        assert self.audited() == [
            {
                "time": "2023-11-14T22:13:20.000+00:00",
                "event": "create",
                "topic": "orders",
                "subject": "ada",
                "client": "192.0.2.1:5",
                "kept": 1,
                "removed": 1,
            }
        ]

    def test_the_record_is_written_when_all_are_rechecked(self) -> None:
        self.patch(sliced_routing, "_FEW", 0)  # type: ignore[no-untyped-call]
        holder, other = self.subscriber(b"key"), self.subscriber(b"other")
        counts = self.keys.close(self.topic, b"key", "ada", "client")
        assert self.keys.matches(self.topic, b"key")
        self.assertNoResult(counts)  # type: ignore[no-untyped-call]
        assert self.audited() == []
        self.publish(b"x")
        self.clock.advance(0)
        assert self.successResultOf(counts) == (1, 1)
        assert (holder.data, other.data) == (b"x\n", b"")
        (record,) = self.audited()
        assert (record["event"], record["kept"], record["removed"]) == ("create", 1, 1)

    def test_a_rotation_counts_kept_and_ended_subscriptions(self) -> None:
        self.keys.close(self.topic, b"old", "ada", "client")
        holders = [self.subscriber(key) for key in (b"new", b"old", b"old", b"new", b"old")]
        elsewhere = self.subscriber(b"old", self.broker.topics.create("elsewhere"))
        counts = self.keys.rotate(self.topic, b"new", "ben", "client")
        assert self.successResultOf(counts) == (2, 3)
        assert self.keys.matches(self.topic, b"new")
        assert not self.keys.matches(self.topic, b"old")
        assert {change for holder in holders for _, change in holder.asked} == {
            KeyChange(b"old", b"new")
        }
        assert elsewhere.asked == []
        rotated = self.audited()[-1]
        assert rotated["event"] == "rotate"
        assert (rotated["subject"], rotated["kept"], rotated["removed"]) == ("ben", 2, 3)

    def test_messages_before_the_rotation_arrive(self) -> None:
        self.keys.close(self.topic, b"old", "ada", "client")
        holder = self.subscriber(b"old")
        self.publish(b"before")
        self.keys.rotate(self.topic, b"new", "ada", "client")
        self.publish(b"after")
        self.clock.advance(0)
        assert holder.data == b"before\n"

    def test_the_new_key_is_in_effect_during_the_recheck(self) -> None:
        self.keys.close(self.topic, b"old", "ada", "client")
        matched: list[bool] = []

        class Asking(KeyHolder):
            def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
                matched.extend(keys.matches(topic, key) for key in (b"old", b"new"))
                return False

        keys = self.keys
        holder = Asking(b"")
        reader = Reader(recheck=holder.recheck)
        traffic = self.broker.counters.traffic["toy"]
        box = Outbox(self.broker.cursors, holder, SlowPolicy(), reader, traffic)
        self.broker.router.subscribe(box, self.topic, Lines())
        keys.rotate(self.topic, b"new", "ada", "client")
        assert matched == [False, True]

    def test_rotating_forgets_the_tokens_that_hold_the_old_key(self) -> None:
        stale, fresh = token({"queue_key": "old"}), token({"queue_key": "new"})
        tokens = self.broker.tokens
        self.keys.close(self.topic, b"old", "ada", "client")
        for raw in (stale, fresh):
            tokens.check(raw, START)
        self.keys.rotate(self.topic, b"new", "ada", "client")
        assert [tokens.known(raw) for raw in (stale, fresh)] == [False, True]

    def test_an_ended_topic_has_no_key(self) -> None:
        self.keys.close(self.topic, b"key", "ada", "client")
        self.broker.topic_lifecycle.end(self.topic)
        again = self.broker.topics.create("orders")
        assert again not in self.keys
        assert not self.keys.matches(again, b"key")
        self.keys.forget("orders")

    def test_no_repr_contains_a_key(self) -> None:
        self.keys.close(self.topic, b"first hidden", "ada", "client")
        self.keys.rotate(self.topic, b"second hidden", "ada", "client")
        assert "hidden" not in self.path.read_text()
        assert "hidden" not in repr(KeyChange(b"first hidden", b"second hidden"))

    def test_any_subject_is_audited(self) -> None:
        """The audit log accepts any subject that a verified token can have."""
        for subject in ('ada"\n', "\0", "zoë", "日本"):
            self.keys.close(self.topic, b"key", subject, "client")
            assert self.audited()[-1]["subject"] == subject


class WritingTests(KeyCase):
    """rotate, while the new key is being written"""

    def setUp(self) -> None:
        super().setUp()
        self.keys.restore()
        self.keys.close(self.topic, b"old", "ada", "client")
        self.holder = self.subscriber(b"new")
        self.waiting: list[Callable[[bool], None]] = []
        self.patch(self.broker.store, "when_synced", self.waiting.append)  # type: ignore[no-untyped-call]

    def rotate(self, key: bytes, agreed: bool = False) -> Deferred[tuple[int, int]]:
        return self.keys.rotate(self.topic, key, "ada", "client", agreed)

    def stored(self) -> bytes:
        """Return the key that the broker has after a restart."""
        broker = make_broker(self.clock, store=self.broker.store, audit=self.audit)
        broker.queue_keys.restore()
        keys = (b"old", b"new", b"newer")
        found = [key for key in keys if broker.queue_keys.matches(self.topic, key)]
        return b"".join(found)

    def test_no_subscriber_has_the_key_before_it_is_on_disk(self) -> None:
        rotated, version = self.rotate(b"new"), self.keys.version
        self.assertNoResult(rotated)  # type: ignore[no-untyped-call]
        assert self.holder.asked == []
        assert self.keys.matches(self.topic, b"old")
        self.waiting.pop()(True)
        assert self.successResultOf(rotated) == (1, 0)
        assert self.holder.asked == [(self.topic, KeyChange(b"old", b"new"))]
        assert not self.keys.matches(self.topic, b"old")
        assert self.keys.version != version
        assert self.stored() == b"new"

    def test_a_key_that_cannot_be_written(self) -> None:
        rotated = self.rotate(b"new")
        self.waiting.pop()(False)
        self.failureResultOf(rotated, HistoryUnavailable)  # type: ignore[no-untyped-call]
        assert self.holder.asked == []
        assert self.keys.matches(self.topic, b"old")
        assert self.stored() == b"old"
        again = self.rotate(b"new")
        self.waiting.pop()(True)
        assert self.successResultOf(again) == (1, 0)

    def test_a_key_of_which_the_hash_is_known_stays_as_it_is(self) -> None:
        hashed = self.keys.hasher.make(b"old")
        self.keys.adopt(self.topic, hashed, b"")
        self.waiting.pop()(True)
        rotated = self.rotate(b"new")
        self.waiting.pop()(False)
        self.failureResultOf(rotated, HistoryUnavailable)  # type: ignore[no-untyped-call]
        assert self.stored() == b"old"
        assert self.keys.matches(self.topic, b"old")

    def test_the_first_one_takes_effect(self) -> None:
        first, second = self.rotate(b"new"), self.rotate(b"newer")
        self.failureResultOf(second, WrongKey)  # type: ignore[no-untyped-call]
        self.waiting.pop()(True)
        assert self.successResultOf(first) == (1, 0)
        assert self.waiting == []
        assert self.stored() == b"new"

    def test_a_topic_that_ends_meanwhile(self) -> None:
        for agreed in (False, True):
            rotated = self.rotate(b"new", agreed)
            self.broker.topic_lifecycle.end(self.topic)
            self.topic = self.broker.topics.create("orders")
            self.keys.close(self.topic, b"old", "ada", "client")
            self.waiting.pop()(True)
            if agreed:
                assert self.successResultOf(rotated) == (0, 0)
            else:
                self.failureResultOf(rotated, WrongKey)  # type: ignore[no-untyped-call]
            assert self.keys.matches(self.topic, b"old")

    def test_what_the_brokers_have_agreed_upon(self) -> None:
        """It takes effect without the disk, too: the others have the key."""
        rotated = self.rotate(b"new", agreed=True)
        adopted = self.keys.adopt(self.topic, self.keys.hasher.make(b"newer"), b"newer")
        for call in self.waiting:
            call(False)
        assert self.successResultOf(rotated) == (0, 0)
        assert self.successResultOf(adopted) == (0, 1)
        assert self.keys.matches(self.topic, b"newer")


class RestartTests(KeyCase):
    """Keys of which only the hash is known, after a restart, and those of other brokers"""

    def setUp(self) -> None:
        super().setUp()
        self.keys.restore()

    def restarted(self) -> QueueKeys:
        """Return the keys of a broker that has been started with the store of this one."""
        broker = make_broker(self.clock, store=self.broker.store, audit=self.audit)
        broker.queue_keys.restore()
        return broker.queue_keys

    def test_a_key_is_known_once_it_was_presented(self) -> None:
        self.keys.close(self.topic, b"key", "ada", "client")
        keys = self.restarted()
        assert keys.plain("orders") == b""
        for key in (b"", b"other"):
            assert not keys.matches(self.topic, key)
        assert keys.proof("orders") is None
        assert keys.matches(self.topic, b"key")
        assert keys.plain("orders") == b"key"
        assert keys.proof("orders") == self.keys.proof("orders")
        assert keys.hashed("orders") is None

    def test_the_key_before_a_change_is_refused(self) -> None:
        self.keys.close(self.topic, b"old", "ada", "client")
        rotated, adopted = self.restarted(), self.restarted()
        rotated.rotate(self.topic, b"new", "ada", "client")
        adopted.adopt(self.topic, rotated.hasher.make(b"new"), b"new")
        for keys in (rotated, adopted, self.restarted()):
            assert not keys.matches(self.topic, b"old")
            assert keys.matches(self.topic, b"new")

    def test_a_key_of_which_another_broker_has_the_hash(self) -> None:
        stale = token({"queue_key": "old"})
        self.broker.tokens.check(stale, START)
        self.keys.close(self.topic, b"old", "ada", "client")
        holder, version = self.subscriber(b"old"), self.keys.version
        self.keys.adopt(self.topic, self.keys.hasher.make(b"new"), b"")
        self.clock.advance(0)
        assert holder.asked == [(self.topic, KeyChange(None, b""))]
        assert not self.broker.tokens.known(stale)
        assert self.keys.version != version
        for keys in (self.keys, self.restarted()):
            assert keys.proof("orders") is None
            assert not keys.matches(self.topic, b"old")
            assert keys.matches(self.topic, b"new")
        records = [(one["event"], one["client"], one["removed"]) for one in self.audited()]
        assert records == [("create", "client", 0), ("rotate", "backplane", 1)]

    def test_a_topic_that_another_broker_has_closed(self) -> None:
        self.keys.adopt(self.topic, self.keys.hasher.make(b"key"), b"key")
        assert self.keys.matches(self.topic, b"key")
        assert [one["event"] for one in self.audited()] == ["create"]

    def test_a_topic_that_has_ended_is_open(self) -> None:
        self.keys.close(self.topic, b"key", "ada", "client")
        self.broker.topic_lifecycle.end(self.topic)
        assert not self.restarted().names


class AccessTests(KeyCase):
    """names, as listeners use it"""

    def test_a_key_closes_the_topic_at_existing_listeners(self) -> None:
        rules = make_listener(self.broker).access
        rules.check_publish("orders")
        rules.check_subscribe("orders")
        self.keys.close(self.topic, b"key", "ada", "client")
        for check in (rules.check_publish, rules.check_subscribe):
            with pytest.raises(NotAuthorized):
                check("orders")
            check("other")
        self.broker.topic_lifecycle.end(self.topic)
        rules.check_publish("orders")
        rules.check_subscribe("orders")

    def test_a_grant_opens_it(self) -> None:
        self.keys.close(self.topic, b"key", "ada", "client")
        make_listener(self.broker, grant="ord*").access.check_publish("orders")
        assert make_listener(self.broker, grant="ord*").access.may_subscribe("orders")
        assert not make_listener(self.broker, grant="other").access.may_subscribe("orders")

    def test_a_protocol_that_checks_keys_itself_is_not_closed(self) -> None:
        self.keys.close(self.topic, b"key", "ada", "client")
        listener = make_listener(self.broker)
        listener.check_keys_itself()
        listener.access.check_publish("orders")
        assert listener.access.may_subscribe("orders")

    def test_closing_ends_subscriptions_of_a_listener_without_a_grant(self) -> None:
        transports: list[Transport] = []
        readers: list[Ruled] = []
        for grant in ("", "orders"):
            listener = make_listener(self.broker, grant=grant)
            transport = Transport()
            readers.append(Ruled(listener))
            box = listener.outbox(transport, readers[-1])
            self.broker.router.subscribe(box, self.topic, Lines())
            transports.append(transport)
        self.keys.close(self.topic, b"key", "ada", "client")
        self.publish(b"x")
        self.clock.advance(0)
        assert [transport.data for transport in transports] == [b"", b"x\n"]
        assert [reader.revoked for reader in readers] == [[self.topic], []]
        assert self.broker.counters.refusals == {("toy", "revoked"): 1}
