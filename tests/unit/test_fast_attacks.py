"""Attacks on fast, and the code with which each is refused."""

from __future__ import annotations

import hmac
import json
from typing import Any
from unittest.mock import patch

from pubsub.broker.credentials import queue_keys as queue_keys_module
from pubsub.broker.credentials import tokens as token_verification
from pubsub.protocols.fast import subscriptions as readers_module
from tests.unit import fast_wire as wire
from tests.unit.fakes import START, recheck_all
from tests.unit.fast_wire import (
    BAD_TOKEN,
    COLLISION,
    EXISTS,
    NO_PERMISSION,
    NO_TOPIC,
    ONE,
    OWNER,
    TWIN,
    TWINS,
    WRONG_KEY,
    FastCase,
)
from tests.unit.tokens import (
    KEY,
    OTHER_KEY,
    PRIVATE,
    PUBLIC_PEM,
    part,
    put_together,
    token,
    with_hmac,
)

CLAIMS: dict[str, Any] = {"sub": "mal", "queue_key": "k1", "permissions": ["*"]}


class AttackCase(FastCase):
    """A house with ``news``, its owner and a subscriber."""

    def setUp(self) -> None:
        self.fast = self.house(secrets={"main": KEY, "public": PUBLIC_PEM})
        self.owner = self.fast.owner()
        self.reader = self.fast.reader()

    def is_bad(self, raw: bytes) -> None:
        """Assert that every request with ``raw`` is refused with code 1."""
        for kind, request in (
            (1, wire.create(raw)),
            (2, wire.subscribe(raw)),
            (3, wire.publish(raw, b"attack")),
            (5, wire.unsubscribe(raw)),
            (7, wire.rotate(raw, b"mine")),
        ):
            assert self.answer(self.fast, request) == wire.error(kind, BAD_TOKEN), raw
            # Refused tokens are not cached, so they are refused again.
            assert not self.fast.broker.tokens.known(raw)
        self.owner.send(wire.publish(OWNER, b"as ever"))
        assert self.reader.take() == wire.message(b"as ever")
        self.fast.clock.advance(1)


