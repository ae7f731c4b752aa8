"""Keys, tokens and secrets are never revealed (fast §1.2, §5)."""

from __future__ import annotations

from pubsub.broker.topic_space.topics import KeyChange
from tests.unit import fast_wire as wire
from tests.unit.fakes import START
from tests.unit.fast_wire import ENDED, NO_PERMISSION, OWNER, READER, Fast, FastCase
from tests.unit.streams import logged
from tests.unit.tokens import (
    KEY,
    OTHER_KEY,
)


class SilenceTests(FastCase):
    """Credentials are neither logged nor sent to other clients"""

    def setUp(self) -> None:
        self.fast = self.house()
        self.owner = self.fast.owner()
        self.reader = self.fast.reader()

    def test_no_key_or_token_is_logged_or_sent(self) -> None:
        lines = logged(self)
        fast = Fast(self)
        hush = wire.grant(key="hush-hush")
        client = fast.client(
            wire.create(hush) + wire.subscribe(hush) + wire.rotate(hush, b"be-quiet")
        )
        client.send(wire.publish(hush, b"x") + wire.create(hush) + b"\xff" + hush)
        fast.client(
            wire.subscribe(wire.grant(key="guess-work"))
            + wire.subscribe(wire.grant(secret=OTHER_KEY))
        )
        fast.start()
        fast.advance(2)
        said = "\n".join(lines)
        assert "refused" in said
        assert "audit" in said
        for word in ("hush-hush", "be-quiet", "guess-work", hush.decode()[-43:]):
            assert word not in said

    def test_no_repr_contains_a_key(self) -> None:
        secret = next(iter(self.fast.broker.tokens.ring))
        known = self.fast.broker.tokens.check(wire.grant(key="hush-hush"), START)
        for thing in (secret, known, KeyChange(b"hush-hush", b"hush-hush")):
            assert "hush-hush" not in repr(thing)
            assert repr(KEY)[2:-1] not in repr(thing)

    def test_the_end_of_a_subscription_reveals_no_key(self) -> None:
        late = self.fast.reader(wire.for_seconds(10, "subscribe"))
        self.fast.clock.rightNow += 10
        self.owner.stream.feed(wire.rotate(OWNER, b"new-key"))
        self.fast.turn()
        assert late.take() == wire.error(2, ENDED)
        assert self.reader.take() == wire.key_update(b"new-key")

    def test_a_token_for_reading_does_not_permit_a_rotation(self) -> None:
        assert self.answer(self.fast, wire.rotate(READER, b"mine")) == wire.error(7, NO_PERMISSION)
