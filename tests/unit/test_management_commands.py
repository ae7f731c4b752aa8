"""The output of the commands of the management API."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from pubsub.commands.api_client import Api, RequestFailed
from pubsub.commands.disconnect import disconnect
from pubsub.commands.sessions import sessions
from pubsub.commands.status import page, status
from pubsub.commands.table_output import bytes_text, time_text
from pubsub.commands.topics import topics
from pubsub.management.status import status_of
from tests.unit.api_at import at
from tests.unit.fakes import make_broker
from tests.unit.raising import raised

URL = "--url=http://127.0.0.1:7080"
SESSION = {
    "mark": "0" * 16, "protocol": "cafe", "client": "\x1b[2Jbob", "identity": "", "state": "live",
    "subscriptions": 1, "messages_in": 2, "messages_out": 3, "queued_bytes": 4, "behind": 0,
    "connected": 0,
}  # fmt: skip


class CommandTests(SynchronousTestCase):
    """Requests, and the output made of their answers"""

    def setUp(self) -> None:
        self.requests: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}
        self.exit_code: object = None

    def run_it(self, command: Any, *arguments: str) -> str:
        def ask(method: str) -> Callable[..., Any]:
            def answer(_api: object, path: str, given: Any = None) -> Any:
                self.requests.append((method, path, dict(given) if given else given))
                found = self.answers.get(path, {})
                return found.pop(0) if isinstance(found, list) else found

            return answer

        with ExitStack() as patches:
            for name in ("get", "put", "post", "delete"):
                patches.enter_context(patch.object(Api, name, ask(name)))
            result = CliRunner().invoke(command, [*arguments, URL], standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        self.exit_code = result.return_value
        return result.output

    def test_sessions_are_listed_page_by_page(self) -> None:
        self.answers["/v1/sessions"] = [
            {"items": [SESSION], "next": "a"},
            {"items": [SESSION], "next": None},
        ]
        lines = self.run_it(sessions, "list", "--state=live").splitlines()
        assert lines == ["0000000000000000\tcafe\t\\u001b[2Jbob\t\tlive\t1\t2\t3\t4\t0"] * 2
        assert self.requests == [
            ("get", "/v1/sessions", {"state": "live", "limit": 1000}),
            ("get", "/v1/sessions", {"state": "live", "limit": 1000, "after": "a"}),
        ]

    def test_a_session_is_shown_with_its_topics(self) -> None:
        self.answers["/v1/sessions/m"] = dict(SESSION)
        self.answers["/v1/subscriptions"] = {"items": [{"topic": "a/b"}], "next": None}
        assert self.run_it(sessions, "show", "m").splitlines()[-1] == "topic  a/b"
        self.answers["/v1/sessions/m"] = dict(SESSION)
        assert '"topics": ["a/b"]' in self.run_it(sessions, "show", "m", "--json")

    def test_a_client_is_disconnected(self) -> None:
        self.run_it(disconnect, "m/x", "--reason", "too noisy")
        assert self.requests == [("delete", "/v1/sessions/m%2Fx", {"reason": "too noisy"})]

    def test_a_client_that_is_gone_does_not_keep_the_others(self) -> None:
        gone = RequestFailed("no session 'x'", "unknown-session")
        asked: list[str] = []

        def delete(_api: object, path: str, _query: object) -> None:
            asked.append(path)
            if path.endswith("x"):
                raise gone

        with patch.object(Api, "delete", delete):
            found = CliRunner().invoke(disconnect, ["x", "y", URL], standalone_mode=False)
        assert (found.return_value, found.output) == (1, "pubsub: no session 'x'\n")
        assert asked == ["/v1/sessions/x", "/v1/sessions/y"]

    def test_topics_are_created_and_rotated(self) -> None:
        self.run_it(topics, "create", "a/b", "--queue-key=k")
        self.answers["/v1/topics/a%2Fb/key"] = {"kept": 1, "ended": 2}
        printed = self.run_it(topics, "rotate", "a/b", "--queue-key=n")
        assert printed == "1 subscription kept, 2 ended\n"
        assert '"kept": 1' in self.run_it(topics, "rotate", "a/b", "--queue-key=n", "--json")
        assert self.requests[0] == (
            "put", "/v1/topics/a%2Fb", {"sync": False, "queue_key": "k"}
        )  # fmt: skip

    def test_queue_keys_of_files(self) -> None:
        file = Path(self.enterContext(TemporaryDirectory())) / "key"
        file.write_text("k2\n")
        given = f"--queue-key-file={file}"
        self.answers["/v1/topics/a%2Fb/key"] = {"kept": 0, "ended": 0}
        self.run_it(topics, "create", "a/b", given)
        self.run_it(topics, "rotate", "a/b", given)
        assert [body.get("queue_key") for _, _, body in self.requests] == ["k2", "k2"]
        self.run_it(topics, "create", "open")
        assert self.requests[-1][2] == {"sync": False}
        for arguments in (("create", "a/b", given, "--queue-key=k"), ("rotate", "a/b")):
            found = CliRunner().invoke(topics, [*arguments, URL])
            assert (found.exit_code, "give either --queue-key or" in found.output) == (2, True)

    def test_topics_are_listed(self) -> None:
        row = {
            "name": "a", "durability": "sync", "subscribers": 1, "messages": 2, "bytes": 3,
            "last_timestamp": None, "used": True,
        }  # fmt: skip
        self.answers["/v1/topics"] = {"items": [row], "next": None}
        assert self.run_it(topics, "list", "--match=a") == "a\tsync\t1\t2\t3\t\n"
        assert '"name": "a"' in self.run_it(topics, "list", "--json")

    def test_topics_that_no_client_has_used_are_left_out(self) -> None:
        row = dict.fromkeys(("durability", "subscribers", "messages", "bytes", "last_timestamp"), 0)
        rows = [row | {"name": name, "used": name == "a"} for name in "abc"]
        self.answers["/v1/topics"] = {"items": rows, "next": None}
        # Without a terminal nothing is reported: a script reads names, or asks for all of them.
        assert self.run_it(topics, "list") == "a\t0\t0\t0\t0\t0\n"
        every = self.run_it(topics, "list", "--all").splitlines()
        assert [line.split("\t")[0] for line in every] == ["a", "b", "c"]
        shown = [json.loads(line) for line in self.run_it(topics, "list", "--json").splitlines()]
        assert [one["name"] for one in shown] == ["a"]
        assert self.requests[0][2]["unused"] == 1
        with patch("pubsub.commands.topics.sys") as system:
            system.stdout.isatty.return_value = True
            printed = self.run_it(topics, "list")
        report = "left out: 2 topics that no client has used; --all lists them"
        assert printed.splitlines()[1:] == [report]

    def test_the_status_is_a_page(self) -> None:
        self.answers["/v1/status"] = found = _status()
        rows = [_refusal(f"reason-{n}", n, f"\x1b[2J{n}") for n in range(1, 7)]
        rows[-1]["last_client"] = None
        self.answers["/v1/refusals"] = {"items": rows, "next": None}
        text = self.run_it(status)
        assert (self.exit_code, "NOT READY" in text) == (1, True)
        assert "CRITICAL: the broker is starting" in text
        last = text.splitlines()[-6:]
        assert [line.split()[1] for line in last] == ["reason", *(f"reason-{n}" for n in "65432")]
        assert last[1].endswith(time_text(6))
        assert last[2].endswith(time_text(5) + "  \\u001b[2J5")
        shown = json.loads(self.run_it(status, "--json"))
        assert shown["ready"] is False
        assert shown["refusals"] == rows
        self.answers["/v1/refusals"] = {"items": [], "next": None}
        assert "last client" not in self.run_it(status)
        found["ready"], found["attention"] = True, []
        self.run_it(status)
        assert self.exit_code == 0
        assert ": ready, up 0:00:00" in next(page(found))
        found["name"] = "broker-a"
        assert ") broker-a: ready, " in next(page(found))
        # A broker of an earlier version.
        del found["name"]
        assert "): ready, " in next(page(found))

    def test_the_columns_of_large_counts_stay_apart(self) -> None:
        found = {**_status(), "refusals": []}
        names = ("connections", "messages_in", "messages_out", "dropped", "refused")
        counts = dict.fromkeys(names, 10**12)
        found["stats"] = {**found["stats"], "protocols": {"cafe": counts}}
        (line,) = [line for line in page(found) if line.startswith("cafe")]
        assert line.split() == ["cafe", *["1,000,000,000,000"] * 5]

    def test_a_broker_that_stops_while_it_is_watched(self) -> None:
        self.answers["/v1/refusals"] = {"items": [], "next": None}
        ready = {**_status(), "ready": True, "attention": []}
        lines = [ready, {"end": {"reason": "stopped"}}]
        with patch.object(Api, "lines", lambda *_: iter(lines)):
            error = raised(RequestFailed, self.run_it, status, "--watch")
            assert str(error).startswith("the broker has ended the status: stopped; ")
            lines.pop()
            assert ": ready, " in self.run_it(status, "--watch")

    def test_the_status_has_what_is_shared_with_other_brokers(self) -> None:
        found = {**_status(), "refusals": []}
        assert not any(line.startswith("backplane") for line in page(found))
        shares: dict[str, object] = {
            "connected": True,
            "messages_out": 1000,
            "messages_in": 2,
            "topics": 3,
        }
        found["stats"] = {**found["stats"], "backplane": shares}
        lines = [line for line in page(found) if line.startswith("backplane")]
        assert lines == ["backplane connected, 1,000 messages sent, 2 received, 3 topics"]
        waiting = {"history_unreplicated": 4, "history_lag": 5}
        for connected, trouble, state in (
            (True, "", "shared"), (True, "x", "not shared"), (False, "", "not shared"),
        ):  # fmt: skip
            shares.update(waiting, history_connected=connected, history_trouble=trouble)
            expected = f"history {state}, 4 messages not shared yet, 5 records of others not read"
            assert expected in [line.strip() for line in page(found)]


class UrlTests(SynchronousTestCase):
    """URLs of the HTTP API"""

    def test_the_port(self) -> None:
        for end, port in (("", 7080), ("/", 7080), (":80", 80), (":0", 0)):
            with patch("pubsub.commands.api_client.HTTPConnection", side_effect=OSError) as made:
                raised(OSError, at(f"http://host{end}").get, "/v1/status")
            assert made.call_args.args == ("host", port)

    def test_what_a_request_cannot_have(self) -> None:
        for url in ("http://a..b", "http://127.0.0.1:1/é", "http://127.0.0.1:1/\udcff"):
            error = raised(RequestFailed, at(url).get, "/v1/status")
            assert str(error).startswith(f"{url}: the URL cannot be used: ")

    def test_files_of_tls(self) -> None:
        error = raised(RequestFailed, at("https://127.0.0.1:1", tls_ca="/none").get, "/v1/status")
        missing = "No such file or directory; give a file in PEM"
        assert str(error) == f"--tls-ca /none: {missing}"


class TextTests(SynchronousTestCase):
    """Sizes and times"""

    def test_sizes_have_units(self) -> None:
        assert [bytes_text(n) for n in (0, 1023, 1536, 2**31, 2**41)] == [
            "0 B", "1,023 B", "1.5 KiB", "2.0 GiB", "2,048.0 GiB"
        ]  # fmt: skip

    def test_no_time_is_empty(self) -> None:
        assert time_text(None) == ""
        assert len(time_text(1_700_000_000_000_000)) == 19


def _refusal(reason: str, timestamp: int, client: str) -> dict[str, Any]:
    return {
        "protocol": "cafe",
        "reason": reason,
        "count": 3,
        "last_timestamp": timestamp,
        "last_client": client,
    }


def _status() -> dict[str, Any]:
    broker = make_broker()
    return status_of(broker.statistics, broker.readiness)
