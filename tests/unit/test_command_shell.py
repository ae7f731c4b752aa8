"""The command with the HTTP API of a broker, its output for shells and Wireshark, exit codes."""

from __future__ import annotations

import errno
import io
import os
import sys
from unittest.mock import patch

import click
import trustme
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pubsub.client import blocking
from pubsub.commands import api_client, command
from pubsub.commands.api_client import RequestFailed
from pubsub.testing import start_broker
from tests.unit.api_at import at
from tests.unit.command_case import CommandCase
from tests.unit.fakes import scratch
from tests.unit.raising import raised


class ToolTests(CommandCase):
    """dissector and completion"""

    def test_the_dissector(self) -> None:
        code, out, _ = self.run_it("dissector")
        assert code == 0
        assert "Proto(" in out
        code, out, _ = self.run_it("dissector", "--filters")
        assert code == 0
        assert any(line.startswith("pubsub.cafe.") for line in out.splitlines())

    def test_completion(self) -> None:
        for shell in ("bash", "zsh", "fish"):
            code, out, _ = self.run_it("completion", shell)
            assert (code, "_PUBSUB_COMPLETE" in out) == (0, True)
        assert self.run_it("completion", "tcsh")[0] == 2

    def complete(self, words: str, number: int) -> str:
        given = {
            "_PUBSUB_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(number),
        }
        # click writes bytes.
        out = io.TextIOWrapper(io.BytesIO())
        with patch.dict(os.environ, given), patch.object(sys, "stdout", out):
            command.main([])
        out.seek(0)
        return out.read()

    def test_completion_requests_of_a_shell(self) -> None:
        assert "plain,completion" in self.complete("pubsub com", 1)
        assert "plain,--to" in self.complete("pubsub pipeline archive --t", 3)
        assert "plain,earliest" in self.complete("pubsub sub t --from e", 4)

    def test_the_names_of_files_are_left_to_the_shell(self) -> None:
        for words in (
            "pubsub pub t -f", "pubsub secret", "pubsub curve-key", "pubsub check-config",
            "pubsub check-config a --against", "pubsub status --tls-ca", "pubsub passwd",
            "pubsub context add a b --token-file", "pubsub replay t -o", "pubsub history backup",
            "pubsub token make --secret-file", "pubsub token make --queue-key-file",
            "pubsub access explain --config", "pubsub pipeline archive --to",
        ):  # fmt: skip
            assert self.complete(f"{words}\nx", len(words.split())) == "file,x\n", words
        found = self.complete("pubsub pipeline archive --format d", 4)
        assert found == "plain,delta\n"

    def test_a_permission_that_is_a_wildcard_of_the_shell_is_left_out(self) -> None:
        found = self.complete("pubsub token make --permission", 4).splitlines()
        assert "plain,publish" in found
        assert "plain,*" not in found


class EndTests(CommandCase):
    """Exit codes"""

    def ended(self, error: BaseException) -> tuple[int, str]:
        with patch.object(command, "_invoke", side_effect=error):
            code, _, err = self.run_it("topics")
        return code, err

    def test_errors_are_one_line(self) -> None:
        assert self.ended(click.ClickException("it failed")) == (1, "pubsub: it failed\n")
        assert self.ended(KeyboardInterrupt()) == (130, "")
        assert self.ended(click.Abort()) == (130, "")
        wrong = UnicodeEncodeError("utf-8", "gr\udcfc", 2, 3, "surrogates not allowed")
        code, err = self.ended(wrong)
        assert (code, err.count("\n")) == (1, 1)
        assert err.startswith("pubsub: 'gr\\udcfc' is not text in UTF-8")
        missing = FileNotFoundError(errno.ENOENT, "No such file", "a")
        assert self.ended(missing) == (1, "pubsub: a: No such file\n")

    def test_characters_that_the_terminal_does_not_have(self) -> None:
        out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
        with (
            patch.object(sys, "stdout", out),
            patch.object(command, "_invoke", side_effect=lambda _: print("\u2603 \xfc")),
        ):
            assert command.main(["topics"]) == 0
        assert out.buffer.getvalue() == b"\\u2603 \xfc\n"

    def test_a_reader_that_has_ended_is_no_error(self) -> None:
        path = self.directory / "out"
        with path.open("w") as file, patch.object(sys, "stdout", file):
            with patch.object(command, "_invoke", side_effect=BrokenPipeError(errno.EPIPE, "")):
                assert command.main(["topics"]) == 0
            os.write(file.fileno(), b"nowhere")
        assert path.read_bytes() == b""


