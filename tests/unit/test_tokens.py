"""Tokens: verification, expiry, and the cache."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials import tokens as tokens_module
from pubsub.broker.credentials.master_secrets import DenyList, SecretRing
from pubsub.broker.credentials.tokens import Token, TokenVerifier
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.errors import BadToken
from tests.unit.fakes import START
from tests.unit.tokens import (
    OTHER_KEY,
    PRIVATE,
    PUBLIC_PEM,
    hmac_secret,
    part,
    public_secret,
    put_together,
    token,
    with_hmac,
)

HEADER = b'{"alg":"HS256"}'


class TokenCase(SynchronousTestCase):
    """A verifier with an HMAC secret and a public key."""

    def setUp(self) -> None:
        self.tokens = TokenVerifier(SecretRing([hmac_secret(), public_secret()]))

    def check(self, raw: bytes, now: float = START) -> Token:
        return self.tokens.check(raw, now)

    def refuses(self, raw: bytes, now: float = START, match: str | None = None) -> None:
        with pytest.raises(BadToken, match=match):
            self.check(raw, now)


class SignatureTests(TokenCase):
    """Signatures"""

    def test_a_token_of_each_algorithm_verifies(self) -> None:
        key = bytes(range(64))
        for algorithm in ("HS256", "HS384", "HS512"):
            self.tokens.replace(SecretRing([hmac_secret("main", key, algorithm)]))
            raw = token({"sub": "ada"}, with_hmac(key, algorithm), algorithm)
            assert self.check(raw).subject == "ada"
        self.tokens.replace(SecretRing([public_secret()]))
        assert self.check(token({"sub": "ada"}, PRIVATE.sign, "EdDSA")).subject == "ada"

    def test_a_short_secret_warns_nobody_and_silences_nothing(self) -> None:
        """The program that a broker is embedded in has warnings of its own."""
        self.tokens.replace(SecretRing([hmac_secret("main", b"short")]))
        raw = token({"sub": "ada"}, with_hmac(b"short"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert self.check(raw).subject == "ada"
        assert caught == []
        code = (
            "import warnings; before = warnings.filters[:]; "
            "import pubsub.broker.credentials.tokens; assert warnings.filters == before"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_forged_tokens_do_not_verify(self) -> None:
        good = token({"sub": "ada"})
        header, claims, signature = good.split(b".")
        forged = token({"sub": "ada"}, with_hmac(OTHER_KEY))
        self.refuses(forged, match="no secret verifies the token")
        self.refuses(b".".join([header, part(b'{"sub":"eve"}'), signature]))
        self.refuses(b".".join([part(b'{"alg":"HS256","typ":"X"}'), claims, signature]))
        self.refuses(b".".join([header, claims, b""]))
        self.refuses(b".".join([header, claims, signature[:-4]]))
        self.refuses(b".".join([header, claims]))
        for junk in (b"!!!!", b"\n", b"====", b".", b" "):
            self.refuses(good + junk)
        self.check(good)

    def test_the_algorithm_none_is_refused(self) -> None:
        for name in ("none", "None", "NONE", ""):
            self.refuses(token({"sub": "eve"}, lambda data: b"", name))
            self.refuses(token({"sub": "eve"}, with_hmac(), name))

    def test_a_public_key_is_not_taken_for_an_hmac_secret(self) -> None:
        public = PRIVATE.public_key().public_bytes_raw()
        for ring in ([public_secret()], [public_secret(), hmac_secret()]):
            self.tokens.replace(SecretRing(ring))
            for key in (PUBLIC_PEM, PUBLIC_PEM.strip(), public):
                for algorithm in ("HS256", "HS384", "HS512"):
                    sign = with_hmac(key, algorithm)
                    self.refuses(token({"sub": "eve"}, sign, algorithm))
                    self.refuses(token({"sub": "eve"}, sign, algorithm, kid="public"))
                self.refuses(token({"sub": "eve"}, with_hmac(key), "EdDSA", kid="public"))

    def test_a_secret_verifies_its_own_algorithm_only(self) -> None:
        self.refuses(token({}, with_hmac(algorithm="HS512"), "HS512"))
        self.refuses(token({}, with_hmac(algorithm="HS512"), "HS256"))

    def test_a_key_or_algorithm_in_the_header_is_ignored(self) -> None:
        jwk = {"kty": "oct", "k": part(OTHER_KEY).decode()}
        self.refuses(token({}, with_hmac(OTHER_KEY), jwk=jwk, jku="file:///dev/null"))
        self.refuses(put_together(b'{"alg":["HS256"]}', b"{}", with_hmac()))
        self.refuses(put_together(b'{"typ":"JWT"}', b"{}", with_hmac()))


class RingTests(TokenCase):
    """Several secrets, key ids, ends"""

    def setUp(self) -> None:
        self.old = hmac_secret("old", OTHER_KEY, ends=START + 10)
        self.new = hmac_secret("new")
        self.tokens = TokenVerifier(SecretRing([self.old, self.new, public_secret()]))

    def test_each_of_several_secrets_counts(self) -> None:
        assert self.check(token({}, with_hmac(OTHER_KEY))).secret == self.old
        assert self.check(token({})).secret == self.new
        assert self.check(token({}, PRIVATE.sign, "EdDSA")).secret == public_secret()

    def test_a_key_id_selects_the_secret_that_must_verify(self) -> None:
        assert self.check(token({}, kid="new")).secret == self.new
        self.refuses(token({}, kid="old"))
        self.refuses(token({}, kid="public"))

    def test_an_unknown_key_id_verifies_nothing(self) -> None:
        for kid in ("", "newer", "../../../dev/null", "new\0", "' OR 1=1"):
            self.refuses(token({}, kid=kid))

    def test_a_key_id_that_is_not_a_string_is_refused(self) -> None:
        for kid in (0, 1.5, True, ["new"], {"new": 1}):
            self.refuses(token({}, kid=kid))

    def test_an_ended_secret_verifies_nothing(self) -> None:
        raw = token({"sub": "ada"}, with_hmac(OTHER_KEY))
        self.refuses(raw, START + 10)
        self.check(raw, START + 9.999)

    def test_an_ended_secret_ends_its_cached_tokens(self) -> None:
        raw = token({"exp": START + 1000}, with_hmac(OTHER_KEY))
        found = self.check(raw)
        assert self.tokens.end(found) == START + 10
        assert self.tokens.valid(found, START + 9.999)
        assert not self.tokens.valid(found, START + 10)
        self.refuses(raw, START + 10)

    def test_after_a_replacement_only_the_new_secrets_count(self) -> None:
        kept, gone = token({}), token({}, with_hmac(OTHER_KEY))
        before = [self.check(raw) for raw in (kept, gone)]
        self.tokens.replace(SecretRing([self.new]))
        assert len(self.tokens) == 0
        assert [self.tokens.valid(found, START) for found in before] == [True, False]
        self.check(kept)
        self.refuses(gone)

    def test_another_key_under_the_same_id_is_another_secret(self) -> None:
        raw = token({}, kid="new")
        found = self.check(raw)
        self.tokens.replace(SecretRing([hmac_secret("new", OTHER_KEY)]))
        assert not self.tokens.valid(found, START)
        self.refuses(raw)


class TimeTests(TokenCase):
    """exp and nbf, to the second"""

    def test_a_token_expires_exactly_at_its_second(self) -> None:
        raw = token({"exp": int(START)})
        for _ in range(2):
            found = self.check(raw, START - 0.001)
            assert self.tokens.valid(found, START - 0.001)
            assert not self.tokens.valid(found, START)
            self.refuses(raw, START, match="^the token has expired$")
        self.refuses(raw, START + 1e9, match="^the token has expired$")

    def test_a_token_begins_exactly_at_its_second(self) -> None:
        raw = token({"nbf": START})
        for _ in range(2):
            self.refuses(raw, START - 0.001, match="^the token is not valid yet$")
            found = self.check(raw, START)
            assert not self.tokens.valid(found, START - 0.001)
            assert self.tokens.valid(found, START)

    def test_without_either_a_token_does_not_expire(self) -> None:
        raw = token({})
        self.check(raw, 0)
        self.check(raw, 1e12)

    def test_issued_at_is_ignored(self) -> None:
        self.check(token({"iat": START + 1000, "jti": 7, "iss": 1, "aud": ["x"]}))

    def test_times_are_finite_numbers(self) -> None:
        infinite = (float("nan"), float("inf"), float("-inf"))
        wrong: tuple[object, ...] = ("1", "", None, True, [], {}, *infinite)
        for claim in ("exp", "nbf"):
            for value in wrong:
                self.refuses(token({claim: value}), match=f"^{claim}: expected a number$")

    def test_numbers_beyond_the_range_of_times_are_refused(self) -> None:
        for claim in ("exp", "nbf"):
            self.refuses(token({claim: 10**400}))
            self.refuses(token({claim: -(10**400)}))


class ClaimTests(TokenCase):
    """Claims"""

    def test_every_claim(self) -> None:
        claims = {"sub": "zoë", "queue_key": "clé", "permissions": ["read:a", "read:b"]}
        assert self.check(token({**claims, "exp": START + 5, "nbf": START - 5})) == Token(
            "zoë",
            "clé".encode(),
            frozenset({"read:a", "read:b"}),
            START + 5,
            START - 5,
            hmac_secret(),
        )

    def test_missing_claims_are_empty(self) -> None:
        found = self.check(token({}))
        assert (found.subject, found.queue_key, found.permissions) == ("", b"", frozenset())
        assert not found.permits("")

    def test_permissions_may_be_a_string(self) -> None:
        found = self.check(token({"permissions": "read:a"}))
        assert found.permissions == {"read:a"}
        assert found.permits("read:a")
        assert not found.permits("r")

    def test_only_granted_actions_are_permitted(self) -> None:
        found = self.check(token({"permissions": ["read:a"]}))
        for other in ("read:b", "read", "read:a ", "READ:A", "read:*", "*", "admin"):
            assert not found.permits(other)

    def test_a_star_and_admin_permit_everything(self) -> None:
        for granted in ("*", "admin", ["x", "*"], ["admin"]):
            assert self.check(token({"permissions": granted})).permits("read:a")

    def test_claims_of_the_wrong_type_are_refused(self) -> None:
        for claim in ("sub", "queue_key"):
            for value in (None, 1, True, ["x"], {"x": 1}):
                self.refuses(token({claim: value}), match="text")
        for permissions in (None, 1, True, {"*": 1}, ["*", 1], [["*"]]):
            self.refuses(token({"permissions": permissions}), match="text")

    def test_text_that_is_not_utf8_is_refused(self) -> None:
        for claim in ("queue_key", "sub"):
            self.refuses(token({claim: "\ud800"}))

    def test_claims_that_are_not_an_object_are_refused(self) -> None:
        for claims in (b"", b"1", b"[]", b'"x"', b"null", b"{", b"\xff", b"[" * 100_000):
            self.refuses(put_together(HEADER, claims, with_hmac()))


class CacheTests(TokenCase):
    """The cache"""

    def test_a_verified_token_is_verified_once(self) -> None:
        raw = token({"sub": "ada"})
        assert not self.tokens.known(raw)
        first = self.check(raw)
        assert self.tokens.known(raw)
        assert self.check(raw) is first
        assert (self.tokens.misses, self.tokens.hits, len(self.tokens)) == (1, 1, 1)

    def test_an_invalid_token_is_not_cached(self) -> None:
        for n in range(20):
            self.refuses(token({"n": n}, with_hmac(OTHER_KEY)))
            self.refuses(token({"n": n, "permissions": 1}))
            self.refuses(b"%d" % n)
        assert len(self.tokens) == 0
        assert self.tokens.hits == 0

    def test_an_expired_token_is_not_cached(self) -> None:
        """An expired token must not evict a valid one from the cache."""
        for n in range(20):
            self.refuses(token({"n": n, "exp": START - 1}))
        assert len(self.tokens) == 0

    def test_it_is_bounded_and_the_oldest_goes_first(self) -> None:
        made = [token({"n": n}) for n in range(7)]
        with patch.object(tokens_module, "CACHED", 5):
            for raw in made:
                self.check(raw)
                assert len(self.tokens) <= 5
        assert [self.tokens.known(raw) for raw in made] == [False] * 2 + [True] * 5
        self.check(made[0])

    def test_forged_tokens_evict_nothing(self) -> None:
        raw = token({})
        self.check(raw)
        with patch.object(tokens_module, "CACHED", 1):
            for n in range(10):
                self.refuses(token({"n": n}, with_hmac(OTHER_KEY)))
        assert self.tokens.known(raw)

    def test_the_tokens_of_a_queue_key_are_removed_with_it(self) -> None:
        stale = [token({"queue_key": "old", "n": n}) for n in range(3)]
        fresh = [token({"queue_key": "new"}), token({})]
        for raw in stale + fresh:
            self.check(raw)
        self.tokens.forget_key(b"old")
        assert [self.tokens.known(raw) for raw in stale + fresh] == [False] * 3 + [True] * 2

    def test_it_is_counted(self) -> None:
        memory = MemoryBudget(0)
        self.tokens = TokenVerifier(SecretRing([hmac_secret()]), memory)
        made = [token({"queue_key": "q", "permissions": ["x" * n, "y"]}) for n in range(2, 9)]
        with patch.object(tokens_module, "CACHED", 5):
            for raw in made:
                self.check(raw)
                assert memory.used == memory.cached > 0
        assert memory.used > sum(map(len, made[2:]))
        self.tokens.forget_key(b"q")
        assert memory.used == 0
        self.check(made[0])
        self.tokens.replace(self.tokens.ring)
        assert (memory.used, len(self.tokens)) == (0, 0)

    def test_long_tokens_are_bounded_by_their_bytes(self) -> None:
        memory = MemoryBudget(0)
        with patch.object(tokens_module, "_MAX_BYTES", 100_000):
            self.tokens = TokenVerifier(SecretRing([hmac_secret()]), memory)
            for n in range(21):
                self.check(token({"sub": "x" * 10_000, "n": n}))
                assert memory.used <= 100_000
        assert 0 < len(self.tokens) < 10

    def test_it_is_emptied_when_the_memory_is_full(self) -> None:
        memory = MemoryBudget(50_000)
        self.tokens = TokenVerifier(SecretRing([hmac_secret()]), memory)
        raw = token({"sub": "ada"})
        self.check(raw)
        memory.add(50_000)
        assert (memory.used, self.tokens.known(raw)) == (50_000, False)
        assert self.check(raw).subject == "ada"


class NonsenseTests(TokenCase):
    """Arbitrary bytes"""

    @given(st.binary(max_size=300))
    @example(b"")
    @example(b"..")
    @example(b"...")
    @example(b"." * 255)
    @example(b"\xff.\xff.\xff")
    def test_any_bytes_are_refused(self, raw: bytes) -> None:
        self.refuses(raw)

    @given(st.lists(st.binary(max_size=60).map(part), max_size=5))
    @example([])
    @example([b"", b"", b""])
    @example([part(b'{"alg":"none"}'), part(b"{}"), b""])
    @example([part(b"[]"), part(b"[]"), b""])
    def test_any_parts_are_refused(self, parts: list[bytes]) -> None:
        self.refuses(b".".join(parts))

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["exp", "nbf", "sub", "permissions", "queue_key", "x"]),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=8,
        ),
        st.dictionaries(
            st.sampled_from(["kid", "b64", "crit", "typ", "zip"]), st.none() | st.text()
        ),
    )
    @example({"sub": "a\ud800"}, {})
    @example({"queue_key": "\ud800"}, {})
    @example({"exp": 10**400}, {})
    @example({"nbf": float("-inf")}, {})
    @example({"exp": float("nan")}, {})
    @example({"exp": True}, {})
    @example({"permissions": "*"}, {})
    @example([], {})
    @example({}, {"kid": "\ud800"})
    def test_any_signed_claims_are_a_token_or_refused(
        self, claims: dict[str, object], header: dict[str, object]
    ) -> None:
        try:
            found = self.check(token(claims, None, "HS256", **header))
        except BadToken:
            return
        assert isinstance(found.permissions, frozenset)

    def test_a_deeply_nested_header_is_refused(self) -> None:
        for header in (b"[" * 100_000, b'{"alg":' * 100_000):
            self.refuses(put_together(header, b"{}", with_hmac()))


class AcceptanceTests(TokenCase):
    """iss, aud, and tokens that are denied"""

    def test_the_issuer_and_the_audience_of_a_secret(self) -> None:
        secret = replace(hmac_secret(), issuer="https://a", audience=frozenset({"x", "y"}))
        self.tokens.replace(SecretRing([secret, public_secret()]))
        for audience in ("x", ["z", "y"]):
            assert self.check(token({"iss": "https://a", "aud": audience}))
        for claims, match in (
            ({"aud": "x"}, "iss: another issuer"),
            ({"iss": "https://b", "aud": "x"}, "iss: another issuer"),
            ({"iss": ["https://a"], "aud": "x"}, "iss: another issuer"),
            ({"iss": "https://a"}, "aud: for another audience"),
            ({"iss": "https://a", "aud": ["z", 1, None, ["x"]]}, "aud: for another audience"),
            ({"iss": "https://a", "aud": {"x": 1}}, "aud: for another audience"),
        ):
            self.refuses(token(claims), match=match)
        # Another secret has no such conditions.
        assert self.check(token({"sub": "ada"}, PRIVATE.sign, "EdDSA"))

    def test_tokens_that_are_denied(self) -> None:
        secret = hmac_secret()
        raws = [token({"sub": "ada", "jti": "1"}), token({"sub": "bob", "jti": 2}), token({})]
        ada, bob, nobody = map(self.check, raws)
        self.tokens.replace(SecretRing([secret], DenyList(frozenset({"2"}), frozenset({"ada"}))))
        assert not self.tokens.valid(ada, START)
        assert not self.tokens.valid(bob, START)
        assert self.tokens.valid(nobody, START)
        self.refuses(raws[0], match="the subject is denied")
        self.refuses(raws[1], match="the token is denied")
        self.tokens.replace(SecretRing([secret]))
        assert self.tokens.valid(ada, START)

    def test_an_added_condition_ends_subscriptions_that_do_not_meet_it(self) -> None:
        good, bad = self.check(token({"aud": "x"})), self.check(token({}))
        self.tokens.replace(SecretRing([replace(hmac_secret(), audience=frozenset({"x"}))]))
        assert self.tokens.valid(good, START)
        assert not self.tokens.valid(bad, START)
