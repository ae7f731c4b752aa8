"""fast in operation: the audit log, and changes of secrets (fast §4.3, §5.3)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.unit import fast_wire as wire
from tests.unit.fakes import START, scratch
from tests.unit.fast_wire import BAD_TOKEN, OVER, OWNER, READER, Fast, FastCase
from tests.unit.tokens import KEY, OTHER_KEY, PRIVATE, PUBLIC_PEM, token


class AuditTests(FastCase):
    """Records of the audit log"""

    def records(self, path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def test_creation_and_rotation(self) -> None:
        path = scratch(self) / "audit.log"
        fast = self.house(top={"audit-log": str(path)}, also={"cafe": {"channels": "1:news"}})
        self.addCleanup(fast.audit.close)
        cafe = fast.connect("cafe")
        cafe.send(bytes.fromhex("fe ca 02 03 00 00 00 01 01 00"))
        owner = fast.owner()
        late, kept = fast.reader(wire.for_seconds(10, "subscribe")), fast.reader()
        fast.clock.rightNow += 10
        owner.stream.feed(wire.rotate(wire.grant(sub="käthe"), b"k2"))
        fast.turn()
        assert (late.take(), kept.take()) == (OVER, wire.key_update(b"k2"))
        created, rotated = self.records(path)
        when = datetime.fromtimestamp(START + 10, UTC).isoformat(timespec="milliseconds")
        assert created["event"] == "create"
        assert (created["kept"], created["removed"]) == (0, 1)
        assert rotated == {
            "time": when, "event": "rotate", "topic": "news", "subject": "käthe",
            "client": rotated["client"], "kept": 1, "removed": 1,
        }  # fmt: skip
        assert rotated["client"].startswith("192.0.2.1:")

    def test_records_have_no_key_and_no_token(self) -> None:
        path = scratch(self) / "audit.log"
        fast = self.house(top={"audit-log": str(path)})
        self.addCleanup(fast.audit.close)
        secretive = wire.grant(key="hush-hush", sub="ada")
        owner = fast.client(wire.create(secretive) + wire.rotate(secretive, b"be-quiet"))
        assert owner.take() == b""
        text = path.read_text()
        assert "ada" in text
        for word in ("hush-hush", "be-quiet", *secretive.decode().split(".")):
            assert word not in text


class ReloadTests(FastCase):
    """§5.3: the ring changes under live clients"""

    def reload(self, fast: Fast, **keys: bytes) -> None:
        fast.document["keys"] = {id: fast.secret_file(id, key) for id, key in keys.items()}
        fast.reloader().reload()
        fast.turn()

    def test_a_removed_secret_ends_its_subscriptions(self) -> None:
        fast = self.house(secrets={"old": KEY, "new": OTHER_KEY})
        owner = fast.owner()
        old, new = fast.reader(), fast.reader(wire.grant("subscribe", secret=OTHER_KEY))
        self.reload(fast, new=OTHER_KEY)
        assert (old.take(), new.take()) == (OVER, b"")
        owner.send(wire.publish(OWNER, b"x") + wire.publish(wire.grant(secret=OTHER_KEY), b"y"))
        assert owner.take() == wire.error(3, BAD_TOKEN)
        assert (old.take(), new.take()) == (b"", wire.message(b"y"))

    def test_an_added_secret_ends_no_subscription(self) -> None:
        fast = self.house()
        fast.owner()
        reader = fast.reader()
        other = wire.grant("subscribe", secret=OTHER_KEY)
        assert self.answer(fast, wire.subscribe(other)) == wire.error(2, BAD_TOKEN)
        self.reload(fast, main=KEY, new=OTHER_KEY)
        assert self.answer(fast, wire.subscribe(other)) == b""
        assert reader.take() == b""

    def test_a_new_secret_under_the_same_id_is_distinct(self) -> None:
        fast = self.house()
        fast.owner()
        reader = fast.reader()
        self.reload(fast, main=OTHER_KEY)
        assert reader.take() == OVER

    def test_an_unchanged_public_key_ends_no_subscription(self) -> None:
        fast = self.house(secrets={"public": PUBLIC_PEM})
        raw = token({"queue_key": "k1", "permissions": "*"}, PRIVATE.sign, "EdDSA")
        client = fast.client(wire.create(raw) + wire.subscribe(raw))
        self.reload(fast, public=PUBLIC_PEM)
        client.send(wire.publish(raw, b"x"))
        assert client.take() == wire.message(b"x")

    def test_changed_rules_end_forbidden_subscriptions(self) -> None:
        fast = self.house()
        fast.owner()
        reader = fast.reader()
        fast.document["listen"][0]["allow-subscribe"] = "other"  # type: ignore[index]
        fast.reloader().reload()
        assert reader.take() == OVER

    def test_the_end_of_a_secret_ends_its_subscriptions(self) -> None:
        end = datetime.fromtimestamp(START + 60, UTC)
        fast = Fast(self)
        fast.document["keys"]["main"]["ends"] = end  # type: ignore[index]
        fast.reloader().reload()
        fast.owner()
        reader = fast.reader()
        fast.advance(59.5)
        assert reader.take() == b""
        fast.advance(0.5)
        assert reader.take() == OVER
        assert self.answer(fast, wire.subscribe(READER)) == wire.error(2, BAD_TOKEN)

    def test_an_end_in_the_future_ends_no_subscription_yet(self) -> None:
        """How a secret is replaced: the new one is added, the old one gets an end."""
        fast = Fast(self)
        owner = fast.owner()
        reader = fast.reader()
        end = datetime.fromtimestamp(START + 60, UTC)
        fast.document["keys"]["main"]["ends"] = end  # type: ignore[index]
        fast.reloader().reload()
        owner.send(wire.publish(OWNER, b"x"))
        assert reader.take() == wire.message(b"x")
        fast.advance(60)
        assert reader.take() == OVER