class SignatureTests(AttackCase):
    """Forged tokens"""

    def test_alg_none(self) -> None:
        for alg in ("none", "None", "NONE", "nOnE", "", None):
            header = json.dumps({"alg": alg, "typ": "JWT"}).encode()
            body = part(header) + b"." + part(json.dumps(CLAIMS).encode())
            for signature in (b"", b".", b"." + part(b"x" * 32)):
                self.is_bad(body + signature)

    def test_no_alg_at_all(self) -> None:
        self.is_bad(put_together(b'{"typ":"JWT"}', json.dumps(CLAIMS).encode(), with_hmac()))

    def test_alg_none_over_a_good_signature(self) -> None:
        self.is_bad(token(CLAIMS, algorithm="none"))

    def test_a_public_key_as_hmac_secret(self) -> None:
        """Algorithm confusion: the public key is used as an HMAC secret."""
        raw_key = PRIVATE.public_key().public_bytes_raw()
        for key in (PUBLIC_PEM, PUBLIC_PEM.strip(), raw_key):
            for algorithm in ("HS256", "HS512"):
                self.is_bad(token(CLAIMS, with_hmac(key, algorithm), algorithm))
                self.is_bad(token(CLAIMS, with_hmac(key, algorithm), algorithm, kid="public"))
            self.is_bad(token(CLAIMS, with_hmac(key), "EdDSA", kid="public"))

    def test_a_public_key_configured_as_a_secret(self) -> None:
        """A mistake of the operator: the ring then has a secret that is publicly known."""
        fast = self.house(secrets={"main": KEY})
        fast.document["keys"]["main"] = {  # type: ignore[index]
            "secret-file": fast.secret_file("pem", PUBLIC_PEM)["public-key-file"]
        }
        fast.broker.tokens.replace(type(fast.broker.tokens.ring)(fast.read().secrets))
        raw = token(CLAIMS, with_hmac(PUBLIC_PEM.removesuffix(b"\n")))
        assert self.answer(fast, wire.create(raw)) == wire.error(1, BAD_TOKEN)

    def test_the_secret_of_another_algorithm(self) -> None:
        for algorithm in ("HS384", "HS512"):
            self.is_bad(token(CLAIMS, with_hmac(KEY, algorithm), algorithm))

    def test_another_secret(self) -> None:
        for key in (OTHER_KEY, b"", KEY[:-1], KEY + b"\n", KEY.hex().encode()):
            self.is_bad(token(CLAIMS, with_hmac(key)))

    def test_an_unknown_or_wrong_key_id(self) -> None:
        for kid in ("", "lost", "main ", "MAIN", "../main", "public", "main\0", "/dev/null"):
            self.is_bad(token(CLAIMS, kid=kid))
        for odd in (0, None, ["main"], {"main": 1}, True):
            self.is_bad(token(CLAIMS, kid=odd))
        assert self.answer(self.fast, wire.publish(token(CLAIMS, kid="main"), b"x")) == b""

    def test_keys_in_the_header(self) -> None:
        own = b"0123456789abcdef"
        claims = {"queue_key": "k1", "permissions": "*"}
        key = {"kty": "oct", "k": part(own).decode()}
        self.is_bad(token(claims, with_hmac(own), jwk=key))
        self.is_bad(token(claims, with_hmac(own), jku="https://192.0.2.9/keys"))

    def test_changed_claims_with_the_old_signature(self) -> None:
        head, _, signature = wire.grant("subscribe").split(b".")
        for claims in (CLAIMS, {**CLAIMS, "queue_key": "k2"}):
            self.is_bad(b".".join((head, part(json.dumps(claims).encode()), signature)))

    def test_damaged_tokens(self) -> None:
        good = token(CLAIMS)
        for raw in (
            b"", b".", b"..", b"...", good[:-1], good[:-2], good[1:], good + b"A",
            good + b".x", good.replace(b".", b""), good.swapcase(), good[: len(good) // 2],
            b"\xff" * 100, b"\0" * 255, good.rsplit(b".", 1)[0], good.rsplit(b".", 1)[0] + b".",
        ):  # fmt: skip
            self.is_bad(raw)

    def test_a_token_has_one_form(self) -> None:
        """Otherwise one token in many encodings could fill the cache."""
        signed, _, signature = token(CLAIMS).rpartition(b".")
        for other in (signature + b"=", signature + b"!", b"-!-".join((signature[:5], b""))):
            self.is_bad(signed + b"." + other)
        for junk in (b"=", b"!", b" ", b"\n", b"\xff"):
            self.is_bad(signed + b"." + signature[:5] + junk + signature[5:])


class TimeTests(AttackCase):
    """Tokens that are expired or not yet valid"""

    def test_expired_and_not_yet_valid(self) -> None:
        for raw in (
            wire.grant(exp=START - 1), wire.grant(exp=START), wire.grant(exp=0), wire.grant(exp=-1),
            wire.grant(nbf=START + 1), wire.grant(nbf=4_102_444_800),
            wire.grant(nbf=START + 10, exp=START + 5),
        ):  # fmt: skip
            assert self.answer(self.fast, wire.publish(raw, b"x")) == wire.error(3, BAD_TOKEN)
        assert self.reader.take() == b""

    def test_times_that_are_not_numbers(self) -> None:
        odd: tuple[object, ...] = ("4102444800", None, True, [], {}, "never")
        for value in odd:
            self.is_bad(wire.grant(exp=value))
            self.is_bad(wire.grant(nbf=value))
        self.is_bad(put_together(b'{"alg":"HS256"}', b'{"queue_key":"k1","exp":NaN}', with_hmac()))

    def test_cached_tokens_expire(self) -> None:
        raw = wire.for_seconds(10)
        client = self.fast.client(wire.publish(raw, b"x"))
        assert self.fast.broker.tokens.known(raw)
        self.fast.clock.advance(10)
        client.send(wire.publish(raw, b"y"))
        assert client.take() == wire.error(3, BAD_TOKEN)
        assert self.reader.take() == wire.message(b"x")


class LengthTests(AttackCase):
    """Tokens that are too long, or shorter than their length"""

    def test_the_longest_possible_token(self) -> None:
        for length in range(120, 10, -1):
            raw = token({**CLAIMS, "note": "n" * length})
            if len(raw) in (254, 255):
                break
        assert len(raw) in (254, 255)
        assert self.answer(self.fast, wire.publish(raw, b"x")) == b""
        assert self.reader.take() == wire.message(b"x")

    def test_a_longer_token_cannot_be_expressed(self) -> None:
        """The length has one byte: the bytes beyond it are parsed as the rest of the packet."""
        raw = token({**CLAIMS, "note": "n" * 200})
        assert len(raw) > 255
        client = self.fast.client(b"\x02\xff" + raw + wire.topic_id("news").to_bytes(4))
        answer = client.take()
        assert answer.startswith(b"\x7f\x02\x01" + raw[255:259])
        assert self.reader.take() == b""

    def test_a_length_that_reaches_into_the_next_packet(self) -> None:
        client = self.fast.client(b"\x02\xff" + OWNER)
        assert client.take() == b""
        client.send(wire.publish(OWNER, b"x"))
        answer = client.take()
        assert answer[:3] == b"\x7f\x02\x01"
        assert self.reader.take() == b""


class KeyTests(AttackCase):
    """Queue keys"""

    def test_an_old_token_after_a_rotation(self) -> None:
        client = self.fast.client(wire.publish(OWNER, b"1"))
        self.owner.send(wire.rotate(OWNER, b"k2"))
        assert not self.fast.broker.tokens.known(OWNER)
        for _ in range(3):
            client.send(
                wire.publish(OWNER, b"replay") + wire.subscribe(OWNER) + wire.rotate(OWNER, b"mine")
            )
            assert client.take() == wire.error(3, WRONG_KEY) + wire.error(
                2, WRONG_KEY
            ) + wire.error(7, WRONG_KEY)
        assert self.reader.take() == wire.message(b"1") + wire.key_update(b"k2")

    def test_a_captured_publish_sent_again_byte_by_byte(self) -> None:
        captured = wire.publish(OWNER, b"pay 100")
        self.owner.send(wire.rotate(OWNER, b"k2"))
        client = self.fast.client()
        for at in range(len(captured)):
            client.send(captured[at : at + 1])
        assert client.take() == wire.error(3, WRONG_KEY)

    def test_keys_that_are_nearly_right(self) -> None:
        for key in ("", "k", "k1 ", " k1", "K1", "k11", "k1\0", "k1\n"):
            raw = wire.grant(key=key)
            assert self.answer(self.fast, wire.publish(raw, b"x")) == wire.error(3, WRONG_KEY)
            wanted = wire.error(1, EXISTS) if key else wire.error(1, WRONG_KEY)
            assert self.answer(self.fast, wire.create(raw)) == wanted

    def test_keys_of_other_types(self) -> None:
        for key in (1, None, True, ["k1"], {"k1": 1}):
            self.is_bad(token({**CLAIMS, "queue_key": key}))

    def test_an_empty_key_opens_no_topic_without_a_key(self) -> None:
        fast = self.house(also={"cafe": {"channels": "1:cups"}})
        for key in ("", "k1"):
            raw = wire.grant(key=key)
            cups = wire.topic_id("cups")
            assert self.answer(fast, wire.publish(raw, b"x", topic=cups)) == wire.error(
                3, WRONG_KEY, cups
            )

    def test_invalid_permissions(self) -> None:
        for permissions in (
            [],
            "",
            "PUBLISH",
            ["publish "],
            "publish,subscribe",
            ["**"],
            ["Admin"],
        ):
            raw = token({**CLAIMS, "permissions": permissions})
            assert self.answer(self.fast, wire.publish(raw, b"x")) == wire.error(3, NO_PERMISSION)
        for odd in ({"publish": 1}, 1, True, None, [["publish"]], [1]):
            self.is_bad(token({**CLAIMS, "permissions": odd}))

    def test_keys_are_compared_in_constant_time(self) -> None:
        compared: list[tuple[bytes, bytes]] = []

        class Recording:
            @staticmethod
            def compare_digest(one: bytes, other: bytes) -> bool:
                compared.append((one, other))
                return hmac.compare_digest(one, other)

        wrong = wire.grant(key="k2")
        with (
            patch.object(queue_keys_module, "hmac", Recording),
            patch.object(readers_module, "hmac", Recording),
        ):
            for request in (wire.create(wrong), wire.subscribe(wrong), wire.publish(wrong, b"x")):
                compared.clear()
                self.fast.client(request)
                assert compared == [(b"k1", b"k2")]
            compared.clear()
            self.owner.send(wire.rotate(OWNER, b"k3"))
            assert compared == [(b"k1", b"k1"), (b"k1", b"k1")]

    def test_two_names_with_one_id(self) -> None:
        """ONE and TWIN are a real collision of FNV-1a 32 (see test_fast_server)."""
        victim = self.fast.client(wire.create(OWNER, ONE) + wire.subscribe(OWNER, TWINS))
        mine = wire.grant(key="mine", sub="mal")
        attacker = self.fast.client(wire.create(mine, TWIN))
        assert attacker.take() == wire.error(1, COLLISION, TWINS)
        attacker.send(wire.subscribe(mine, TWINS) + wire.publish(mine, b"x", topic=TWINS))
        assert attacker.take() == wire.error(2, WRONG_KEY, TWINS) + wire.error(3, WRONG_KEY, TWINS)
        assert victim.take() == b""

    def test_topics_cannot_be_found_by_guessing(self) -> None:
        """Unknown ids and ids of closed topics have different codes; no more is revealed (§5.2)."""
        mine = wire.grant(key="mine")
        assert self.answer(self.fast, wire.subscribe(mine, 1)) == wire.error(2, NO_TOPIC, 1)
        assert self.answer(self.fast, wire.subscribe(mine)) == wire.error(2, WRONG_KEY)


class FloodTests(AttackCase):
    """Floods of different tokens"""

    def test_invalid_tokens_do_not_grow_the_cache(self) -> None:
        size = len(self.fast.broker.tokens)
        misses = self.fast.broker.tokens.misses
        head = OWNER.rpartition(b".")[0]
        for connection in range(50):
            client = self.fast.client()
            tokens = [head + b"." + part(b"%d/%d" % (connection, n)) for n in range(40)]
            client.send(b"".join(wire.publish(raw, b"x") for raw in tokens))
            # Four are verified; then the connection waits with the rest.
            assert client.take() == wire.error(3, BAD_TOKEN) * 4
        assert len(self.fast.broker.tokens) == size
        assert self.fast.broker.tokens.misses - misses == 200
        self.owner.send(wire.publish(OWNER, b"as ever"))
        assert self.reader.take() == wire.message(b"as ever")

    def test_expired_tokens_do_not_grow_the_cache(self) -> None:
        size = len(self.fast.broker.tokens)
        for number in range(3):
            raw = wire.grant(exp=START - 1 - number)
            assert self.answer(self.fast, wire.publish(raw, b"x")) == wire.error(3, BAD_TOKEN)
        assert len(self.fast.broker.tokens) == size

    def test_valid_tokens_replace_the_oldest(self) -> None:
        self.patch(token_verification, "CACHED", 100)  # type: ignore[no-untyped-call]
        tokens = self.fast.broker.tokens
        for number in range(110):
            tokens.check(token({**CLAIMS, "n": number}), START)
        assert len(tokens) == 100
        assert not tokens.known(OWNER)
        self.owner.send(wire.publish(OWNER, b"as ever"))
        assert self.reader.take() == wire.message(b"as ever")

    def test_a_subscription_does_not_depend_on_the_cache(self) -> None:
        self.fast.broker.tokens.replace(self.fast.broker.tokens.ring)
        assert recheck_all(self.fast.broker.router, self.fast.broker.topics) == (1, 0)
        assert self.reader.take() == b""
