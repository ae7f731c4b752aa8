"""fast: reads that bring messages of several topics, and the proofs that permit them."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

from pubsub.broker.publishing.publisher import Publisher
from pubsub.broker.routing import combination_cache
from pubsub.protocols.fast import read_proofs
from pubsub.protocols.fast.message_heads import Source
from pubsub.protocols.fast.read_proofs import Proofs
from pubsub.wire.direct_transport import READ_BYTES
from pubsub.wire.read_buffer import LONG_READ_OF_TOKENS
from tests.unit import fast_wire as wire
from tests.unit.fast_wire import (
    BAD_TOKEN,
    NEWS,
    NO_PERMISSION,
    NO_TOPIC,
    OWNER,
    RATE_LIMITED,
    READER,
    WRITER,
    WRONG_KEY,
    Fast,
    FastCase,
)
from tests.unit.streams import Client
from tests.unit.tokens import KEY, OTHER_KEY

SPORT = wire.topic_id("sport")
OTHER_KEYED = wire.grant(key="k2", sub="mal")
SOURCES = [Source.of(WRITER, NEWS), Source.of(WRITER, SPORT)]


class MixedCase(FastCase):
    """Two topics with one key, and a reader of both."""

    def start(self, **settings: object) -> tuple[Fast, Client]:
        """Return the house and the reader."""
        fast = Fast(self, **settings)  # type: ignore[arg-type]
        fast.client(wire.create(OWNER) + wire.create(OWNER, "sport"))
        reader = fast.reader()
        reader.send(wire.subscribe(READER, SPORT))
        # Cached tokens.
        writer = fast.client(wire.publish(WRITER, b"0") + wire.publish(WRITER, b"0", topic=SPORT))
        assert writer.take() == b""
        reader.take()
        return fast, reader

    def proofs(self, fast: Fast) -> Proofs:
        proofs: Proofs = fast.factories["fast"].shared.proofs
        return proofs


def both(raw: bytes, other: bytes | None = None) -> bytes:
    """Messages of news and sport in turn."""
    return (
        wire.publish(raw, b"n1") + wire.publish(other or raw, b"s1", topic=SPORT)
        + wire.publish(raw, b"n2", b"n3") + wire.publish(other or raw, b"s2", topic=SPORT)
    )  # fmt: skip


BOTH = (
    wire.message(b"n1") + wire.message(b"s1", topic=SPORT) + wire.message(b"n2", b"n3")
    + wire.message(b"s2", topic=SPORT)
)  # fmt: skip


class PublishTests(MixedCase):
    """Publishing to several topics with one read"""

    def test_reads_of_a_busy_client_are_longer_as_most_bytes_are_tokens(self) -> None:
        fast, reader = self.start()
        one = wire.publish(WRITER, b"x") + wire.publish(WRITER, b"y", topic=SPORT)
        many = one * (READ_BYTES // len(one) + 1)
        writer = fast.client(many[:READ_BYTES])
        assert LONG_READ_OF_TOKENS - len(one) < writer.stream.bufferSize <= LONG_READ_OF_TOKENS
        writer.send(many[READ_BYTES:])
        assert len(reader.take()) == 2 * len(wire.message(b"x")) * (len(many) // len(one))

    def test_messages_keep_their_order(self) -> None:
        fast, reader = self.start()
        with patch.object(Publisher, "publish", side_effect=AssertionError):
            assert self.answer(fast, both(WRITER)) == b""
        assert reader.take() == BOTH

    def test_the_sender_is_the_subject_of_the_token(self) -> None:
        fast, _ = self.start()
        self.answer(fast, both(WRITER))
        page = self.successResultOf(fast.store.read(2, None, 2**20))
        assert {batch.sender for batch in page.batches} == {b"eve"}
        assert sum(batch.count for batch in page.batches) == 5

    def test_a_token_that_is_not_cached(self) -> None:
        fast, reader = self.start()
        fresh = wire.grant("publish", sub="zoe")
        assert self.answer(fast, both(fresh)) == b""
        assert reader.take() == BOTH

    def test_tokens_of_two_subjects(self) -> None:
        fast, reader = self.start()
        assert self.answer(fast, both(WRITER, OWNER)) == b""
        assert reader.take() == BOTH
        page = self.successResultOf(fast.store.read(2, None, 2**20))
        senders = [batch.sender for batch in page.batches for _ in range(batch.count)]
        assert senders == [b"eve", b"ada", b"eve", b"eve", b"ada"]

    def test_one_refused_topic_among_others(self) -> None:
        fast, reader = self.start()
        for raw, code in (
            (OTHER_KEYED, WRONG_KEY),
            (READER, NO_PERMISSION),
            (wire.grant(secret=OTHER_KEY), BAD_TOKEN),
        ):
            assert self.answer(fast, both(WRITER, raw)) == wire.error(3, code, SPORT) * 2
            assert reader.take() == wire.message(b"n1", b"n2", b"n3")

    def test_an_unknown_topic(self) -> None:
        fast, reader = self.start()
        none = wire.topic_id("none")
        sent = (
            wire.publish(WRITER, b"n1")
            + wire.publish(WRITER, b"x", topic=none)
            + wire.publish(WRITER, b"n2")
        )
        assert self.answer(fast, sent) == wire.error(3, NO_TOPIC, none)
        assert reader.take() == wire.message(b"n1", b"n2")

    def test_access_rules_that_change(self) -> None:
        fast, reader = self.start()
        self.answer(fast, both(WRITER))
        assert reader.take() == BOTH
        listener = fast.listeners["fast"]
        listener.reconfigure({**listener.settings, "allow-publish": ("news",)})
        assert self.answer(fast, both(WRITER)) == wire.error(3, NO_PERMISSION, SPORT) * 2
        assert reader.take() == wire.message(b"n1", b"n2", b"n3")

    def test_access_rules_that_change_for_several_holders(self) -> None:
        fast, reader = self.start()
        assert [self.answer(fast, both(WRITER, OWNER)) for _ in range(2)] == [b"", b""]
        assert reader.take() == BOTH * 2
        denied = {"deny": "publish", "topics": "sport", "identity": "ada"}
        fast.document["access"] = [denied, {"allow": "*"}]
        fast.reloader().reload()
        refused = wire.error(3, NO_PERMISSION, SPORT) * 2
        assert [self.answer(fast, both(WRITER, OWNER)) for _ in range(2)] == [refused] * 2
        assert reader.take() == wire.message(b"n1", b"n2", b"n3") * 2
        # Those of others are remembered under the new rules.
        other = wire.grant("publish", sub="zoe")
        assert [self.answer(fast, both(WRITER, other)) for _ in range(2)] == [b"", b""]
        assert reader.take() == BOTH * 2

    def test_tokens_of_two_issuers(self) -> None:
        """Rules may tell them apart, whatever the name: the rights of one are not the other's."""
        fast, reader = self.start(secrets={"main": KEY, "partner": OTHER_KEY})
        fast.document["access"] = [{"allow": "*", "issuer": "main"}]
        fast.reloader().reload()
        theirs = wire.grant("publish", sub="eve", secret=OTHER_KEY)
        refused = wire.error(3, NO_PERMISSION, SPORT) * 2
        client = fast.client(wire.publish(WRITER, b"n") + wire.publish(theirs, b"s", topic=SPORT))
        assert client.take() == wire.error(3, NO_PERMISSION, SPORT)
        client.send(both(WRITER, theirs))
        assert client.take() == refused
        client.send(wire.publish(WRITER, b"n"))
        assert client.take() == b""
        reader.take()
        assert self.answer(fast, both(WRITER, theirs)) == refused
        assert self.answer(fast, both(theirs, WRITER)) == wire.error(3, NO_PERMISSION) * 3
        of_main = wire.message(b"n1", b"n2", b"n3") + wire.message(b"s1", b"s2", topic=SPORT)
        assert reader.take() == of_main

    def test_a_rate_limit(self) -> None:
        fast, reader = self.start(rate_messages=4)
        answer = self.answer(fast, both(WRITER))
        assert answer == wire.error(3, RATE_LIMITED, SPORT)
        assert reader.take() == BOTH[: -len(wire.message(b"s2"))]

    def test_a_client_that_must_wait_for_its_tokens(self) -> None:
        """Messages before the first token that has to wait are published."""
        fast, reader = self.start()
        client = fast.client()
        forged = b"".join(
            wire.publish(wire.grant(sub=f"{n}", secret=OTHER_KEY), b"x", topic=SPORT)
            for n in range(200)
        )
        client.send(wire.publish(WRITER, b"n1") + forged + wire.publish(WRITER, b"n2"))
        assert reader.take() == wire.message(b"n1")
        fast.advance(600)
        assert client.take() == wire.error(3, BAD_TOKEN, SPORT) * 200
        assert reader.take() == wire.message(b"n2")


