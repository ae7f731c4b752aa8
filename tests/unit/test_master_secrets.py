"""The ring of secrets, and their files."""

from __future__ import annotations

import json
import os
from datetime import UTC, date, datetime, timedelta, timezone
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import SkipTest

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import example, given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.master_secrets import DenyList, MasterSecret, SecretRing
from pubsub.broker.credentials.secret_files import (
    MIN_SECRET,
    key_set,
    parse_end,
    read_denied,
    read_key_set,
    read_public_key,
    read_secret,
)
from pubsub.broker.credentials.tokens import TokenVerifier
from pubsub.errors import ConfigurationError
from tests.unit.fakes import START, scratch
from tests.unit.streams import logged
from tests.unit.tokens import KEY, OTHER_KEY, PRIVATE, PUBLIC_PEM, hmac_secret, public_secret


class RingTests(SynchronousTestCase):
    """SecretRing"""

    def test_an_empty_ring_has_nothing(self) -> None:
        ring = SecretRing()
        assert not ring.has_issuers
        assert list(ring) == []
        assert ring.candidates(None, "HS256", START) == []

    def test_secrets_are_compared_by_content_and_not_by_id_alone(self) -> None:
        ring = SecretRing([hmac_secret("a"), hmac_secret("b", OTHER_KEY)])
        assert ring.has_issuers
        assert [secret.id for secret in ring] == ["a", "b"]
        assert hmac_secret("a") in ring
        assert hmac_secret("a", OTHER_KEY) not in ring
        assert hmac_secret("a", algorithm="HS512") not in ring
        assert hmac_secret("a", ends=START) not in ring
        assert hmac_secret("c") not in ring

    def test_candidates_have_the_algorithm(self) -> None:
        secrets = [hmac_secret("a"), hmac_secret("b", algorithm="HS512"), public_secret("c")]
        ring = SecretRing(secrets)
        for secret in secrets:
            assert ring.candidates(None, secret.algorithm, START) == [secret]
        others: tuple[object, ...] = ("none", "hs256", "RS256", "", None, 1, ["HS256"], {})
        for algorithm in others:
            assert ring.candidates(None, algorithm, START) == []

    def test_a_key_id_selects_its_secret(self) -> None:
        first, second = hmac_secret("a"), hmac_secret("b", OTHER_KEY)
        ring = SecretRing([first, second, public_secret("c")])
        assert ring.candidates(None, "HS256", START) == [first, second]
        assert ring.candidates("b", "HS256", START) == [second]
        assert ring.candidates("c", "HS256", START) == []
        assert ring.candidates("", "HS256", START) == []
        assert ring.candidates("nowhere", "HS256", START) == []

    def test_a_secret_ends_exactly_at_its_second(self) -> None:
        ending = hmac_secret(ends=START)
        ring = SecretRing([ending])
        assert ring.candidates(None, "HS256", START - 0.001) == [ending]
        assert ring.candidates(None, "HS256", START) == []

    def test_a_secret_does_not_show_its_key(self) -> None:
        secret = MasterSecret("a", "HS256", b"hidden bytes")
        assert "hidden" not in repr(secret)
        assert "'a'" in repr(secret)


class FileCase(SynchronousTestCase):
    """A file with a secret."""

    def setUp(self) -> None:
        self.path = scratch(self) / "secret"

    def write(self, data: bytes, mode: int = 0o600) -> None:
        # Only root could write to the one before, if its mode has no write permission.
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(data)
        self.path.chmod(mode)