class ApiTests(TestCase):
    """The HTTP API of a broker"""

    timeout = 60.0

    async def test_topics_and_offsets(self) -> None:
        broker = start_broker(self)

        def work() -> None:
            url = broker.url("http")
            api = at(url)
            with blocking.connect(url) as client:
                client.publish_many("a/b", [b"x", b"y"], confirm=True)
            assert [row["name"] for row in api.get("/v1/topics?start=0")["topics"]] == ["a/b"]
            assert api.bounds()["next"] == 2
            assert api.bounds(0)["offset"] == 0
            error = raised(RequestFailed, api.delete, api_client.topic_path("a/b"))
            assert error.code == "not-authorized"
            assert str(error).endswith("with --token-file or PUBSUB_TOKEN")

        await deferToThread(work)

    async def test_an_authority_need_not_be_a_root(self) -> None:
        directory, authority = scratch(self), trustme.CA().create_child_ca()
        ca, own = directory / "ca.pem", directory / "own.pem"
        ca.write_bytes(authority.cert_pem.bytes())
        own.write_bytes(authority.issue_cert("localhost").private_key_and_cert_chain_pem.bytes())
        broker = start_broker(self, tls_cert=str(own))
        port = broker.address("http")[1]
        api = at(f"https://localhost:{port}", tls_ca=str(ca))
        assert (await deferToThread(api.bounds))["next"] == 0

    async def test_a_broker_that_cannot_be_reached(self) -> None:
        broker = start_broker(self)
        url = broker.url("http")
        await broker.stop()
        error = await deferToThread(lambda: raised(RequestFailed, at(url).bounds))
        assert "cannot be reached: connection refused; check the URL" in str(error)


class DestinationFileTests(CommandCase):
    """The files beside the URL of a command, whichever library connects"""

    def test_a_missing_file_of_tls(self) -> None:
        none = f"{self.directory}/none"
        for url, *arguments in (
            ("nsd+tls://127.0.0.1:1", "pub", "t", "x"),
            ("https://127.0.0.1:1", "topics"),
        ):
            error = self.one_line(*arguments, f"--url={url}", f"--tls-ca={none}")
            missing = "No such file or directory; give a file in PEM"
            assert error == f"pubsub: --tls-ca {none}: {missing}\n"


class ApiFileTests(SynchronousTestCase):
    """The files beside the URL of the API, and reasons of failures"""

    def test_certificates_that_cannot_be_used(self) -> None:
        directory, ca = scratch(self), trustme.CA()
        bad, good, other = directory / "bad", directory / "good", directory / "other"
        bad.write_text("nothing")
        good.write_bytes(ca.issue_cert("a").private_key_and_cert_chain_pem.bytes())
        other.write_bytes(ca.issue_cert("a").private_key_pem.bytes())
        none = f"{bad}-none"
        for files, expected in (
            ({"ca": bad}, f"--tls-ca {bad}: no certificate or crl found; give a file in PEM"),
            ({"ca": none}, f"--tls-ca {none}: No such file or directory; "),
            ({"cert": bad}, f"--tls-cert {bad}: what it should have is missing; "),
            ({"cert": none}, f"--tls-cert {none}: No such file or directory; "),
            ({"cert": good, "key": none}, f"--tls-key {none}: No such file or directory; "),
            ({"cert": directory}, f"--tls-cert {directory}: not a regular file; "),
            (
                {"cert": good, "key": other},
                f"--tls-cert {good} and --tls-key {other}: key values mismatch; ",
            ),
            ({"key": other}, "--tls-key needs --tls-cert"),
        ):
            given = {f"tls_{name}": str(path) for name, path in files.items()}
            error = str(raised(RequestFailed, at("https://127.0.0.1:1", **given).bounds))
            assert error.startswith(expected), error
