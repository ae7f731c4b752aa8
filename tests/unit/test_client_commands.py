"""The commands that connect, with a fake client and a fake API."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch
from urllib.parse import parse_qs, urlsplit

from pubsub.client import (
    ConnectFailed,
    Disconnected,
    Gap,
    MessageBatch,
    NotPublished,
    OutcomeUnknown,
    Refusal,
    SubscriptionRefused,
)
from pubsub.commands import replay, tail
from pubsub.commands.command import main
from pubsub.commands.destination import resolve
from pubsub.commands.output import Output
from pubsub.kernel import Columns
from pubsub.wire.client_events import Messages
from tests.unit.client_case import API, CAFE, ClientCase

NO_OPTIONS = (
    "url", "context", "api", "client_id", "token_file", "tls_ca", "tls_cert", "tls_key", "user",
    "password_file",
)  # fmt: skip


class PubTests(ClientCase):
    """pubsub pub"""

    def payloads(self) -> list[bytes]:
        return [payload for _, payload, _ in self.client.published]

    def test_an_argument_lines_and_a_file(self) -> None:
        assert self.run_it("pub", "a", "hi", *CAFE) == (0, "", "")
        assert self.run_it("pub", "a", *CAFE, stdin="1\n2") == (0, "", "")
        assert self.run_it("pub", "a", "-n1", *CAFE, stdin="3\n4") == (0, "", "")
        path = self.file("content", b"x\ny")
        assert self.run_it("pub", "a", "-f", path, *CAFE) == (0, "", "")
        assert self.payloads() == [b"hi", b"1", b"2", b"3", b"x\ny"]
        assert self.where.url == "cafe://127.0.0.1:7070"

    def test_a_large_file_many_times(self) -> None:
        """Hundreds of them in a request would not be confirmed in time."""
        self.client.most = 10**6
        path = self.file("content", bytes(300_000))
        assert self.run_it("pub", "a", "-f", path, "-n", "9", *CAFE)[0] == 0
        assert self.run_it("pub", "a", "-f", self.file("empty", b""), "-n", "999", *CAFE)[0] == 0
        assert len(self.payloads()) == 9 + 999
        assert max(self.client.requests) < 1_500_000
        assert len(self.client.requests) == 3 + 2

    def test_headers_and_confirmations(self) -> None:
        code, out, _ = self.run_it("pub", "a", "x", "-n2", "-H", "k=v=w", "-c", "--json", *CAFE)
        assert (code, json.loads(out)["confirmed"]) == (0, "handled")
        assert self.client.published == [("a", b"x", {"k": b"v=w"})] * 2
        for header in ("k", "=v", ""):
            assert "NAME=VALUE" in self.usage("pub", "a", "x", "-H", header, *CAFE)
        assert "pubsub: MESSAGE and --file exclude" in self.usage("pub", "a", "x", "-f", "y", *CAFE)

    def test_a_header_that_is_given_twice(self) -> None:
        err = self.usage("pub", "a", "x", "-H", "k=v", "-H", "k=w", *CAFE)
        assert "the header 'k' is given twice" in err
        assert self.run_it("pub", "a", "x", "-H", "k=v", "-H", "K=w", *CAFE)[0] == 0
        assert self.payloads() == [b"x"]

    def test_refused_messages_are_counted(self) -> None:
        self.client.notices = [Refusal(1, "rate-limited")]
        code, out, err = self.run_it("pub", "a", "x", "-n3", "--json", *CAFE)
        assert (code, err) == (1, "pubsub: 1 message was refused: rate-limited\n")
        shown = {"topic": "a", "published": 2, "failed": 1, "confirmed": None}
        assert json.loads(out) == shown

    def test_a_client_without_the_right_is_told_what_to_do(self) -> None:
        user = (
            "the broker's access rules decide: give a user that may, with --user; if a queue key "
            "closes the topic, use fast or http and a token with the key"
        )
        token = "give a token that permits it with --token-file or PUBSUB_TOKEN"
        web = ["--url=http://h:1"]
        for reason, where, remedy in (
            ("NOT AUTHORIZED: a", CAFE, user),
            ("permission denied: publish to topic 'a'", web, token),
            ("the topic cannot be created: WRONG_QUEUE_KEY", web, token),
        ):
            self.client.notices = [Refusal(1, reason)]
            line = self.one_line("pub", "a", "x", *where)
            assert line == f"pubsub: 1 message was refused: {reason}; {remedy}\n"
        self.client.notices = []
        for error in (
            SubscriptionRefused("the subscription to 'a' was refused: UNAUTHORIZED"),
            NotPublished("1 message was refused: UNAUTHORIZED", 1, 1),
        ):
            self.error = error
            assert self.one_line("pub", "a", "x", *CAFE) == f"pubsub: {error}; {user}\n"

    def test_the_topics_of_the_broker_itself_have_a_remedy_of_their_own(self) -> None:
        remedy = (
            "it is a topic of the broker itself: name it in the broker's setting grant, or in an "
            "access rule\n"
        )
        self.error = SubscriptionRefused(
            "the subscription to '$SYS/stats' was refused: UNAUTHORIZED"
        )
        for where in (CAFE, ("--url=http://h:1",)):
            assert self.one_line("sub", "$SYS/stats", *where).endswith(f"UNAUTHORIZED; {remedy}")
        refusal = {"error": "not-authorized", "message": "permission denied", "topic": "$SYS/stats"}
        with patch.object(self.api, "answer", return_value=(403, [refusal])):
            line = self.one_line("tail", "$SYS/stats", API)
            assert line.endswith(f": permission denied; {remedy}")

    def test_the_lines_before_one_that_cannot_be_published(self) -> None:
        lines = "".join(f"{number}\n" for number in range(1, 40_000))
        for before, count in (("1\n", 1), (lines, 39_999)):
            self.client.published.clear()
            given = f"{before}{'x' * 1001}\nlast\n"
            code, out, err = self.run_it("pub", "a", "--json", *CAFE, stdin=given)
            assert (code, out) == (1, "")
            assert err == (
                f"pubsub: line {count + 1}: more than 1000 bytes; the lines before it are "
                "published\n"
            )
            assert self.payloads() == before.encode().split()
            assert self.client.flushed == count
        self.client.published.clear()
        self.client.flushed = 0
        with patch("pubsub.commands.message_source._MOST_LINE", 2**19):
            given = f"{lines}{'x' * 2**20}"
            code, out, err = self.run_it("pub", "a", *CAFE, stdin=given)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert self.client.flushed == len(self.payloads()) == 39_999

    def test_a_message_that_cannot_be_published(self) -> None:
        line = self.one_line("pub", "a", "x" * 1001, *CAFE)
        assert line == "pubsub: more than 1000 bytes\n"

    def test_no_broker(self) -> None:
        self.error = ConnectFailed("no answer")
        assert self.one_line("pub", "a", "x") == (
            "pubsub: no answer; start one with twistd -n pubsub, or name one with --url or pubsub "
            "context add\n"
        )

    def test_a_client_that_is_not_admitted(self) -> None:
        self.error = ConnectFailed("bad-token", refused=True)
        assert self.one_line("pub", "a", "x") == (
            "pubsub: bad-token; it may need a token, with --token-file or PUBSUB_TOKEN\n"
        )
        assert self.one_line("pub", "a", "x", *CAFE) == (
            "pubsub: bad-token; it may need a user, with --user and --password-file or "
            "PUBSUB_PASSWORD\n"
        )
        token = f"--token-file={self.file('token', b'secret')}"
        assert self.one_line("pub", "a", "x", token) == (
            "pubsub: bad-token; give a valid token with --token-file or PUBSUB_TOKEN\n"
        )
        password = f"--password-file={self.file('password', b'sesame')}"
        assert self.one_line("pub", "a", "x", "--user=bob", password, *CAFE) == (
            "pubsub: bad-token; give a valid user and password with --user and --password-file\n"
        )
        self.error = ConnectFailed("the broker refused the client: UNAUTHORIZED", refused=True)
        assert self.one_line("pub", "a", "x", "--user=bob", password, *CAFE).endswith(
            "UNAUTHORIZED; check the password, and that the user may use the topic; another is "
            "given with --user and --password-file\n"
        )
        assert self.one_line("pub", "a", "x", *CAFE).endswith(
            "UNAUTHORIZED; it may need a user, with --user and --password-file or PUBSUB_PASSWORD; "
            "if a queue key closes the topic, use fast or http and a token with the key\n"
        )


class SubTests(ClientCase):
    """pubsub sub"""

    def setUp(self) -> None:
        super().setUp()
        for topic, *payloads in (("a", b"1", b"2"), ("b", b"3")):
            event = Messages(str(topic), Columns.of([bytes(p) for p in payloads]))
            self.client.stored.append(MessageBatch(event))

    def test_a_count_and_formats(self) -> None:
        assert self.run_it("sub", "a", "-n1", *CAFE) == (0, "1\n", "")
        assert self.run_it("sub", "a", "b", "-vn3", *CAFE) == (0, "a 1\na 2\nb 3\n", "")
        assert self.run_it("sub", "a", "-n3", "-Fraw", *CAFE) == (0, "123", "")

    def test_the_last_messages_first(self) -> None:
        self.api.starts_at = 3
        assert self.run_it("sub", "a", "b", "--last", "2", "-n1", *CAFE) == (0, "1\n", "")
        assert self.client.starts == [3]
        (_, target), *_ = self.api.requests
        query = parse_qs(urlsplit(target).query)
        assert query == {"last": ["2"], "topic": ["a", "b"], "format": ["jsonl"]}

    def test_the_last_messages_of_another_server(self) -> None:
        code, out, err = self.run_it("sub", "a", "--last", "2", *CAFE)
        assert (code, out) == (1, "")
        assert "the reply is not one of a broker: it has no Pubsub-Start" in err

    def test_last_and_from_exclude_each_other(self) -> None:
        code, _, err = self.run_it("sub", "a", "--last", "2", "--from", "earliest", *CAFE)
        assert code == 2
        assert "give either --from or --last" in err

    def test_a_reader_commits_behind_what_is_printed(self) -> None:
        assert self.run_it("sub", "a", "--reader", "billing", "-n3", *CAFE)[:2] == (0, "1\n2\n3\n")
        assert self.run_it("sub", "a", "--reader", "billing", "-n1", *CAFE)[:2] == (0, "1\n")
        assert self.client.readers == ["billing"] * 2
        # A batch of two messages, another of one; then one message of the first batch.
        assert self.client.commits == [2, 3, 1]

    def test_a_reader_does_not_commit_what_cannot_be_written(self) -> None:
        with self.stdout(Path("/dev/full")), redirect_stderr(io.StringIO()):
            assert main(["sub", "a", "--reader", "billing", *CAFE]) == 1
        assert self.client.commits == []

    def test_output_that_fails_at_the_end(self) -> None:
        """The last message is written after the subscription has ended."""
        err, wake = io.StringIO(), Output._wake

        def wake_at_the_end(output: Output) -> None:
            if output._closing:
                wake(output)

        with (
            patch.object(Output, "_wake", wake_at_the_end),
            self.stdout(Path("/dev/full")),
            redirect_stderr(err),
        ):
            assert main(["sub", "a", "-n1", *CAFE]) == 1
        assert err.getvalue() == "pubsub: No space left on device\n"

    def test_a_time(self) -> None:
        code, out, err = self.run_it("sub", "a", "-W", "0.01", *CAFE)
        assert (code, err) == (124, "")
        assert "1\n2\n3\n".startswith(out)

    def test_prefixes_and_starts(self) -> None:
        self.store(("a", "x"), ("a", "y"))
        for where in ("latest", "earliest", "7", "2026-01-31"):
            self.run_it("sub", "a", "b", "-n1", "--from", where, *CAFE)
        assert self.client.starts == [None, 0, 7, 1]
        self.run_it("sub", "a", "b/*", "-n1", *CAFE)
        assert (self.client.topics, self.client.prefixes) == (("a",), ["b/"])
        spot = ("--url=spot://127.0.0.1:7073", API)
        err = self.one_line("sub", "b/*", "--from=earliest", *spot)
        assert err == (
            "pubsub: b/* is a prefix, and the history is read by topic only; name the "
            "topics, or subscribe without --from and --last\n"
        )
        assert "earliest, latest" in self.usage("sub", "a", "--from", "soon", *CAFE)
        assert "'x' is not a valid number;" in self.usage("sub", "a", "--timeout", "x", *CAFE)
        assert "'x' is not a valid whole number;" in self.usage("sub", "a", "-n", "x", *CAFE)
        assert "PUBSUB_API" in self.one_line("sub", "a", "--from=earliest", CAFE[0])

    def test_patterns_of_other_brokers(self) -> None:
        self.store(("a/#", "x"), ("a", "y"))

        def err(*arguments: str) -> str:
            return self.run_it(*arguments, *CAFE)[2]

        name = "pubsub: 'a/#' is the name of one topic here; "
        remedy = "a prefix is written 'a/*', and needs http or spot\n"
        assert err("sub", "a/#", "-n1") == name + remedy
        for topic, prefix in (("#", "*"), ("a/+/b", "a/*"), ("a.>", "a.*"), ("a.*.b", "a.*")):
            assert f"a prefix is written {prefix!r}" in err("sub", topic, "-n1")
        for topic in ("a/*", "*", "a#b", "c++", "a+b/c", "1>0", "a"):
            assert err("sub", topic, "-n1") == ""
        assert err("sub", "a/#", "-n1", "--quiet") == ""
        for topic in ("a/#", "a/*", "a.>"):
            line = f"pubsub: {topic!r} is the name of one topic here; the history is read by names"
            assert err("tail", topic) == f"{line} only\n"
            assert line in err("replay", topic, "--output", str(self.directory / f"{hash(topic)}"))

    def test_notices(self) -> None:
        self.client.notices = [Disconnected("gone"), Gap(("a",), "restarted", 7)]
        _, _, err = self.run_it("sub", "a", "-n1", *CAFE)
        assert err == (
            "pubsub: the connection was lost: gone; connecting again\n"
            "pubsub: a: messages may be missing after offset 7: restarted\n"
        )
        assert self.run_it("sub", "a", "-qn1", *CAFE)[2] == ""


class NumberTests(ClientCase):
    """Numbers that no container can count"""

    def test_they_are_usage_errors(self) -> None:
        big = "9" * 20
        for arguments in (
            ("tail", "-n", big, "x"), ("sub", "x", "--from", "earliest", "-n", big),
            ("sub", "x", "--from", big), ("pub", "x", "y", "-n", big), ("bench", "--size", big),
            ("bench", "--batch", big), ("bench", "--pub", big), ("bench", "-n", big),
        ):  # fmt: skip
            err = self.usage(*arguments, *CAFE)
            assert big in err, arguments
            assert err.count("\n") == 1
        self.store(("x", "y"))
        assert self.run_it("tail", "-n", str(sys.maxsize), "x", API)[1] == "y\n"

    def test_a_lack_of_memory(self) -> None:
        self.error = MemoryError()
        assert "ask for less" in self.one_line("pub", "a", "x", *CAFE)


class TailTests(ClientCase):
    """pubsub tail"""

    def test_messages_of_other_topics_do_not_count(self) -> None:
        self.store(*[("a", f"{number}") for number in range(5)], *[("b", "x")] * 2000)
        self.store(("a", "last"))
        assert self.run_it("tail", "a", "-n2", API) == (0, "4\nlast\n", "")
        assert self.run_it("tail", "a", "b", "-n2", API) == (0, "x\nlast\n", "")
        assert self.run_it("tail", "a", "-n100", API)[1].splitlines() == [*"01234", "last"]

    def test_the_last_ones(self) -> None:
        self.store(*((f"t{n % 2}", str(n)) for n in range(40)), ("", ""))
        assert self.run_it("tail", "-n3", "t1", API)[1] == "35\n37\n39\n"
        code, out, err = self.run_it("tail", "-n2", API)
        assert (code, out) == (0, "38\n39\n")
        assert err == "pubsub: offsets 40 to 40 are damaged and left out\n"

    def test_the_last_ones_that_are_large(self) -> None:
        """None is held: the first of them is looked for instead."""
        self.patch(tail, "_KEPT_BYTES", 2000)  # type: ignore[no-untyped-call]
        for size, most_before in ((100, 1000), (1000, 0)):
            self.api.messages.clear()
            text = "x" * size
            self.store(*[("a", text), ("b", "")] * 50, ("a", "last"))
            _, out, err = self.run_it("tail", "-n3", "a", API)
            assert (out, err) == (f"{text}\n{text}\nlast\n", "")
            (asked,) = [
                parse_qs(urlsplit(target).query)
                for _, target in self.api.requests
                if target.startswith("/v1/history")
            ]
            self.api.requests.clear()
            begin, end = int(asked["start"][0]), int(asked["stop"][0])
            topics = [topic for topic, _ in self.api.messages[begin:end]]
            assert 3 <= topics.count("a") <= 3 + most_before
            assert (topics.count("a") > 3) == (size < 1000)

    def test_a_topic_that_may_not_be_read(self) -> None:
        answer = self.api.answer
        refusal = {"error": "not-authorized", "message": "permission denied: read topic 'a'"}

        def answers(method: str, path: str, query: dict[str, list[str]]) -> Any:
            if path == "/v1/history":
                return 403, [refusal]
            return answer(method, path, query)

        self.patch(self.api, "answer", answers)  # type: ignore[no-untyped-call]
        for options in (("tail",), ("tail", "-n0"), ("replay", "-o-")):
            for stored in ((), (("b", "x"),)):
                self.api.messages.clear()
                self.store(*stored)
                code, out, err = self.run_it(*options, "a", API)
                assert (code, out) == (1, "")
                assert "permission denied: read topic 'a'; give a token that permits it" in err
        self.api.messages.clear()
        assert self.run_it("tail", API) == (0, "", "")

    def test_following(self) -> None:
        self.store(("a", "x"))
        self.client.stored.append(MessageBatch(Messages("a", Columns.of([b"y"]))))
        self.client.ends = True
        assert self.run_it("tail", "-f", "a", *CAFE) == (0, "x\ny\n", "")
        assert self.client.starts == [1]
        assert "needs a topic" in self.usage("tail", "-f", API)


class ReplayTests(ClientCase):
    """pubsub replay"""

    def setUp(self) -> None:
        super().setUp()
        self.store(("a", "1"), ("b", "2"), ("a", "3"))

    def test_to_a_file(self) -> None:
        path = self.directory / "new"
        code, out, err = self.run_it("replay", "a", "-o", str(path), "-Fraw", API)
        assert (code, out, err) == (0, "", "2 messages of offsets 0 to 3\n")
        assert path.read_bytes() == b"13"
        assert "not replaced" in self.one_line("replay", "a", "-o", str(path), API)

    def test_a_full_disk(self) -> None:
        path, opened = self.directory / "new", os.open

        def full(name: Any, *arguments: int, **options: Any) -> int:
            descriptor = opened(name, *arguments, **options)
            if name == str(path):
                os.close(descriptor)
                descriptor = opened("/dev/full", os.O_WRONLY)
            return descriptor

        with patch("os.open", full):
            line = self.one_line("replay", "a", "-o", str(path), API)
        assert line == f"pubsub: {path}: No space left on device\n"
        assert not path.exists()

    def test_it_continues_after_a_stream_that_was_cut_off(self) -> None:
        self.api.cut = 150
        path = self.directory / "new"
        self.run_it("replay", "-o", str(path), "-Fraw", API)
        assert path.read_bytes() == b"123"
        starts = [
            parse_qs(urlsplit(t).query)["start"] for _, t in self.api.requests if "history" in t
        ]
        assert starts == [["0"], ["1"]]
        self.api.cut = 10
        path.unlink()
        assert "cut off" in self.one_line("replay", "-o", str(path), API)
        assert not path.exists()

    def test_json(self) -> None:
        self.store(("", ""))
        path = str(self.directory / "new")
        code, out, err = self.run_it("replay", "a", "-o", path, "--from=1", "--json", API)
        assert code == 0
        assert json.loads(out) == {"start": 1, "stop": 4, "messages": 1, "damaged": [[3, 4]]}
        assert err == "pubsub: offsets 3 to 3 are damaged and left out\n"
        assert "exclude" in self.usage("replay", "-o", "-", "--json", API)

    def test_to_a_terminal(self) -> None:
        """A message could otherwise move the cursor."""
        self.store(("a", "\x1b[2J"))
        wanted = replay.ReplayRange(3, 4, ())
        where = resolve(dict.fromkeys(NO_OPTIONS), {})
        for is_terminal, shown in ((True, b"\\x1b[2J\n"), (False, b"\x1b[2J\n")):
            out = Mock(buffer=io.BytesIO())
            out.isatty.return_value = is_terminal
            with patch.object(sys, "stdout", out):
                assert replay.write(where, wanted, "-", "text", lambda offset: None) == 1
            assert out.buffer.getvalue() == shown

    def test_to_a_topic(self) -> None:
        code, _, _ = self.run_it("replay", "a", "--into=c", "--from=1", *CAFE)
        assert code == 0
        assert self.client.published == [("c", b"3", None)]
        assert "read while" in self.usage("replay", "a", "--into=a", *CAFE)
        assert "--into" in self.usage("replay", "a", *CAFE)

    def test_large_messages_are_published_some_at_a_time(self) -> None:
        """A request with hundreds of them is not confirmed in time, and fills the memory."""
        self.client.most = 10**6
        self.store(*[("a", "x" * 300_000)] * 9, *[("a", "y")] * 9)
        assert self.run_it("replay", "a", "--into=c", *CAFE)[0] == 0
        sizes = [nbytes for nbytes in self.client.requests if nbytes]
        assert sum(sizes) == 9 * 300_000 + 11
        assert max(sizes) < 1_500_000
        assert len(sizes) < 5

    def test_a_replay_that_cannot_be_read_says_where_to_go_on(self) -> None:
        """The messages that were read before are published."""
        self.store(("a", "4"))
        self.api.cut, self.api.then_cut = 200, 0
        with patch("pubsub.commands.replay.MOST_MESSAGES", 1):
            line = self.one_line("replay", "--into=c", "a", "b", *CAFE)
        assert self.client.published == [("c", b"1", None), ("c", b"2", None)]
        assert "cut off" in line
        assert line.endswith("before offset 2 are published, so go on with --from 2\n")

    def test_a_replay_that_fails_says_where_to_go_on(self) -> None:
        unknown = OutcomeUnknown("cafe at h:1: lost; they may or may not have been published")
        for error, published in ((unknown, 2), (unknown, 0), (NotPublished("full", 1, 1), 1)):
            self.client.published, self.client.errors = [], {published: error}
            with patch("pubsub.commands.replay.MOST_MESSAGES", 1):
                line = self.one_line("replay", "--into=c", "a", "b", "--from=0", *CAFE)
            assert line == (
                f"pubsub: {error}; the messages before offset {published} are published, so go on "
                f"with --from {published}\n"
            )


class BenchTests(ClientCase):
    """pubsub bench"""

    def test_json(self) -> None:
        code, out, _ = self.run_it("bench", "-n", "50", "--batch=7", "--sub=2", "--json", *CAFE)
        found = json.loads(out)
        assert (code, found["published"], found["received"], found["lost"]) == (0, 50, 100, 0)

    def test_text_and_the_messages_of_others(self) -> None:
        event = Messages("cafe/250", Columns.of([b"x", b"y" * 100]))
        self.client.stored.append(MessageBatch(event))
        code, out, _ = self.run_it("bench", "-n", "10", *CAFE)
        assert code == 0
        assert out.startswith("published            10")
        assert "\nreceived             10" in out

    def test_lost_messages(self) -> None:
        self.client.drops = 3
        with patch("pubsub.commands.bench_run._QUIET_SECONDS", 0.0):
            code, out, _ = self.run_it("bench", "-n", "10", *CAFE)
        assert code == 1
        assert "lost                  3" in out

    def test_others_who_publish_do_not_keep_it_waiting_for_lost_messages(self) -> None:
        self.client.drops = 3
        event = Messages("cafe/250", Columns.of([b"x", b"y" * 100]))
        self.client.noise = [MessageBatch(event)] * 300
        with (
            patch("pubsub.commands.bench_run._QUIET_SECONDS", 0.05),
            patch("pubsub.commands.bench_run._PROGRESS_SECONDS", 0.01),
        ):
            code, out, _ = self.run_it("bench", "-n", "10", *CAFE)
        assert code == 1
        assert "lost                  3" in out
        assert len(self.client.noise) > 100

    def test_publishers_alone(self) -> None:
        code, out, _ = self.run_it("bench", "-n", "10", "--sub=0", *CAFE)
        assert (code, out.count("\n")) == (0, 1)


class TopicsTests(ClientCase):
    """pubsub topics"""

    def test_listing(self) -> None:
        self.store(("a", "xx"), ("b", "y"), ("a", "zzz"))
        assert self.run_it("topics", API) == (0, "a\t2\t5\nb\t1\t1\n", "")
        assert json.loads(self.run_it("topics", "--json", API)[1].splitlines()[1])["name"] == "b"
        assert self.api.port == 7080

    def test_the_list_of_a_broker_of_an_earlier_version(self) -> None:
        row = {
            "name": "a", "durability": "async", "subscribers": 0, "messages": 1, "bytes": 1,
            "last_timestamp": 1,
        }  # fmt: skip
        before = self.api.answer

        def answer(method: str, path: str, query: Any) -> tuple[int, list[dict[str, Any]]]:
            if path != "/v1/topics":
                return before(method, path, query)
            if "unused" in query:
                message = "unknown parameter 'unused'; expected after, limit, match, start, stop"
                return 400, [{"error": "invalid-request", "message": message}]
            return 200, [{"items": [row], "next": None}]

        with patch.object(self.api, "answer", answer):
            assert self.run_it("topics", "list", API) == (0, "a\tasync\t0\t1\t1\t1\n", "")
            assert self.run_it("topics", "list", "--all", "--match=a", API)[0] == 0
        assert parse_qs(urlsplit(self.api.requests[-1][1]).query)["match"] == ["a"]

    def test_names_stay_in_their_column_and_row(self) -> None:
        self.store(("a\tb\nc\x1b[2J", "x"))
        assert self.run_it("topics", API) == (0, "a\\tb\\nc\\u001b[2J\t1\t1\n", "")

    def test_a_deletion_is_confirmed_on_a_terminal(self) -> None:
        self.store(("a", "x"), ("b", "x"))
        asked = []

        def answer(question: str, **_: object) -> bool:
            asked.append(question)
            return "2 topics" in question

        with patch("pubsub.commands.topics.sys") as system, patch("click.confirm", answer):
            system.stdin.isatty.return_value = True
            assert self.run_it("topics", "delete", "a", API)[0] == 1
            assert self.api.requests == []
            assert self.run_it("topics", "delete", "a", "b", API)[0] == 0
        assert len(self.api.requests) == 2
        assert asked == ["Delete a and all messages?", "Delete 2 topics and all messages?"]

    def test_deleting(self) -> None:
        self.store(("a/b", "x"))
        assert "--yes" in self.one_line("topics", "delete", "a/b", API)
        token = self.file("token", b"t1\n")
        code, _, _ = self.run_it("topics", "delete", "-y", "a/b", API, "--token-file", token)
        assert code == 0
        assert self.api.requests == [("DELETE", "/v1/topics/a%2Fb")]
        assert self.api.headers == {"Authorization": "Bearer t1"}
        assert "pubsub topics list shows" in self.one_line("topics", "delete", "-y", "none", API)

    def test_one_that_is_gone_does_not_keep_the_others(self) -> None:
        self.store(("a", "x"), ("b", "x"))
        code, out, err = self.run_it("topics", "delete", "-y", "none", "a", "gone", "b", API)
        assert (code, out, err.count("\n")) == (1, "", 2)
        assert [path for _, path in self.api.requests] == [
            f"/v1/topics/{name}" for name in ("none", "a", "gone", "b")
        ]
        self.api.requests.clear()
        with patch.object(self.api, "answer", return_value=(403, [{"error": "not-authorized"}])):
            assert "HTTP 403" in self.one_line("topics", "delete", "-y", "a", "b", API)
        assert len(self.api.requests) == 1

    def test_an_api_that_is_none(self) -> None:
        assert "not nsd" in self.one_line("topics", "--api=nsd://127.0.0.1:7071")
