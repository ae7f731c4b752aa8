"""Tokens and passwords of the command: where they are read, and that no error shows them."""

from __future__ import annotations

import os
from unittest.mock import patch

from pubsub.commands.credential_texts import read_password, read_token
from pubsub.errors import ConfigurationError
from tests.unit.command_case import CommandCase
from tests.unit.raising import raised

# What a terminal with another encoding passes on: bytes that are not UTF-8.
NOT_TEXT = "hunter2\udcff"


class CredentialTests(CommandCase):
    def test_the_token_is_the_first_line(self) -> None:
        """As it is for the client library."""
        for content in (b"a.b-c_d\n", b"a.b-c_d", b"\na.b-c_d \r\n# of the client\n"):
            assert read_token(self.file("token", content), {"PUBSUB_TOKEN": "x"}) == "a.b-c_d"
        assert read_token(None, {"PUBSUB_TOKEN": "abc\n"}) == "abc"
        assert read_token(None, {"PUBSUB_TOKEN": " "}) is None
        assert read_token(None, {}) is None

    def test_the_password_is_the_first_line(self) -> None:
        for content in (b"a b\x0c\xc2\x85\n", b"a b\x0c\xc2\x85\r\nmore\n"):
            password = read_password(self.file("password", content), {"PUBSUB_PASSWORD": "x"})
            assert password == "a b\x0c\x85"
        assert read_password(None, {"PUBSUB_PASSWORD": "x\n"}) == "x\n"
        assert read_password(None, {}) == ""

    def test_a_token_that_a_request_cannot_have_is_not_shown(self) -> None:
        file = self.file("token", "hunter2€\n".encode())
        for text in ("hunter2\nx", "hunter2 x", "hunter2€", NOT_TEXT):
            with patch.dict(os.environ, {"PUBSUB_TOKEN": text}):
                for command in (("topics",), ("pub", "a", "x"), ("tail",)):
                    assert self.one_line(*command) == (
                        "pubsub: PUBSUB_TOKEN: not a token, as it has characters that none can "
                        "have\n"
                    )
                line = self.one_line("topics", "--token-file", file)
                assert line.startswith(f"pubsub: {file}: not a token, ")

    def test_a_password_that_is_no_text_is_not_shown(self) -> None:
        with patch.dict(os.environ, {"PUBSUB_PASSWORD": NOT_TEXT}):
            line = self.one_line("pub", "cafe/7", "x", "--url=cafe://bob@127.0.0.1:1")
        assert line == "pubsub: PUBSUB_PASSWORD: the password is not text in UTF-8\n"

    def test_files_that_are_no_text_are_named(self) -> None:
        file = self.file("other", b"\xff\n")
        secret = self.file("secret", b"s" * 40)
        for command in (
            ("topics", "--token-file", file),
            ("pub", "cafe/7", "x", "--url=cafe://bob@127.0.0.1:1", "--password-file", file),
            ("token", "make", "--secret-file", secret, "--queue-key-file", file),
        ):
            assert self.one_line(*command) == f"pubsub: {file}: the file is not text in UTF-8\n"
        contexts = self.directory / "pubsub" / "contexts.json"
        contexts.parent.mkdir()
        contexts.write_bytes(b"\xff\n")
        with patch.dict(os.environ, {"XDG_CONFIG_HOME": str(self.directory)}):
            line = self.one_line("context", "list")
        assert line.startswith(f"pubsub: {contexts}: not a file of contexts; ")

    def test_the_option_of_a_file_that_is_missing_is_named(self) -> None:
        file = str(self.directory / "none")
        for option, command in (
            ("--token-file", ("topics",)),
            ("--password-file", ("pub", "cafe/7", "x", "--url=cafe://bob@127.0.0.1:1")),
        ):
            line = self.one_line(*command, option, file)
            assert line == f"pubsub: {option}: {file}: No such file or directory\n"

    def test_no_token_is_made_of_what_is_no_text(self) -> None:
        secret = self.file("secret", b"s" * 40)
        make = ("token", "make", "--secret-file", secret)
        for more in (
            ("--queue-key", NOT_TEXT),
            ("--queue-key=k", "--sub", NOT_TEXT),
            ("--queue-key=k", "--claim", f"a={NOT_TEXT}"),
            ("--queue-key=k", "--kid", NOT_TEXT),
        ):
            line = self.one_line(*make, *more)
            assert line == "pubsub: a claim of the token is not text in UTF-8\n"
        assert self.run_it(*make, "--queue-key=é€")[0] == 0

    def test_an_empty_file(self) -> None:
        for content in (b"", b"\n \n"):
            error = raised(ConfigurationError, read_token, self.file("token", content), {})
            assert "the file is empty" in str(error)