class SecretFileTests(FileCase):
    """read_secret"""

    def read(self, allow_weak: bool = False) -> MasterSecret:
        return read_secret("main", str(self.path), "HS384", START, allow_weak)

    def refuses(self, pattern: str, allow_weak: bool = False) -> None:
        with pytest.raises(ConfigurationError, match=pattern) as caught:
            self.read(allow_weak)
        assert str(caught.value).startswith("secret 'main': ")
        assert "\n" not in str(caught.value)

    def test_the_secret_is_the_content_of_the_file(self) -> None:
        self.write(KEY)
        assert self.read() == MasterSecret("main", "HS384", KEY, START)

    def test_one_newline_at_the_end_is_not_part_of_it(self) -> None:
        for data, key in ((b"\n", b""), (b"\n\n", b"\n"), (b" ", b" "), (b"\r\n", b"\r")):
            self.write(OTHER_KEY + data)
            assert self.read().key == OTHER_KEY + key

    def test_fewer_than_32_bytes_are_refused(self) -> None:
        self.write(b"x" * MIN_SECRET)
        self.read()
        for data in (b"x" * (MIN_SECRET - 1), b"x" * (MIN_SECRET - 1) + b"\n", b""):
            self.write(data)
            self.refuses("bytes, fewer than 32; .*--allow-weak-secret")

    def test_a_short_secret_may_be_allowed_but_not_an_empty_one(self) -> None:
        self.write(b"x\n")
        assert self.read(allow_weak=True).key == b"x"
        for data in (b"", b"\n"):
            self.write(data)
            self.refuses("is empty", allow_weak=True)

    def test_a_refused_secret_is_not_shown(self) -> None:
        self.write(b"short secret")
        with pytest.raises(ConfigurationError) as caught:
            self.read()
        assert "short secret" not in str(caught.value)

    def test_a_file_that_cannot_be_read_is_refused(self) -> None:
        self.refuses("No such file")
        self.path.mkdir()
        self.refuses("directory")

    def test_a_file_that_others_can_read_is_warned_about(self) -> None:
        lines = logged(self)
        for mode in (0o600, 0o400, 0o700):
            self.write(KEY, mode)
            self.read()
        assert lines == []
        for mode in (0o640, 0o604, 0o644):
            self.write(b"hidden " * 5, mode)
            if os.geteuid() == 0:
                os.chown(self.path, 65_534, 65_534)
            self.read()
            assert f"{self.path} can be read by others" in lines[-1]
            assert "hidden" not in lines[-1]
        assert len(lines) == 3

    def test_a_file_that_root_gives_to_the_group_of_the_broker(self) -> None:
        if os.geteuid() != 0:
            raise SkipTest("only root has files of root")
        lines = logged(self)
        for mode in (0o440, 0o640):
            self.write(KEY, mode)
            self.read()
        assert lines == []
        self.write(KEY, 0o644)
        self.read()
        assert lines == [f"secret 'main': {self.path} can be read by others; chmod 600 it"]


