"""The configuration's secrets: ``[keys.ID]`` tables and ``secret-file``."""

from __future__ import annotations

from datetime import UTC, date, datetime
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.master_secrets import MasterSecret
from pubsub.errors import ConfigurationError
from pubsub.server.configuration import CommandLine, merge
from pubsub.server.file_tables import read_file
from tests.unit.fakes import START, scratch
from tests.unit.tokens import KEY, OTHER_KEY, PUBLIC_PEM

DATE = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


class KeysCase(SynchronousTestCase):
    """Files with an HMAC secret, a weak one and a public key."""

    def setUp(self) -> None:
        self.directory = scratch(self)
        self.strong = self.write("strong", KEY)
        self.other = self.write("other", OTHER_KEY)
        self.weak = self.write("weak", b"weak\n")
        self.public = self.write("public", PUBLIC_PEM)

    def write(self, name: str, data: bytes) -> str:
        path = self.directory / name
        path.write_bytes(data)
        path.chmod(0o600)
        return str(path)

    def secrets(self, keys: object, **settings: object) -> list[MasterSecret]:
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        return list(merge({}, CommandLine(given), {"keys": keys}).secrets)

    def refuses(self, pattern: str, keys: object, **settings: object) -> None:
        with pytest.raises(ConfigurationError, match=pattern) as caught:
            self.secrets(keys, **settings)
        assert "\n" not in str(caught.value)


class TableTests(KeysCase):
    """[keys.ID]"""

    def test_without_tables_there_is_no_secret(self) -> None:
        assert merge({}, CommandLine(), {}).secrets == []
        assert self.secrets({}) == []

    def test_a_secret_file_is_for_hs256_by_default(self) -> None:
        keys: dict[str, dict[str, Any]] = {"a": {"secret-file": self.strong}}
        assert self.secrets(keys) == [MasterSecret("a", "HS256", KEY, inf, table="a")]
        for algorithm in ("HS256", "HS384", "HS512"):
            keys["a"]["algorithm"] = algorithm
            assert self.secrets(keys) == [MasterSecret("a", algorithm, KEY, inf, table="a")]

    def test_a_public_key_file_is_for_eddsa(self) -> None:
        for extra in ({}, {"algorithm": "EdDSA"}):
            (secret,) = self.secrets({"p": {"public-key-file": self.public, **extra}})
            assert (secret.id, secret.algorithm) == ("p", "EdDSA")

    def test_several_tables_are_several_secrets(self) -> None:
        keys = {
            "2026-01": {"secret-file": self.strong, "ends": DATE},
            "2026-02": {"secret-file": self.other, "ends": "2023-11-14T22:13:20Z"},
        }
        assert self.secrets(keys) == [
            MasterSecret("2026-01", "HS256", KEY, START, table="2026-01"),
            MasterSecret("2026-02", "HS256", OTHER_KEY, START, table="2026-02"),
        ]

    def test_a_toml_file_with_every_key(self) -> None:
        path = self.write("pubsub.toml", b'''
            [keys.old]
            secret-file = "%b"
            algorithm = "HS512"
            ends = 2023-11-14T22:13:20Z

            [keys."a b"]
            public-key-file = "%b"
            ''' % (self.strong.encode(), self.public.encode()))  # fmt: skip
        old, public = merge({}, CommandLine(), read_file(path)).secrets
        assert old == MasterSecret("old", "HS512", KEY, START, table="old")
        assert (public.id, public.algorithm, public.ends) == ("a b", "EdDSA", inf)

    def test_a_weak_secret_must_be_allowed(self) -> None:
        keys = {"w": {"secret-file": self.weak}}
        self.refuses(r"^secret 'w': .*fewer than 32; .*--allow-weak-secret$", keys)
        assert self.secrets(keys, allow_weak_secret=1) == [
            MasterSecret("w", "HS256", b"weak", inf, table="w")
        ]


