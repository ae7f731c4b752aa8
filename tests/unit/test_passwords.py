"""Passwords: the file, and their verification (rationed, remembered, in turns)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials import passwords
from pubsub.broker.credentials.password_file import (
    MAX_PASSWORD,
    hash_of_nobody,
    hash_password,
    matches,
    parse_password_file,
    read_password_file,
)
from pubsub.broker.credentials.passwords import (
    MAX_PER_SOURCE,
    MAX_WAITING,
    RATE,
    REMEMBERED_SECONDS,
    WAIT_SECONDS,
    PasswordVerifier,
)
from pubsub.errors import ConfigurationError, Refused
from tests.unit.fakes import clock_at, scratch
from tests.unit.streams import logged
from tests.unit.user_files import cheap_hash


class PasswordFileTests(SynchronousTestCase):
    """The password file"""

    def test_a_password_matches_its_hash_only(self) -> None:
        hashed = hash_password(b"sesame")
        assert hashed.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
        assert matches(b"sesame", hashed)
        assert not matches(b"Sesame", hashed)
        assert hash_password(b"sesame") != hashed

    def test_the_hash_for_unknown_users_costs_the_same_and_matches_no_password(self) -> None:
        hashes = {"a": cheap_hash(b"1"), "b": cheap_hash(b"2"), "c": hash_password(b"3")}
        assert hash_of_nobody(hashes).startswith("$argon2id$v=19$m=32,t=1,p=1$")
        assert not matches(b"1", hash_of_nobody(hashes))
        assert hash_of_nobody({}).startswith("$argon2id$v=19$m=19456,t=2,p=1$")

    def test_comments_and_empty_lines_are_ignored(self) -> None:
        hashed = cheap_hash(b"sesame")
        text = f"# users\n\nbob:{hashed}\r\n  ann:{hashed}\n"
        assert parse_password_file(text, "f") == {"bob": hashed, "ann": hashed}

    def test_errors_name_the_line_and_show_nothing_of_it(self) -> None:
        hashed = cheap_hash(b"sesame")
        for text, expected in (
            ("bob:secret", "f: line 1 has no Argon2id hash; set the password"),
            ("bob", "f: line 1 has no Argon2id hash"),
            (f"bob:{hashed}\n:{hashed}", "f: line 2: a user's name has 1 to 255 bytes"),
            (f"bob:{hashed}\nbob:{hashed}", "f: line 2: the user has two lines"),
            (f"b\x07b:{hashed}", "f: line 1: a user's name has printable characters"),
            (f"bob:{hashed.replace('m=32', 'm=9999999')}", "f: line 1 has no Argon2id hash"),
            (f"bob:{hashed.replace('t=1', 't=999')}", "f: line 1 has no Argon2id hash"),
        ):
            with pytest.raises(ConfigurationError) as raised:
                parse_password_file(text, "f")
            assert str(raised.value).startswith(expected)
            assert "secret" not in str(raised.value)

    def test_an_empty_or_huge_password_cannot_be_set(self) -> None:
        for password in (b"", b"x" * (MAX_PASSWORD + 1)):
            with pytest.raises(ConfigurationError, match="the password"):
                hash_password(password)

    def test_a_file_that_others_can_read_is_reported(self) -> None:
        path = scratch(self) / "users"
        path.write_text(f"bob:{cheap_hash(b'sesame')}\n")
        lines = logged(self)
        path.chmod(0o600)
        assert list(read_password_file(str(path))) == ["bob"]
        assert lines == []
        path.chmod(0o644)
        read_password_file(str(path))
        assert lines == [f"password-file: {path} can be read by others; chmod 600 it"]

    def test_a_file_that_is_missing_or_not_text_is_an_error(self) -> None:
        path = scratch(self) / "users"
        with pytest.raises(ConfigurationError, match="No such file"):
            read_password_file(str(path))
        path.write_bytes(b"\xff\n")
        with pytest.raises(ConfigurationError, match="not UTF-8"):
            read_password_file(str(path))

    @given(st.dictionaries(st.text("abc.é@-", min_size=1, max_size=8), st.just(cheap_hash(b"x"))))
    def test_every_line_is_read(self, hashes: dict[str, str]) -> None:
        text = "".join(f"{user}:{hashed}\n" for user, hashed in hashes.items())
        assert parse_password_file(text, "f") == hashes

    @given(st.text(max_size=200))
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        with contextlib.suppress(ConfigurationError):
            parse_password_file(text, "f")


class Thread:
    """Holds calls until ``work`` makes them; the next one fails with ``failing``."""

    def __init__(self) -> None:
        self.calls: list[
            tuple[Callable[[], bool], Callable[[bool], object], Callable[[Failure], object]]
        ] = []
        self.failing: Exception | None = None

    def __call__(self, call: Any, done: Any, failed: Any) -> None:
        self.calls.append((call, done, failed))

    def work(self) -> None:
        call, done, failed = self.calls.pop(0)
        if self.failing is None:
            done(call())
        else:
            failure, self.failing = Failure(self.failing), None
            failed(failure)


class PasswordVerifierTests(SynchronousTestCase):
    """PasswordVerifier"""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.thread = Thread()
        self.verifier = PasswordVerifier(self.clock, self.thread)
        self.verifier.replace({"bob": cheap_hash(b"sesame")})
        self.results: list[str] = []

    def ask(self, user: str = "bob", password: bytes = b"sesame", source: str = "192.0.2.1") -> Any:
        def done(refused: Refused | None) -> None:
            self.results.append("right" if refused is None else refused.reason)

        return self.verifier.verify(user, password, source, done)

    def run_all(self, most: int = 10_000) -> int:
        """Let the thread and the clock run until nothing waits; return the verifications."""
        before = self.verifier.verified
        for _ in range(most):
            self.clock.advance(0.05)
            if self.thread.calls:
                self.thread.work()
            elif not len(self.verifier) and len(self.results):
                self.clock.advance(0)
                break
        return self.verifier.verified - before

    def taken(self) -> list[str]:
        results, self.results = self.results, []
        return results

    def test_right_and_wrong_passwords_and_unknown_users(self) -> None:
        self.ask()
        self.ask(password=b"open")
        self.ask(user="eve")
        assert self.results == []
        assert self.run_all() == 3
        assert self.taken() == ["right", "wrong-password", "wrong-password"]
        assert (self.verifier.verified, self.verifier.rejected) == (3, 2)

    def test_nothing_is_verified_in_the_reactor_s_turn_of_the_client(self) -> None:
        self.ask()
        assert self.thread.calls == []
        self.clock.advance(0)
        assert len(self.thread.calls) == 1
        assert self.results == []

    def test_a_right_password_is_remembered_for_a_while_and_a_wrong_one_is_not(self) -> None:
        self.ask()
        self.ask(password=b"open")
        self.run_all()
        self.taken()
        self.ask()
        assert self.taken() == ["right"]
        self.ask(password=b"open")
        assert self.taken() == []
        assert self.run_all() == 1
        self.clock.advance(REMEMBERED_SECONDS)
        self.taken()
        self.ask()
        assert self.taken() == []

    def test_so_many_are_remembered_and_the_oldest_is_forgotten(self) -> None:
        self.verifier.replace(dict.fromkeys("abc", cheap_hash(b"sesame")))
        with patch.object(passwords, "_MAX_REMEMBERED", 2):
            for user in "abc":
                self.ask(user)
                self.run_all()
        self.taken()
        for user in "bc":
            self.ask(user)
        assert self.taken() == ["right", "right"]
        self.ask("a")
        assert self.taken() == []

    def test_a_password_of_an_unknown_user_costs_as_much(self) -> None:
        for user in ("eve", "\ud800"):
            self.ask(user)
            self.clock.advance(0)
            ((verify, _, _),) = self.thread.calls
            assert isinstance(verify, partial)
            assert verify.args[1].split("$")[:4] == cheap_hash(b"").split("$")[:4]
            self.run_all()
        assert self.taken() == ["wrong-password"] * 2

    def test_no_password_is_kept_in_clear_once_it_is_verified(self) -> None:
        self.ask(password=b"sesame")
        self.run_all()
        kept = repr(vars(self.verifier))
        assert "sesame" not in kept

    def test_another_file_clears_the_remembered_results(self) -> None:
        self.ask()
        self.run_all()
        self.verifier.replace({"bob": cheap_hash(b"new")})
        self.taken()
        self.ask()
        assert self.run_all() == 1
        assert self.taken() == ["wrong-password"]

    def test_a_file_that_is_replaced_during_a_verification_counts(self) -> None:
        self.ask()
        self.clock.advance(0)
        self.verifier.replace({"bob": cheap_hash(b"new")})
        self.run_all()
        assert self.taken() == ["wrong-password"]

    def test_equal_passwords_that_wait_are_verified_once(self) -> None:
        for n in range(100):
            self.ask(source=f"192.0.2.{n}")
        assert self.run_all() == 1
        self.clock.advance(0)
        self.clock.advance(0)
        self.clock.advance(0)
        assert self.taken() == ["right"] * 100

    def test_an_address_that_floods_delays_itself_only(self) -> None:
        for n in range(20):
            self.ask(password=b"guess %d" % n, source="192.0.2.66")
        self.ask(source="192.0.2.1")
        for _ in range(2):
            self.clock.advance(0)
            self.thread.work()
        self.clock.advance(0)
        assert self.taken() == ["wrong-password", "right"]

    def test_an_address_and_all_together_have_a_bound(self) -> None:
        for n in range(MAX_PER_SOURCE + 1):
            self.ask(password=b"guess %d" % n)
        assert self.taken() == ["passwords-busy"]
        for n in range(MAX_WAITING - MAX_PER_SOURCE + 1):
            self.ask(password=b"guess", user=f"user {n}", source=f"s{n}")
        assert self.taken() == ["passwords-busy"]
        assert len(self.verifier) == MAX_WAITING

    def test_there_is_a_rate(self) -> None:
        for n in range(RATE * 3):
            self.ask(password=b"guess %d" % n)
        done = 0
        for _ in range(1000):
            self.clock.advance(0)
            if self.thread.calls:
                self.thread.work()
                done += 1
        assert done == RATE
        # Those that wait go on without another request.
        self.clock.pump([0.05] * 20)
        while self.thread.calls:
            self.thread.work()
            self.clock.advance(0)
        assert self.verifier.verified > RATE

    def test_a_verification_that_waits_too_long_is_refused(self) -> None:
        for n in range(3):
            self.ask(password=b"guess %d" % n)
        self.clock.advance(0)
        self.clock.advance(WAIT_SECONDS)
        self.thread.work()
        self.clock.advance(0)
        assert self.taken() == ["wrong-password", "passwords-busy", "passwords-busy"]
        assert len(self.verifier) == 0

    def test_a_client_that_left_gets_no_result_and_costs_nothing(self) -> None:
        check = self.ask()
        check.cancel()
        self.ask(password=b"open")
        assert self.run_all() == 1
        assert self.taken() == ["wrong-password"]
        assert len(self.verifier) == 0

    def test_without_a_file_or_with_impossible_passwords_nothing_is_verified(self) -> None:
        self.ask(password=b"")
        self.ask(password=b"x" * (MAX_PASSWORD + 1))
        self.verifier.replace(None)
        self.ask()
        assert self.taken() == ["wrong-password"] * 3
        assert len(self.verifier) == 0

    def test_a_verification_that_fails_refuses_the_client(self) -> None:
        self.thread.failing = MemoryError("no memory")
        self.ask()
        self.ask(password=b"open")
        self.run_all()
        assert self.taken() == ["passwords-busy", "wrong-password"]
        errors = self.flushLoggedErrors(MemoryError)  # type: ignore[no-untyped-call]
        assert len(errors) == 1

    def test_after_stop_nothing_is_called(self) -> None:
        self.ask()
        self.clock.advance(0)
        self.verifier.stop()
        self.thread.work()
        self.clock.advance(1)
        assert self.taken() == []
        assert self.clock.getDelayedCalls() == []
        self.ask()
        assert self.taken() == ["passwords-busy"]

    def test_a_stop_before_the_first_verification(self) -> None:
        self.ask()
        self.verifier.stop()
        assert self.clock.getDelayedCalls() == []
        assert self.taken() == []

    def test_a_result_handler_may_request_another_verification(self) -> None:
        def done(refused: Refused | None) -> None:
            self.ask(password=b"open")

        self.verifier.verify("bob", b"sesame", "h", done)
        self.run_all()
        assert self.taken() == ["wrong-password"]