class PublicKeyFileTests(FileCase):
    """read_public_key"""

    def refuses(self, pattern: str) -> None:
        with pytest.raises(ConfigurationError, match=pattern) as caught:
            read_public_key("public", str(self.path), inf)
        assert str(caught.value).startswith("secret 'public': ")
        assert "\n" not in str(caught.value)

    def test_an_ed25519_key_verifies(self) -> None:
        self.write(PUBLIC_PEM)
        secret = read_public_key("public", str(self.path), START)
        assert (secret.id, secret.algorithm, secret.ends) == ("public", "EdDSA", START)
        secret.key.verify(PRIVATE.sign(b"data"), b"data")
        assert secret in SecretRing([read_public_key("public", str(self.path), START)])

    def test_other_contents_are_refused(self) -> None:
        private = PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        for data in (b"", b"nonsense", KEY, PUBLIC_PEM[:60], private, PUBLIC_PEM[27:]):
            self.write(data)
            self.refuses("is not a PEM public key")

    def test_a_key_of_another_kind_is_refused(self) -> None:
        keys: list[Any] = [generate_private_key(SECP384R1()), rsa.generate_private_key(65537, 1024)]
        for private in keys:
            public = private.public_key()
            self.write(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
            self.refuses("is not a key of Ed25519, P-256, or RSA with 2048 bits or more")

    def test_the_key_decides_the_algorithm(self) -> None:
        keys: list[tuple[Any, str]] = [
            (generate_private_key(SECP256R1()), "ES256"),
            (rsa.generate_private_key(65537, 2048), "RS256"),
        ]
        for private, algorithm in keys:
            public = private.public_key()
            self.write(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
            secret = read_public_key("public", str(self.path), START)
            assert secret.algorithm == algorithm
            tokens = TokenVerifier(SecretRing([secret]))
            raw = jwt.encode({"sub": "ada"}, private, algorithm).encode()
            assert tokens.check(raw, START - 1).subject == "ada"

    def test_a_missing_file_is_refused(self) -> None:
        self.refuses("No such file")

    def test_an_invalid_path_is_refused(self) -> None:
        self.path = Path("a\0b")
        self.refuses("a\0b")


class EndTests(SynchronousTestCase):
    """parse_end"""

    def test_a_date_and_time_in_every_format(self) -> None:
        moment = datetime(2023, 11, 14, 22, 13, 20)
        east = timezone(timedelta(hours=2))
        for value in (
            moment,
            moment.replace(tzinfo=UTC),
            moment.replace(hour=0, day=15, tzinfo=east),
            "2023-11-14T22:13:20",
            "2023-11-14 22:13:20Z",
            "2023-11-15T00:13:20+02:00",
        ):
            assert parse_end(value) == START

    def test_a_date_begins_at_midnight_in_utc(self) -> None:
        assert parse_end("1970-01-02") == 86_400

    def test_anything_else_is_refused(self) -> None:
        day = date(2023, 11, 14)
        wrong: tuple[object, ...] = (1_700_000_000, 1.5, True, None, [], day, "soon", "", b"2023")
        for value in wrong:
            with pytest.raises(ValueError, match=r"\w"):
                parse_end(value)

    @given(st.datetimes(timezones=st.just(UTC)))
    @example(datetime(1970, 1, 1, tzinfo=UTC))
    @example(datetime.min.replace(tzinfo=UTC))
    @example(datetime.max.replace(tzinfo=UTC))
    def test_text_and_date_are_equivalent(self, moment: datetime) -> None:
        assert parse_end(moment.isoformat()) == parse_end(moment) == moment.timestamp()


class KeySetTests(SynchronousTestCase):
    """JSON Web Key Sets (RFC 7517)"""

    def entry(self, kid: str | None = None, **members: object) -> dict[str, Any]:
        found = json.loads(OKPAlgorithm.to_jwk(PRIVATE.public_key()))
        return {**found, **({} if kid is None else {"kid": kid}), **members}

    def test_the_keys_of_tokens(self) -> None:
        elliptic = generate_private_key(SECP256R1())
        listed = [
            self.entry("first", alg="EdDSA", use="sig"),
            self.entry("for-encryption", use="enc"),
            self.entry("another-algorithm", alg="RS256"),
            json.loads(ECAlgorithm.to_jwk(elliptic.public_key())),
            {"kty": "oct", "k": "AAAA", "kid": "shared"},
            {"kty": "unknown"},
            "no object",
            None,
        ]
        found = key_set("login", {"keys": listed}, START)
        assert [(one.id, one.algorithm, one.kid, one.ends) for one in found] == [
            ("login/first", "EdDSA", "first", START),
            ("login/3", "ES256", "", START),
        ]
        ring = SecretRing(found)
        assert [one.id for one in ring.candidates("first", "EdDSA", 0)] == ["login/first"]
        assert not ring.candidates("first", "ES256", 0)
        assert [one.id for one in ring.candidates(None, "ES256", 0)] == ["login/3"]

    def test_invalid_key_sets(self) -> None:
        others: list[object] = [None, [], {}, {"keys": {}}]
        for other in others:
            with pytest.raises(ValueError, match="not a JSON Web Key Set"):
                key_set("login", other)
        for keys in (list[object](), [{"kty": "oct", "k": "AAAA"}]):
            with pytest.raises(ValueError, match="no key for EdDSA, ES256, RS256"):
                key_set("login", {"keys": keys})

    def test_files(self) -> None:
        path = Path(self.enterContext(TemporaryDirectory())) / "set"
        path.write_text(json.dumps({"keys": [self.entry("a")]}))
        (secret,) = read_key_set("login", str(path), START)
        assert secret.id == "login/a"
        for content in ("", "{", "[]", json.dumps({"keys": []})):
            path.write_text(content)
            with pytest.raises(ConfigurationError, match=r"^secret 'login': .*set: "):
                read_key_set("login", str(path), START)


class DenyFileTests(SynchronousTestCase):
    """token-deny-file"""

    def setUp(self) -> None:
        self.path = Path(self.enterContext(TemporaryDirectory())) / "denied"

    def test_lines(self) -> None:
        self.path.write_text("# gone\n\njti 1 2\nsub  ada \njti 3\n")
        assert read_denied(str(self.path)) == DenyList(frozenset({"1 2", "3"}), frozenset({"ada"}))

    def test_mistakes(self) -> None:
        for content in ("jti", "sub ", "nobody", "iss x"):
            self.path.write_text(f"jti 1\n{content}\n")
            with pytest.raises(ConfigurationError, match="line 2: expected jti ID or sub SUBJECT"):
                read_denied(str(self.path))
        self.path.write_bytes(b"\xff")
        with pytest.raises(ConfigurationError, match="not UTF-8"):
            read_denied(str(self.path))
        with pytest.raises(ConfigurationError, match="No such file"):
            read_denied("/none")
