"""``pubsub context``, and where a command connects."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pytest

from pubsub.commands.bench import _subscribers_at
from pubsub.commands.contexts import Context, changed
from pubsub.commands.destination import DEFAULT_URL, Destination, resolve
from pubsub.errors import ConfigurationError
from tests.unit.command_case import CommandCase, file_steps

CAFE = "cafe://broker.example:7070"


class ContextCase(CommandCase):
    """With a home of its own"""

    def setUp(self) -> None:
        super().setUp()
        self.environment = {"XDG_CONFIG_HOME": str(self.directory / "config")}
        patched = patch.dict("os.environ", self.environment)
        patched.start()
        self.addCleanup(patched.stop)
        self.contexts = self.directory / "config" / "pubsub" / "contexts.json"

    def context(self, *arguments: str) -> str:
        code, out, err = self.run_it("context", *arguments)
        assert (code, err) == (0, "")
        return out

    def resolve(self, environment: dict[str, str] | None = None, **options: str) -> Destination:
        names = (
            "url",
            "context",
            "api",
            "client_id",
            "token_file",
            "tls_ca",
            "tls_cert",
            "tls_key",
            "user",
            "password_file",
        )
        given = {name: options.get(name) for name in names}
        return resolve(given, {**self.environment, **(environment or {})})


class ContextTests(ContextCase):
    """add, list, use, remove, show"""

    def test_a_symbolic_link_stays_one(self) -> None:
        kept = self.directory / "dotfiles" / "contexts.json"
        kept.parent.mkdir()
        self.contexts.parent.mkdir(parents=True)
        self.contexts.symlink_to(kept)
        self.context("add", "home", CAFE)
        self.context("add", "other", CAFE)
        assert self.contexts.is_symlink()
        assert list(json.loads(kept.read_text())["contexts"]) == ["home", "other"]
        self.context("remove", "home")
        assert "home" not in kept.read_text()

    def test_another_command_waits_for_a_change(self) -> None:
        program = Path(sys.executable).with_name("pubsub")
        with changed(self.environment) as contexts:
            other = subprocess.Popen([program, "context", "add", "other", CAFE])
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(1.5)
            contexts.named["home"] = Context(CAFE)
        assert other.wait(60) == 0
        assert set(json.loads(self.contexts.read_text())["contexts"]) == {"home", "other"}

    def test_a_user_without_a_home(self) -> None:
        for directory in ("", "relative"):
            with (
                patch.dict("os.environ", {"XDG_CONFIG_HOME": directory}),
                patch("os.path.expanduser", lambda path: path),
            ):
                code, _, err = self.run_it("context", "list")
                assert (code, err.startswith("there is no context")) == (0, True)
                code, _, err = self.run_it("context", "add", "home", CAFE)
            assert (code, err) == (
                1, "pubsub: this user has no home directory; set XDG_CONFIG_HOME\n",
            )  # fmt: skip

    def test_a_loss_of_power_costs_no_context(self) -> None:
        steps = file_steps(lambda: self.context("add", "here", CAFE))
        assert steps[-3:] == ["sync of a file", "rename", "sync of a directory"]

    def test_a_full_disk(self) -> None:
        self.context("add", "here", CAFE)
        before = self.contexts.read_bytes()
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with patch("os.fsync", side_effect=full):
            line = self.one_line("context", "add", "there", CAFE)
        assert line == f"pubsub: {self.contexts}: No space left on device\n"
        assert self.contexts.read_bytes() == before
        assert [*self.contexts.parent.iterdir()] == [self.contexts]

    def test_a_disk_that_fails_at_the_last_step(self) -> None:
        self.context("add", "home", CAFE)
        failing = OSError(errno.EIO, "Input/output error")
        with patch("pubsub.commands.contexts.sync_names", side_effect=failing):
            error = self.one_line("context", "add", "work", CAFE)
        assert f"{self.contexts}: Input/output error" in error
        assert [one.name for one in self.contexts.parent.iterdir()] == ["contexts.json"]

    def test_only_the_owner_can_read_the_file(self) -> None:
        self.context("add", "home", CAFE)
        assert stat.S_IMODE(self.contexts.stat().st_mode) == 0o600
        assert stat.S_IMODE(self.contexts.parent.stat().st_mode) == 0o700
        self.contexts.chmod(0o644)
        self.context("add", "work", CAFE)
        assert stat.S_IMODE(self.contexts.stat().st_mode) == 0o600
        assert [path.name for path in self.contexts.parent.iterdir()] == ["contexts.json"]

    def test_the_first_one_is_used_until_another_is_chosen(self) -> None:
        assert self.context("add", "home", CAFE) == f"home: {CAFE} (in use)\n"
        assert self.context("add", "work", "nsd://h:1") == "work: nsd://h:1\n"
        assert self.context("list") == f"* home  {CAFE}\n  work  nsd://h:1\n"
        self.context("use", "work")
        assert self.context("list") == f"  home  {CAFE}\n* work  nsd://h:1\n"
        assert json.loads(self.context("show"))["url"] == "nsd://h:1"
        assert json.loads(self.context("show", "home"))["url"] == CAFE
        self.context("add", "third", CAFE)
        self.context("remove", "third")
        assert self.context("list") == f"  home  {CAFE}\n* work  nsd://h:1\n"
        self.context("remove", "work")
        assert self.context("list") == f"  home  {CAFE}\n"
        assert "pubsub context use NAME" in self.one_line("context", "show")

    def test_json(self) -> None:
        self.context("add", "home", CAFE, "--api", DEFAULT_URL, "--client-id", "ada")
        assert json.loads(self.context("list", "--json")) == {
            "name": "home", "current": True, "url": CAFE, "api": DEFAULT_URL, "client_id": "ada",
            "token_file": None, "tls_ca": None, "tls_cert": None, "tls_key": None,
            "user": None, "password_file": None,
        }  # fmt: skip

    def test_a_token_is_referred_to_and_not_kept(self) -> None:
        token = self.file("token", b"secret\n")
        self.context("add", "home", CAFE, "--token-file", token)
        assert "secret" not in self.contexts.read_text()
        assert self.resolve().token({"PUBSUB_TOKEN": "other"}) == "secret"
        assert "No such file" in self.one_line("context", "add", "x", CAFE, "--token-file=/none")

    def test_names_that_exist_or_do_not(self) -> None:
        self.context("add", "home", CAFE)
        assert "--replace" in self.one_line("context", "add", "home", "nsd://h:1")
        self.context("add", "home", "nsd://h:1", "--replace")
        assert self.resolve().url == "nsd://h:1"
        for action in ("use", "remove", "show"):
            assert "pubsub context list" in self.one_line("context", action, "other")
        for name in ("", "a b", "-", "../x", "n" * 65):
            assert "a name has" in self.one_line("context", "add", "--", name, CAFE)

    def test_urls_that_cannot_be_used(self) -> None:
        for url in ("", "host:7070", "cafe://", "cafe://host:99999", "http://[::1"):
            assert "URL" in self.one_line("context", "add", "x", url)
        assert "no client for 'ftp'" in self.one_line("context", "add", "x", "ftp://host")
        error = self.one_line("context", "add", "x", CAFE, "--api", "cafe://host")
        assert "--api: expected a URL with http:// or https://" in error
        error = self.one_line("context", "add", "x", "cafe://ada:hunter2@host:7070")
        assert "PUBSUB_TOKEN" in error
        assert "hunter2" not in error
        assert not self.contexts.exists()
        for url in ("host:7070", "cafe://"):
            with pytest.raises(ConfigurationError, match="expected a URL such as"):
                self.resolve(url=url)

    def test_a_file_that_is_none_of_contexts(self) -> None:
        self.contexts.parent.mkdir(parents=True)
        for text in ("", "[]", "{}", '{"contexts": {"a": {}}}', '{"contexts": {"a": {"url": 1}}}',
                     '{"contexts": {"a": {"url": "u", "more": "x"}}}'):  # fmt: skip
            self.contexts.write_text(text)
            assert "not a file of contexts" in self.one_line("context", "list")
        self.contexts.write_text('{"contexts": {"a": {"url": "nsd://h:1"}}, "current": "gone"}')
        assert self.context("list") == "  a  nsd://h:1\n"

    def test_no_context(self) -> None:
        code, out, err = self.run_it("context", "list")
        assert (code, out) == (0, "")
        assert "pubsub context add NAME URL" in err


class DestinationTests(ContextCase):
    """--url, --context, PUBSUB_URL, the context in use, the default"""

    def test_their_order(self) -> None:
        found = self.resolve()
        assert (found.url, found.api, found.given) == (DEFAULT_URL, DEFAULT_URL, False)
        self.context("add", "home", CAFE, "--api", "http://a:1", "--client-id", "ada")
        self.context("add", "work", "nsd://h:1")
        found = self.resolve()
        assert (found.url, found.api, found.client_id) == (CAFE, "http://a:1", "ada")
        variable = {"PUBSUB_URL": "spot://s:1"}
        assert self.resolve(variable).url == "spot://s:1"
        assert self.resolve(variable, context="work").url == "nsd://h:1"
        assert self.resolve(variable, url="fast://f:1").url == "fast://f:1"
        both: dict[str, Any] = {"url": "fast://f:1", "context": "work"}
        with pytest.raises(click.UsageError):
            self.resolve(**both)

    def test_options_change_a_context(self) -> None:
        self.context("add", "home", CAFE, "--api", "http://a:1", "--client-id", "ada")
        found = self.resolve(api="http://b:1", client_id="bob")
        assert (found.url, found.api, found.client_id) == (CAFE, "http://b:1", "bob")

    def test_the_token_of_a_context_goes_to_its_broker_only(self) -> None:
        token = self.file("token", b"secret\n")
        self.context("add", "home", CAFE, "--token-file", token)
        assert self.resolve(url="cafe://elsewhere:1").token({}) is None
        assert self.resolve({"PUBSUB_URL": "cafe://elsewhere:1"}).token({}) is None
        assert self.resolve(url="cafe://elsewhere:1").token({"PUBSUB_TOKEN": "t"}) == "t"
        with pytest.raises(ConfigurationError, match="empty"):
            self.resolve(token_file=self.file("empty", b"\n")).token({})

    def test_the_token_of_a_context_does_not_go_to_the_api_of_the_environment(self) -> None:
        """Which can be another broker's."""
        token = self.file("token", b"secret\n")
        variable = {"PUBSUB_API": "http://elsewhere:1"}
        self.context("add", "wire", "fast://h:1", "--token-file", token)
        self.context("add", "web", "http://h:2", "--token-file", token)
        for given in ({}, {"context": "wire"}):
            with pytest.raises(ConfigurationError, match="or in the context"):
                self.resolve(variable, **given).api_url()
        self.context("use", "web")
        assert self.resolve(variable).api_url() == "http://h:2"
        # On the command line, either is given to the other.
        found = self.resolve(variable, context="wire", token_file=token)
        assert found.api_url() == "http://elsewhere:1"
        found = self.resolve(variable, context="wire", api="http://a:1")
        assert (found.api_url(), found.token({})) == ("http://a:1", "secret")

    def test_the_secrets_of_a_context_do_not_go_to_subscribers_elsewhere(self) -> None:
        token, password = self.file("token", b"secret\n"), self.file("password", b"sesame\n")
        self.context("add", "a", CAFE, "--token-file", token, "--password-file", password)
        where = self.resolve()
        near = _subscribers_at(where, "nsd://broker.example:7071")
        assert (near.token_file, near.password_file) == (token, password)
        far = _subscribers_at(where, "nsd://bob@elsewhere:7071")
        assert (far.token_file, far.password_file, far.user) == (None, None, "bob")
        given = self.resolve(token_file=token)
        assert _subscribers_at(given, "nsd://elsewhere:7071").token_file == token

    def test_a_user_has_a_password_that_is_not_in_the_url(self) -> None:
        password = self.file("password", b"s:me @\nmore\n")
        found = self.resolve(url="cafe://b%40b@h:1", password_file=password)
        assert (found.url, found.user) == ("cafe://h:1", "b@b")
        assert found.login_url({"PUBSUB_PASSWORD": "other"}) == "cafe://b%40b:s%3Ame%20%40@h:1"
        assert "s:me" not in repr(found)
        found = self.resolve(url="nsd+tls://[::1]:1", user="ada")
        assert found.login_url({"PUBSUB_PASSWORD": "x"}) == "nsd+tls://ada:x@[::1]:1"
        # What would end the user and password in a URL is within them.
        found = self.resolve(url="cafe://h:1", user="a/b?")
        assert found.login_url({"PUBSUB_PASSWORD": "p/w#"}) == "cafe://a%2Fb%3F:p%2Fw%23@h:1"
        assert self.resolve(url=CAFE).login_url({"PUBSUB_PASSWORD": "x"}) == CAFE
        for missing in (
            found,
            self.resolve(url="cafe://bob@h", password_file=self.file("no", b"")),
        ):
            with pytest.raises(ConfigurationError, match="has no password here"):
                missing.login_url({})
        for url in ("http://h", "https://h", "http+tls://h", "fast://h", "rheos+tls://h"):
            found = self.resolve(url=url, user="bob", password_file=password)
            with pytest.raises(ConfigurationError, match=f"not for {re.escape(url)}; .* a token"):
                found.login_url({})
        for url in ("cafe://bob:hunter2@h", "cafe://:hunter2@h", "cafe://@h"):
            with pytest.raises(ConfigurationError, match="--password-file") as caught:
                self.resolve(url=url)
            assert "hunter2" not in str(caught.value)

    def test_the_user_of_a_context(self) -> None:
        password = self.file("password", b"sesame\n")
        self.context("add", "home", "cafe://bob@h:1", "--password-file", password)
        self.context("add", "work", "nsd://h:1", "--user", "ada")
        assert "sesame" not in self.contexts.read_text()
        assert self.resolve().login_url({}) == "cafe://bob:sesame@h:1"
        assert self.resolve(user="eve").login_url({}) == "cafe://eve:sesame@h:1"
        assert self.resolve(url="cafe://bob@elsewhere").password_file is None
        assert self.resolve(context="work").login_url({"PUBSUB_PASSWORD": "x"}) == "nsd://ada:x@h:1"
        assert "no user" in self.one_line("context", "add", "a", CAFE, "--api", "http://bob@h")

    def test_the_api(self) -> None:
        assert self.resolve(url="http://h:1").api_url() == "http://h:1"
        assert self.resolve(url="http+tls://h:1").api_url() == "http+tls://h:1"
        assert self.resolve({"PUBSUB_API": "http://a:1"}, url=CAFE).api_url() == "http://a:1"
        with pytest.raises(ConfigurationError, match="PUBSUB_API"):
            self.resolve(url=CAFE).api_url()

    def test_the_api_of_a_broker_that_the_command_line_names(self) -> None:
        variable = {"PUBSUB_API": "http://a:1"}
        assert self.resolve(variable, url="http://h:1").api_url() == "http://h:1"
        assert self.resolve(variable, url="https://h:1", api="http://b:1").api_url() == "http://b:1"
        self.context("add", "work", "http://w:1")
        assert self.resolve(variable, context="work").api_url() == "http://w:1"
        assert self.resolve(variable).api_url() == "http://a:1"
        assert self.resolve({**variable, "PUBSUB_URL": "http://h:1"}).api_url() == "http://a:1"