def subject(proofs: Proofs, sources: Sequence[Source]) -> str | None:
    """Return the subject of the token that stands for those of ``sources``."""
    proof = proofs.find(sources)
    return None if proof is None else proof.token.subject


class ProofTests(MixedCase):
    """``Proofs.find``"""

    def test_the_sender_of_all_messages(self) -> None:
        fast, _ = self.start()
        proofs = self.proofs(fast)
        assert subject(proofs, SOURCES) == "eve"
        other = wire.grant("publish", sub="eve", iss="another")
        assert proofs.find([*SOURCES, Source.of(other, NEWS)]) is None
        self.answer(fast, wire.publish(other, b"x"))
        assert subject(proofs, [*SOURCES, Source.of(other, NEWS)]) == "eve"

    def test_several_senders(self) -> None:
        fast, _ = self.start()
        one = self.proofs(fast).find(SOURCES)
        several = self.proofs(fast).find([SOURCES[0], Source.of(OWNER, SPORT)])
        assert one is not None
        assert one.each == ()
        assert several is not None
        assert [token.subject for token in several.each] == ["eve", "ada"]

    def test_a_token_without_the_permission_or_the_key(self) -> None:
        fast, _ = self.start()
        fast.client(wire.create(OTHER_KEYED, "theirs"))
        for raw in (READER, OTHER_KEYED):
            assert fast.listeners["fast"].tokens.known(raw)
            assert self.proofs(fast).find([SOURCES[0], Source.of(raw, SPORT)]) is None
        theirs = Source.of(OTHER_KEYED, wire.topic_id("theirs"))
        assert subject(self.proofs(fast), [theirs]) == "mal"

    def test_a_topic_without_a_key(self) -> None:
        fast, _ = self.start()
        fast.broker.topics.create("open")
        assert self.proofs(fast).find([Source.of(OWNER, wire.topic_id("open"))]) is None

    def test_an_unknown_topic(self) -> None:
        fast, _ = self.start()
        assert self.proofs(fast).find([Source.of(WRITER, 1)]) is None

    def test_a_proof_is_cached(self) -> None:
        fast, _ = self.start()
        proofs = self.proofs(fast)
        proofs.find(SOURCES)
        with patch.object(proofs, "_prove", side_effect=AssertionError):
            assert subject(proofs, list(SOURCES)) == "eve"

    def test_a_proof_ends_with_the_first_token(self) -> None:
        fast, reader = self.start()
        short = wire.for_seconds(10, "publish", sub="eve")
        assert self.answer(fast, both(WRITER, short)) == b""
        assert reader.take() == BOTH
        proofs = self.proofs(fast)
        sources = [SOURCES[0], Source.of(short, SPORT)]
        assert subject(proofs, sources) == "eve"
        fast.clock.rightNow += 10
        assert proofs.find(sources) is None
        assert self.answer(fast, both(WRITER, short)) == wire.error(3, BAD_TOKEN, SPORT) * 2
        assert reader.take() == wire.message(b"n1", b"n2", b"n3")

    def test_a_proof_does_not_hold_before_it_was_made(self) -> None:
        """A clock that is set back may make a token not valid yet."""
        fast, _ = self.start()
        later = wire.grant("publish", sub="eve", nbf=fast.clock.seconds() + 10)
        fast.clock.rightNow += 10
        self.answer(fast, wire.publish(later, b"x"))
        sources = [SOURCES[0], Source.of(later, SPORT)]
        assert subject(self.proofs(fast), sources) == "eve"
        fast.clock.rightNow -= 5
        assert self.proofs(fast).find(sources) is None
        fast.clock.rightNow += 5
        assert subject(self.proofs(fast), sources) == "eve"

    def test_a_rotated_key_ends_a_proof(self) -> None:
        fast, _ = self.start()
        assert subject(self.proofs(fast), SOURCES) == "eve"
        self.answer(fast, wire.rotate(OWNER, b"k2", SPORT))
        assert self.proofs(fast).find(SOURCES) is None
        assert self.answer(fast, both(WRITER)) == wire.error(3, WRONG_KEY, SPORT) * 2

    def test_proofs_that_a_rotation_has_ended_are_let_go_of(self) -> None:
        """They have the old key, and the secret that their tokens were verified with."""
        fast, _ = self.start()
        proofs = self.proofs(fast)
        for sources in (SOURCES, SOURCES[::-1], SOURCES[:1]):
            assert subject(proofs, sources) == "eve"
        self.answer(fast, wire.rotate(OWNER, b"k2", SPORT))
        assert self.answer(fast, wire.publish(WRITER, b"x")) == b""
        assert subject(proofs, SOURCES[:1]) == "eve"
        assert len(proofs._proofs) == 1

    def test_a_topic_created_again_with_another_key(self) -> None:
        fast, reader = self.start()
        assert self.answer(fast, both(WRITER)) == b""
        reader.take()
        fast.broker.topic_lifecycle.end(fast.broker.topics.named("sport"))
        reader.take()
        assert self.answer(fast, both(WRITER)) == wire.error(3, NO_TOPIC, SPORT) * 2
        self.answer(fast, wire.create(OTHER_KEYED, "sport"))
        assert self.answer(fast, both(WRITER)) == wire.error(3, WRONG_KEY, SPORT) * 2
        assert self.answer(fast, both(WRITER, OTHER_KEYED)) == b""
        assert fast.broker.topics.named("sport").id == SPORT

    def test_changed_secrets_end_a_proof(self) -> None:
        fast, reader = self.start(secrets={"main": KEY, "new": OTHER_KEY})
        assert subject(self.proofs(fast), SOURCES) == "eve"
        fast.document["keys"] = {"new": fast.secret_file("new", OTHER_KEY)}
        fast.reloader().reload()
        assert self.proofs(fast).find(SOURCES) is None
        reader.take()
        bad = wire.error(3, BAD_TOKEN) + wire.error(3, BAD_TOKEN, SPORT)
        answer = self.answer(
            fast, wire.publish(WRITER, b"x") + wire.publish(WRITER, b"y", topic=SPORT)
        )
        assert answer == bad

    def test_proofs_are_bounded(self) -> None:
        self.patch(combination_cache, "_MAX_ITEMS", 110)  # type: ignore[no-untyped-call]
        fast, _ = self.start()
        proofs = self.proofs(fast)
        for number in range(20):
            sources = [SOURCES[number >> bit & 1] for bit in range(11)]
            assert subject(proofs, sources) == "eve"
        assert len(proofs._proofs) <= 10

    def test_another_combination_needs_no_further_checks(self) -> None:
        fast, _ = self.start()
        proofs = self.proofs(fast)
        assert subject(proofs, SOURCES) == "eve"
        with patch.object(proofs, "_prove_one", side_effect=AssertionError):
            assert subject(proofs, SOURCES[::-1]) == "eve"

    def test_more_sources_than_a_remembered_combination_has(self) -> None:
        self.patch(read_proofs, "MAX_COMBINATION", 1)  # type: ignore[no-untyped-call]
        fast, _ = self.start()
        proofs = self.proofs(fast)
        before = len(proofs._proofs)
        assert subject(proofs, SOURCES) == "eve"
        assert len(proofs._proofs) == before

    def test_proofs_of_sources_are_counted(self) -> None:
        fast, _ = self.start()
        proofs = self.proofs(fast)
        proofs.clear()
        used = fast.broker.memory.used
        proofs.find(SOURCES)
        counted = read_proofs._PROOF_BYTES + 2 * read_proofs._SOURCE_BYTES
        assert fast.broker.memory.used > used + counted
        proofs.clear()
        assert fast.broker.memory.used == used
