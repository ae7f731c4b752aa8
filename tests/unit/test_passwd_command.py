"""``pubsub passwd``."""

from __future__ import annotations

import fcntl
import os
import stat
from threading import Thread
from unittest.mock import patch

from pubsub.broker.credentials.password_file import matches, read_password_file
from tests.unit.command_case import CommandCase, file_steps


class PasswdTests(CommandCase):
    """pubsub passwd"""

    def setUp(self) -> None:
        super().setUp()
        self.path = str(self.directory / "users")

    def set(self, user: str, password: str) -> None:
        code, out, err = self.run_it("passwd", self.path, user, stdin=f"{password}\n")
        assert (code, err) == (0, "")
        assert f"password of {user} set" in out
        assert password not in out

    def test_a_new_file_is_for_its_owner_only(self) -> None:
        self.set("bob", "sesame")
        assert stat.S_IMODE(os.stat(self.path).st_mode) == 0o600
        users = read_password_file(self.path)
        assert list(users) == ["bob"]
        assert matches(b"sesame", users["bob"])
        assert os.listdir(self.directory) == ["users"]

    def test_a_password_is_changed_and_everything_else_stays(self) -> None:
        self.set("bob", "sesame")
        self.set("ann", "other")
        before = read_password_file(self.path)
        text = "# comment\n" + self.read()
        self.file("users", text.encode())
        self.set("bob", "changed")
        after = read_password_file(self.path)
        assert matches(b"changed", after["bob"])
        assert after["ann"] == before["ann"]
        assert self.read().startswith("# comment\n")

    def read(self) -> str:
        with open(self.path) as file:
            return file.read()

    def test_users_are_listed_and_deleted(self) -> None:
        self.set("bob", "sesame")
        self.set("ann", "other")
        assert self.run_it("passwd", "--list", self.path) == (0, "ann\nbob\n", "")
        code, out, _err = self.run_it("passwd", "--delete", self.path, "bob")
        assert code == 0
        assert "bob deleted" in out
        assert list(read_password_file(self.path)) == ["ann"]
        assert "there is no user 'bob'" in self.one_line("passwd", "--delete", self.path, "bob")

    def test_a_file_that_is_no_password_file_is_not_replaced(self) -> None:
        path = self.file("users", b"precious: data\n")
        assert "line 1 has no Argon2id hash" in self.one_line("passwd", path, "bob")
        assert self.read() == "precious: data\n"

    def test_a_pipe_or_a_device_is_not_replaced(self) -> None:
        os.mkfifo(self.path)
        for arguments in (("bob",), ("--delete", "bob"), ("--list",)):
            line = self.one_line("passwd", self.path, *arguments)
            assert "it is no regular file" in line
        assert stat.S_ISFIFO(os.stat(self.path).st_mode)

    def test_comments_with_other_line_separators_stay(self) -> None:
        comments = "# section\x0cone\n# two\u2028three\n\n"
        self.file("users", comments.encode())
        self.set("bob", "sesame")
        self.set("ann", "other")
        assert self.read().startswith(comments)
        assert list(read_password_file(self.path)) == ["bob", "ann"]

    def test_bad_names_and_passwords_are_refused(self) -> None:
        for user in ("a:b", "#bob", "", " bob", "b\nb"):
            assert "a user's name has" in self.one_line("passwd", self.path, user)
        assert "the password is empty" in self.one_line("passwd", self.path, "bob")
        code, _, err = self.run_it("passwd", self.path, "bob", stdin="x" * 5000)
        assert (code, "too long" in err) == (1, True)
        assert not os.path.exists(self.path)

    def test_a_user_or_list_has_to_be_given(self) -> None:
        for arguments in ((), ("--list", "bob"), ("--delete",), ("--list", "--delete")):
            assert self.run_it("passwd", self.path, *arguments)[0] == 2

    def test_missing_files_are_not_made_by_list_and_delete(self) -> None:
        for arguments in (("--list", self.path), ("--delete", self.path, "bob")):
            assert "No such file" in self.one_line("passwd", *arguments)
        assert os.listdir(self.directory) == []

    def test_a_symbolic_link_stays_one(self) -> None:
        link = self.directory / "link"
        link.symlink_to("users")
        self.set("bob", "sesame")
        self.run_it("passwd", str(link), "ann", stdin="other\n")
        assert link.is_symlink()
        assert list(read_password_file(self.path)) == ["ann", "bob"][::-1]

    def test_a_second_writer_waits(self) -> None:
        directory = os.open(self.directory, os.O_RDONLY)
        self.addCleanup(os.close, directory)
        fcntl.flock(directory, fcntl.LOCK_EX)
        thread = Thread(target=self.set, args=("bob", "sesame"))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        assert not os.path.exists(self.path)
        fcntl.flock(directory, fcntl.LOCK_UN)
        thread.join()
        assert list(read_password_file(self.path)) == ["bob"]

    def test_a_loss_of_power_does_not_bring_a_password_back(self) -> None:
        self.set("bob", "sesame")
        steps = file_steps(lambda: self.run_it("passwd", "--delete", self.path, "bob"))
        assert steps == ["sync of a file", "rename", "sync of a directory"]
        assert not read_password_file(self.path)

    def test_a_disk_that_is_full_leaves_the_old_file(self) -> None:
        self.set("bob", "sesame")
        before = self.read()
        with patch("os.fsync", side_effect=OSError(28, "No space left on device")):
            code, _, err = self.run_it("passwd", self.path, "ann", stdin="other\n")
        assert (code, err) == (1, f"pubsub: {self.path}: No space left on device\n")
        assert self.read() == before
        assert os.listdir(self.directory) == ["users"]
