"""Signatures of tokens whose header is known: the outcome is that of an unknown one."""

from __future__ import annotations

import json
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.master_secrets import MasterSecret, SecretRing
from pubsub.broker.credentials.tokens import Token, TokenVerifier
from pubsub.errors import BadToken
from tests.unit.fakes import START
from tests.unit.tokens import (
    KEY,
    OTHER_KEY,
    PRIVATE,
    Sign,
    hmac_secret,
    public_secret,
    put_together,
    token,
    with_hmac,
)

RING = SecretRing(
    [hmac_secret("old", OTHER_KEY, ends=START + 10), hmac_secret("new"), public_secret()]
)
SIGNERS = [with_hmac(), with_hmac(OTHER_KEY), with_hmac(b"wrong"), PRIVATE.sign]
ALGORITHMS = ["HS256", "HS512", "EdDSA"]
KIDS = [None, "old", "new", "public", "none"]


def outcome(tokens: TokenVerifier, raw: bytes, now: float = START) -> Token | str:
    """Return the token, or why it is refused."""
    try:
        return tokens.check(raw, now)
    except BadToken as problem:
        return str(problem)


def signed(subject: str, sign: Sign, algorithm: str, kid: str | None) -> bytes:
    """Return a token; without ``kid`` its header has none."""
    return token({"sub": subject}, sign, algorithm, **({} if kid is None else {"kid": kid}))


def warmed() -> TokenVerifier:
    """Return a verifier that knows every header with which a token can be good."""
    tokens = TokenVerifier(RING)
    for sign, algorithm, kid in product(SIGNERS, ALGORITHMS, KIDS):
        outcome(tokens, signed("first", sign, algorithm, kid))
    return tokens


class TokenHeaderTests(SynchronousTestCase):
    """TokenSignatures"""

    @given(
        st.sampled_from(SIGNERS),
        st.sampled_from(ALGORITHMS),
        st.sampled_from(KIDS),
        st.none() | st.tuples(st.integers(0, 300), st.sampled_from(b"Ab1_-.=\n")),
        st.sampled_from([START, START + 10]),
    )
    def test_the_outcome_is_that_of_an_unknown_header(
        self,
        sign: Sign,
        algorithm: str,
        kid: str | None,
        change: tuple[int, int] | None,
        now: float,
    ) -> None:
        raw = bytearray(signed("ada", sign, algorithm, kid))
        if change is not None:
            raw[change[0] % len(raw)] = change[1]
        expected = outcome(TokenVerifier(RING), bytes(raw), now)
        assert outcome(warmed(), bytes(raw), now) == expected

    def test_many_headers(self) -> None:
        tokens = TokenVerifier(RING)
        for _ in range(2):
            for number in range(200):
                header = json.dumps({"alg": "HS256", "typ": str(number) * 20}).encode()
                raw = put_together(header, b'{"sub":"ada"}', with_hmac())
                assert isinstance(outcome(tokens, raw), Token)
                forged = put_together(header, b'{"sub":"eve"}', with_hmac(b"wrong"))
                assert outcome(tokens, forged) == "no secret verifies the token"

    def test_a_replaced_secret_with_the_same_id(self) -> None:
        tokens = TokenVerifier(SecretRing([hmac_secret("main")]))
        assert isinstance(outcome(tokens, token({"sub": "1"})), Token)
        assert isinstance(outcome(tokens, token({"sub": "2"})), Token)
        tokens.replace(SecretRing([hmac_secret("main", OTHER_KEY)]))
        assert outcome(tokens, token({"sub": "3"})) == "no secret verifies the token"
        assert isinstance(outcome(tokens, token({"sub": "4"}, with_hmac(OTHER_KEY))), Token)

    def test_parts_that_are_missing_or_too_many(self) -> None:
        tokens = warmed()
        start, claims, signature = token({"sub": "ada"}).split(b".")
        for parts in (
            [start], [start, claims], [start, claims, b""], [start, b"", signature],
            [start, claims, signature, signature], [start, claims, signature, b""],
        ):  # fmt: skip
            assert isinstance(outcome(tokens, b".".join(parts)), str), parts

    def test_claims_that_are_no_object(self) -> None:
        tokens = warmed()
        for claims in (b"[]", b"1", b"{", b"", b"\xff", b"[" * 5000):
            raw = put_together(b'{"alg": "HS256", "typ": "JWT"}', claims, with_hmac())
            assert outcome(tokens, raw) == "malformed token"

    def test_a_header_with_conditions_is_not_skipped(self) -> None:
        tokens = warmed()
        for header in (
            {"alg": "HS256", "crit": ["exp"], "exp": 1}, {"alg": "HS256", "b64": False},
            {"alg": "HS256", "b64": False, "crit": ["b64"]}, {"alg": "none"},
        ):  # fmt: skip
            for _ in range(2):
                raw = put_together(json.dumps(header).encode(), b'{"sub":"ada"}', with_hmac())
                assert isinstance(outcome(tokens, raw), str), header

    def test_secrets_of_other_algorithms_are_not_tried(self) -> None:
        ring = SecretRing([hmac_secret("a"), MasterSecret("b", "HS512", KEY)])
        tokens = TokenVerifier(ring)
        for algorithm in ("HS256", "HS512", "HS256", "HS512"):
            raw = token({"sub": "ada"}, with_hmac(KEY, algorithm), algorithm)
            found = outcome(tokens, raw)
            assert isinstance(found, Token)
            assert found.secret.algorithm == algorithm