class MistakeTests(KeysCase):
    """Invalid tables"""

    def test_a_secret_in_the_file_itself_is_refused_and_not_shown(self) -> None:
        with pytest.raises(ConfigurationError, match=r"^\[keys.a\] secret: .*secret-file$") as e:
            self.secrets({"a": {"secret": "hidden bytes"}})
        assert "hidden" not in str(e.value)

    def test_values_in_place_of_tables_are_refused(self) -> None:
        for keys in (1, "a", [], ["a"], {"a": 1}, {"a": [{"secret-file": self.strong}]}):
            self.refuses(r"^keys: expected tables, \[keys.ID\]$", keys)

    def test_unknown_keys_get_a_hint(self) -> None:
        self.refuses(
            r"^\[keys.a\] secretfile: no such setting; did you mean secret-file\?$",
            {"a": {"secretfile": self.strong}},
        )
        self.refuses(r"^\[keys.a\] kid: no such", {"a": {"secret-file": self.strong, "kid": "a"}})

    def test_algorithm_and_file_must_agree(self) -> None:
        for entry in (
            {},
            {"algorithm": "HS256"},
            {"algorithm": "EdDSA"},
            {"algorithm": "EdDSA", "secret-file": self.strong},
            {"algorithm": "HS256", "public-key-file": self.public},
            {"algorithm": "none", "secret-file": self.strong},
            {"algorithm": "RS256", "public-key-file": self.public},
            {"algorithm": ["HS256"], "secret-file": self.strong},
            {"secret-file": 1},
            {"secret-file": ["x"]},
            {"public-key-file": 1},
        ):
            self.refuses(
                r"^\[keys.a\] expected secret-file with an algorithm of HS256, ", {"a": entry}
            )

    def test_an_invalid_end_is_refused(self) -> None:
        for ends in ("soon", 1_700_000_000, True, date(2023, 11, 14), [DATE]):
            entry = {"secret-file": self.strong, "ends": ends}
            self.refuses(r"^\[keys.a\] ends: ", {"a": entry})

    def test_the_error_of_an_unusable_file_names_its_secret(self) -> None:
        missing = str(self.directory / "missing")
        self.refuses("^secret 'a': .*No such file", {"a": {"secret-file": missing}})
        self.refuses("^secret 'a': .*No such file", {"a": {"public-key-file": missing}})
        self.refuses("^secret 'a': .*not a PEM", {"a": {"public-key-file": self.strong}})
        self.refuses("null (byte|character)", {"a": {"secret-file": "a\0b"}})

    @given(
        st.dictionaries(
            st.text(st.characters(exclude_categories=["C", "Z"]), max_size=3),
            st.dictionaries(
                st.sampled_from(["secret-file", "public-key-file", "algorithm", "ends", "secret"]),
                st.sampled_from(["HS256", "EdDSA", "", ".", 1, None, 1.5, [], {}, True, DATE]),
            ),
            max_size=3,
        )
    )
    def test_any_table_without_a_usable_file_is_refused(self, keys: dict[str, Any]) -> None:
        if keys:
            self.refuses("^secret |^.keys", keys)


class SecretFileTests(KeysCase):
    """secret-file, on the line or the top level"""

    def test_it_is_added_to_the_tables(self) -> None:
        plain = MasterSecret("secret-file", "HS256", OTHER_KEY, inf)
        assert self.secrets({}, secret_file=self.other) == [plain]
        tables = {"a": {"secret-file": self.strong}}
        assert self.secrets(tables, secret_file=self.other) == [
            MasterSecret("a", "HS256", KEY, inf, table="a"),
            plain,
        ]

    def test_the_command_line_overrides_the_top_level(self) -> None:
        document = {"secret-file": self.strong}
        assert merge({}, CommandLine(), document).secrets[0].key == KEY
        line = CommandLine({"secret-file": self.other})
        assert [secret.key for secret in merge({}, line, document).secrets] == [OTHER_KEY]

    def test_a_weak_one_must_be_allowed(self) -> None:
        self.refuses("^secret 'secret-file': .*fewer than 32", {}, secret_file=self.weak)
        (secret,) = self.secrets({}, secret_file=self.weak, allow_weak_secret=1)
        assert secret.key == b"weak"

    def test_a_missing_file_is_refused(self) -> None:
        self.refuses("No such file", {}, secret_file=str(self.directory / "missing"))

    def test_an_id_given_twice_is_refused(self) -> None:
        """A ring has one secret for each id; the other would be dropped silently."""
        keys = {"secret-file": {"secret-file": self.strong}}
        self.refuses("secret-file", keys, secret_file=self.other)
