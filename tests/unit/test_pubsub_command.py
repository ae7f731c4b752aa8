"""The command ``pubsub``: making secrets, and making and inspecting tokens."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import stat
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from twisted.trial.unittest import SynchronousTestCase

import pubsub
from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.broker.credentials.secret_files import read_public_key, read_secret
from pubsub.broker.credentials.tokens import Token, TokenVerifier
from pubsub.commands.broker_client import run
from tests.unit.command_case import CommandCase
from tests.unit.fakes import START
from tests.unit.tokens import KEY, PRIVATE, PUBLIC_PEM

PRIVATE_PEM = PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class UsageTests(CommandCase):
    """The command line"""

    def test_help_and_version(self) -> None:
        code, out, _ = self.run_it("--help")
        assert code == 0
        assert "secret" in out
        assert "token" in out
        code, out, _ = self.run_it("--version")
        assert (code, out.split()[0]) == (0, "pubsub")

    def test_help_as_a_command(self) -> None:
        for arguments in ((), ("pub",), ("token",), ("token", "make")):
            code, out, err = self.run_it("help", *arguments)
            assert (code, out, err) == self.run_it(*arguments, "--help")
            assert code == 0
        assert self.run_it("help", "nonsense")[:2] == (2, "")

    def test_missing_and_unknown_commands_are_usage_errors(self) -> None:
        for arguments in ((), ("nonsense",), ("token",), ("token", "make"), ("secret",)):
            code, out, err = self.run_it(*arguments)
            assert (code, out) == (2, "")
            assert "usage: pubsub" in err

    def test_names_of_other_tools_lead_to_those_of_this_one(self) -> None:
        for arguments, meant in (
            (("subscribe", "a"), "sub"),
            (("publish", "a", "b"), "pub"),
            (("ls",), "topics"),
            (("server",), "status"),
            (("delete", "a"), "topics delete"),
            (("topics", "rm", "a"), "delete"),
            (("context", "rm", "a"), "remove"),
            (("context", "select", "a"), "use"),
            (("token", "create"), "make"),
            (("history", "verify"), "check"),
            # Also what is only like a name.
            (("sbu",), "sub"),
        ):
            code, out, err = self.run_it(*arguments)
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert f"; did you mean '{meant}'?; usage: pubsub " in err
        assert "; a broker is started with twistd pubsub; " in self.run_it("start")[2]

    def test_an_option_before_the_command_has_another_place(self) -> None:
        code, _, err = self.run_it("--url", "http://127.0.0.1:1", "pub", "a", "b")
        assert (code, "'--url'; give the options of a command after its name;" in err) == (2, True)
        _, _, err = self.run_it("pub", "a", "b", "--ulr")
        assert "after its name" not in err


class RunTests(SynchronousTestCase):
    """The work of a command"""

    def test_ctrl_c_before_it_has_begun(self) -> None:
        async def wait() -> None:
            raise AssertionError

        work = wait()
        interrupted = patch.object(asyncio, "run", side_effect=KeyboardInterrupt)
        with interrupted, pytest.raises(KeyboardInterrupt):
            run(work)
        # Otherwise Python warns that it was never awaited.
        assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


class SecretTests(CommandCase):
    """pubsub secret"""

    def test_only_the_owner_can_read_it_with_any_umask(self) -> None:
        for umask in (0, 0o022, 0o077):
            path = self.directory / f"secret-{umask}"
            before = os.umask(umask)
            try:
                code, out, err = self.run_it("secret", str(path))
            finally:
                os.umask(before)
            assert (code, err) == (0, "")
            assert out == f"{path}: secret written; start the broker with --secret-file {path}\n"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_it_is_long_random_and_not_printed(self) -> None:
        contents = set()
        for number in range(3):
            path = self.directory / str(number)
            _, out, _ = self.run_it("secret", str(path))
            text = path.read_text()
            assert text.strip() not in out
            assert text.endswith("\n")
            contents.add(text)
            secret = read_secret("main", str(path), "HS256", float("inf"), allow_weak=False)
            assert secret.key == text.rstrip("\n").encode()
            assert len(secret.key) == 64
        assert len(contents) == 3

    def test_an_existing_file_is_not_replaced(self) -> None:
        path = self.file("secret", b"in use")
        assert "exists" in self.one_line("secret", path)
        assert Path(path).read_bytes() == b"in use"

    def test_the_target_of_a_link_is_not_created(self) -> None:
        target = self.directory / "target"
        (self.directory / "link").symlink_to(target)
        assert "exists" in self.one_line("secret", str(self.directory / "link"))
        assert not target.exists()

    def test_a_missing_directory(self) -> None:
        assert "No such file" in self.one_line("secret", str(self.directory / "no" / "secret"))


class MakeTests(CommandCase):
    """pubsub token make"""

    def setUp(self) -> None:
        super().setUp()
        self.secret = self.file("secret", KEY + b"\n")

    def make(self, *arguments: str) -> bytes:
        """Return the token, printed as the only line and without a warning."""
        code, out, err = self.run_it("token", "make", *arguments)
        assert (code, err) == (0, "")
        assert out.count("\n") == 1
        return out.strip().encode()

    def check(self, raw: bytes, now: float = START) -> Token:
        secret = read_secret("main", self.secret, "HS256", float("inf"), allow_weak=False)
        return TokenVerifier(SecretRing([secret])).check(raw, now)

    def test_a_token_that_the_broker_accepts(self) -> None:
        raw = self.make(
            "--secret-file", self.secret, "--sub=ada", "--queue-key=k1",
            "--permission=publish", "--permission=subscribe", "--expires=12h",
        )  # fmt: skip
        token = self.check(raw)
        assert (token.subject, token.queue_key) == ("ada", b"k1")
        assert token.permissions == {"publish", "subscribe"}
        assert token.expires == START + 12 * 3600
        assert len(raw) <= 255

    def test_the_command_that_the_dashboard_names(self) -> None:
        dialog = Path(pubsub.__file__).parent / "http_api/dashboard/app/token_dialog.js"
        shown = re.search('"pubsub token make (.*?)"', dialog.read_text())
        assert shown is not None
        arguments = shown[1].replace("FILE", self.secret).split()
        assert self.check(self.make(*arguments)).permits("admin")

    def test_omitted_claims_are_absent(self) -> None:
        raw = self.make("--secret-file", self.secret, "--queue-key=k1", "--permission=publish")
        claims = jwt.decode(raw, options={"verify_signature": False})
        assert claims == {"queue_key": "k1", "permissions": "publish"}
        assert jwt.get_unverified_header(raw) == {"alg": "HS256", "typ": "JWT"}

    def test_no_permission(self) -> None:
        """The token is made, as its subject alone may be of use, with a warning."""
        for more in ("--queue-key=k", "--sub=ada"):
            code, out, err = self.run_it("token", "make", "--secret-file", self.secret, more)
            assert code == 0
            assert self.check(out.strip().encode()).permissions == set()
            assert err == (
                "pubsub: the token has no permission: its client can neither publish nor read "
                "over fast, nor over HTTP where there are access rules; --permission adds one\n"
            )

    def test_a_single_permission_is_a_string(self) -> None:
        raw = self.make("--secret-file", self.secret, "--queue-key=k", "--permission=*")
        assert jwt.decode(raw, options={"verify_signature": False})["permissions"] == "*"
        assert self.check(raw).permits("rotate")

    def test_a_permission_that_no_broker_knows(self) -> None:
        """A token with it would permit nothing."""
        for permission in ("publish,subscribe", "read", ""):
            code, out, err = self.run_it(
                "token", "make", "--secret-file", self.secret, "--queue-key=k",
                f"--permission={permission}",
            )  # fmt: skip
            assert (code, out) == (2, "")
            assert "--permission" in err

    def test_a_file_without_a_secret(self) -> None:
        for content in (b"", b"\n"):
            path = self.file("no-secret", content)
            code, _, err = self.run_it("token", "make", "--secret-file", path)
            assert (code, err) == (
                1, f"pubsub: {path} is empty; pubsub secret FILE writes a secret\n"
            )  # fmt: skip

    def test_times(self) -> None:
        for text, seconds in (("90s", 90), ("5m", 300), ("1h", 3600), ("2d", 172_800)):
            raw = self.make(
                "--secret-file", self.secret, "--permission=history", f"--expires={text}"
            )
            assert self.check(raw).expires == START + seconds
        for text in ("90", "s", "-5s", "1.5h", "1w", ""):
            code, _, err = self.run_it(
                "token", "make", "--secret-file", self.secret, "--queue-key=k", f"--expires={text}"
            )
            assert code == 2
            assert "90s or 12h" in err

    def test_other_claims_and_the_key_id(self) -> None:
        raw = self.make(
            "--secret-file", self.secret, "--queue-key=k", "--permission=*", "--kid=main",
            "--claim=team=a=b",
        )  # fmt: skip
        assert jwt.decode(raw, options={"verify_signature": False})["team"] == "a=b"
        assert jwt.get_unverified_header(raw)["kid"] == "main"
        assert self.check(raw).queue_key == b"k"
        assert "NAME=VALUE" in self.one_line(
            "token", "make", "--secret-file", self.secret, "--queue-key=k", "--claim=team"
        )

    def test_a_claim_replaces_no_other(self) -> None:
        """A token with it could do what no option of the command says."""
        given = ("token", "make", "--secret-file", self.secret, "--queue-key=k", "--permission=*")
        for claim, option in (
            ("exp=5", "--expires"),
            ("permissions=publish", "--permission"),
            ("queue_key=other", "--queue-key"),
            ("sub=bob", "--sub"),
        ):
            name = claim.partition("=")[0]
            line = self.one_line(*given, f"--claim={claim}")
            assert line == f"pubsub: --claim: the claim {name} has an option of its own, {option}\n"
        line = self.one_line(*given, "--claim=team=a", "--claim=team=b")
        assert line == "pubsub: --claim: the claim team is given twice; a token has it once\n"

    def test_a_claim_that_is_a_time(self) -> None:
        """The broker refuses a token whose nbf is a text."""
        given = ("--secret-file", self.secret, "--permission=history", "--claim")
        token = self.check(self.make(*given, f"nbf={int(START) - 5}"))
        assert token.not_before == START - 5
        line = self.one_line("token", "make", *given, "nbf=soon")
        assert "nbf: expected seconds since the Unix epoch, not 'soon'" in line

    def test_an_empty_queue_key(self) -> None:
        """No topic has it, and over fast the token would be of no use."""
        for given in ("--queue-key=", f"--queue-key-file={self.file('empty', b'')}"):
            line = self.one_line("token", "make", "--secret-file", self.secret, given)
            assert line == "pubsub: the queue key is empty, and that of a topic is not\n"

    def test_no_queue_key(self) -> None:
        """The history, the figures and the management of a broker need none."""
        for permission in ("history", "metrics", "admin", "delete"):
            raw = self.make("--secret-file", self.secret, f"--permission={permission}")
            claims = jwt.decode(raw, options={"verify_signature": False})
            assert claims == {"permissions": permission}
            assert self.check(raw).permits(permission)
            assert self.check(raw).queue_key == b""

    def test_a_permission_for_topics_without_a_queue_key(self) -> None:
        """The token is made, as topics of the HTTP API may be open, with a warning."""
        for permission in ("publish", "subscribe", "create", "rotate", "*"):
            code, out, err = self.run_it(
                "token", "make", "--secret-file", self.secret, f"--permission={permission}"
            )
            assert code == 0
            assert self.check(out.strip().encode()).permissions == {permission}
            assert err == (
                "pubsub: the token has no queue key: over HTTP it needs one only for topics that "
                "are closed by a key, but over fast always; --queue-key adds one\n"
            )

    def test_a_token_for_the_http_api(self) -> None:
        """fast knows no other permission than those for topics."""
        for other in ("history", "metrics", "admin", "delete"):
            options = (f"--permission={one}" for one in ("publish", "subscribe", other))
            assert self.run_it("token", "make", "--secret-file", self.secret, *options)[2] == ""

    def test_other_algorithms(self) -> None:
        secret = self.file("secret512", KEY * 2)
        options = ("--queue-key=k", "--permission=*")
        raw = self.make("--secret-file", secret, "--algorithm=HS512", *options)
        ring = SecretRing([read_secret("main", secret, "HS512", float("inf"), False)])
        assert TokenVerifier(ring).check(raw, START).queue_key == b"k"
        private = self.file("private.pem", PRIVATE_PEM)
        raw = self.make("--secret-file", private, "--algorithm=EdDSA", *options)
        public = self.file("public.pem", PUBLIC_PEM)
        ring = SecretRing([read_public_key("public", public, float("inf"))])
        assert TokenVerifier(ring).check(raw, START).queue_key == b"k"

    def test_keys_that_do_not_fit_the_algorithm(self) -> None:
        for content, algorithm in (
            (KEY, "EdDSA"), (PUBLIC_PEM, "HS256"), (PRIVATE_PEM, "HS256"), (b"", "EdDSA"),
        ):  # fmt: skip
            path = self.file("odd", content)
            said = self.one_line(
                "token", "make", "--secret-file", path, f"--algorithm={algorithm}", "--queue-key=k"
            )
            assert KEY.hex() not in said
        assert "No such file" in self.one_line(
            "token", "make", "--secret-file=/nonexistent", "--queue-key=k"
        )

    def test_a_public_key_cannot_sign(self) -> None:
        path = self.file("public.pem", PUBLIC_PEM)
        self.one_line("token", "make", "--secret-file", path, "--algorithm=EdDSA", "--queue-key=k")

    def test_the_algorithm_none_is_not_offered(self) -> None:
        code, _, err = self.run_it(
            "token", "make", "--secret-file", self.secret, "--algorithm=none", "--queue-key=k"
        )
        assert code == 2
        assert "'none' is not one of 'HS256'" in err


class LengthTests(CommandCase):
    """Over 255 bytes: a warning, and a hint for shortening"""

    def make(self, *arguments: str, algorithm: str = "HS256") -> str:
        key = self.file("key", PRIVATE_PEM if algorithm == "EdDSA" else KEY * 2)
        code, out, err = self.run_it(
            "token", "make", "--secret-file", key, f"--algorithm={algorithm}", *arguments
        )
        assert code == 0
        self.made = out.strip()
        return err

    def test_the_longest_that_fits(self) -> None:
        sizes = []
        for length in range(70, 110):
            err = self.make(f"--queue-key={'k' * length}", "--permission=*")
            sizes.append(len(self.made))
            assert bool(err) == (len(self.made) > 255)
        assert min(sizes) <= 255 < max(sizes)

    def test_it_names_the_longest_claims(self) -> None:
        err = self.make(
            f"--queue-key={'k' * 60}", "--sub=ada", f"--claim=note={'n' * 80}", "--permission=*"
        )
        assert f"the token has {len(self.made)} bytes, but fast accepts at most 255" in err
        assert "shorten note or queue_key" in err
        assert "kid" not in err
        assert "HS256" not in err
        assert err.count("\n") == 1

    def test_it_names_the_key_id_and_the_algorithm(self) -> None:
        assert ", or omit --kid" in self.make("--kid=" + "i" * 30, "--queue-key=" + "k" * 80)
        for algorithm in ("HS384", "HS512", "EdDSA"):
            said = self.make("--queue-key=" + "k" * 90, algorithm=algorithm)
            assert said.endswith(", or use HS256\n")


class InspectTests(CommandCase):
    """pubsub token inspect"""

    def inspect(self, claims: dict[str, Any], **headers: str) -> tuple[dict[str, Any], str]:
        raw = jwt.encode(claims, KEY, "HS256", headers or None)
        code, out, err = self.run_it("token", "inspect", raw)
        assert code == 0
        found: dict[str, Any] = json.loads(out)
        assert found["bytes"] == len(raw)
        return found, err

    def test_header_and_claims(self) -> None:
        claims = {"queue_key": "k1", "permissions": ["publish"], "exp": 1_700_000_060}
        found, err = self.inspect(claims, kid="main")
        assert found["claims"] == claims
        assert found["header"] == {"alg": "HS256", "typ": "JWT", "kid": "main"}
        assert (found["fits"], err) == (True, "")
        assert found["exp"] == "2023-11-14T22:14:20+00:00"
        assert "nbf" not in found

    def test_a_token_that_is_too_long(self) -> None:
        found, err = self.inspect({"queue_key": "k" * 200})
        assert not found["fits"]
        assert "shorten queue_key" in err

    def test_from_standard_input(self) -> None:
        raw = jwt.encode({"queue_key": "k1"}, KEY)
        code, out, _ = self.run_it("token", "inspect", "-", stdin=raw + "\n")
        assert code == 0
        assert json.loads(out)["claims"] == {"queue_key": "k1"}

    def test_forged_and_expired_tokens_are_shown(self) -> None:
        assert self.inspect({"exp": 1})[0]["exp"] == "1970-01-01T00:00:01+00:00"
        raw = jwt.encode({"queue_key": "k1"}, KEY)[:-4] + "AAAA"
        assert self.run_it("token", "inspect", raw)[0] == 0

    def test_invalid_tokens(self) -> None:
        for text in ("", "abc", "a.b.c", "eyJhbGciOiJIUzI1NiJ9.W10.x"):
            assert "not a token" in self.one_line("token", "inspect", text)

    def test_times_beyond_any_calendar(self) -> None:
        for number in (1e300, 10**18, -(10**18)):
            raw = jwt.encode({"exp": number, "nbf": number}, KEY)
            code, out, err = self.run_it("token", "inspect", raw)
            assert code == 0, err
            assert json.loads(out)["claims"]["exp"] == number
