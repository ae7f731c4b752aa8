"""The tables ``[keys.ID]`` with a ``jwks-url``."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.plugin import installed_protocols
from pubsub.server.configuration import CommandLine, Config, merge
from pubsub.server.configuration_changes import compare, describe
from pubsub.server.configuration_check import read_and_check
from tests.unit.fakes import scratch

URL = "https://login.example.com/keys"


def read(id: str = "corp", **settings: object) -> Config:
    """Return the configuration with one table of keys."""
    entry = {name.replace("_", "-"): value for name, value in settings.items()}
    return merge(installed_protocols(), CommandLine(), {"keys": {id: entry}})


class SettingTests(SynchronousTestCase):
    """Accepted tables"""

    def problem(self, id: str = "corp", **settings: object) -> str:
        with pytest.raises(ConfigurationError) as caught:
            read(id, **settings)
        return str(caught.value)

    def test_a_source_with_all_settings(self) -> None:
        (source,) = read(
            jwks_url=URL, jwks_refresh=60, issuer="https://a", audience="x", ends="2030-01-01"
        ).key_sources
        assert (source.id, source.url, source.ca, source.seconds) == ("corp", URL, "", 60)
        assert source.issuer == "https://a"
        assert source.audience == {"x"}

    def test_it_is_an_issuer_without_keys(self) -> None:
        config = read(jwks_url=URL)
        assert config.secrets == []
        assert config.key_sources[0].seconds == 300
        assert config.ring.has_issuers

    def test_http_is_for_loopback(self) -> None:
        for host in ("127.0.0.1", "127.8.0.1:8080", "[::1]", "localhost"):
            assert read(jwks_url=f"http://{host}/keys").key_sources
        for host in ("192.0.2.1", "localhost.example.com", "127.0.0.1.example.com"):
            assert "begins with https:" in self.problem(jwks_url=f"http://{host}/keys")

    def test_urls_that_are_none(self) -> None:
        for url in ("", "keys", "https://", "https:///x", "https://a:x/", "https://a:0/",
                    "https://[", "https://a b/", "https://a/\r\nX: y", "https://ä/"):  # fmt: skip
            assert "jwks-url: expected a URL" in self.problem(jwks_url=url), url
        for url in ("ftp://a/", "file:///etc/passwd"):
            assert "expected a URL" in self.problem(jwks_url=url)
        for url in ("https://ada:secret@a/", "https://a/#x"):
            found = self.problem(jwks_url=url)
            assert "without a user" in found
            assert "secret" not in found
        assert "expected text" in self.problem(jwks_url=["https://a"])

    def test_one_kind_of_keys_in_a_table(self) -> None:
        assert "give one of them" in self.problem(jwks_url=URL, secret_file="x")
        assert "no such setting" in self.problem(jwks_url=URL, algorithm="HS256")
        assert "without /" in self.problem("a/b", jwks_url=URL)

    def test_refresh_and_authorities(self) -> None:
        for seconds in (0, 0.5, 86_401, "often", None):
            assert "jwks-refresh: expected" in self.problem(jwks_url=URL, jwks_refresh=seconds)
        path = scratch(self) / "ca"
        assert "jwks-ca" in self.problem(jwks_url=URL, jwks_ca=str(path))
        path.write_text("no certificate")
        assert "jwks-ca" in self.problem(jwks_url=URL, jwks_ca=str(path))


class CheckTests(SynchronousTestCase):
    """check-config, and the changes of a reload"""

    def test_the_settings_are_checked_and_nothing_is_fetched(self) -> None:
        path: Path = scratch(self) / "pubsub.toml"
        # A fetch would need a reactor, which a check does not have.
        path.write_text(f'[keys.corp]\njwks-url = "{URL}"\n')
        assert read_and_check(str(path)).key_sources[0].url == URL
        path.write_text('[keys.corp]\njwks-url = "http://login.example.com/"\n')
        with pytest.raises(ConfigurationError):
            read_and_check(str(path))

    def test_changes_are_named_without_the_query(self) -> None:
        old = describe(read(jwks_url=f"{URL}?code=5ecret"))
        new = describe(read(jwks_url=f"{URL}/2?code=5ecret", issuer="https://a"))
        changes = compare(old, new)
        (line,) = changes.lines()
        assert line.startswith("[keys.corp]: ")
        assert "(at once)" in line
        assert "5ecret" not in str((old, new))
        assert not changes.need_restart
        gone = compare(new, describe(merge(installed_protocols(), CommandLine(), {})))
        assert gone.secrets_removed == ["corp"]
