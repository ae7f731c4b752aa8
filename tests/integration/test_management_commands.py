"""``pubsub topics``, ``sessions``, ``status`` and ``disconnect``: see docs/command.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.integration.broker import HOST, Start, listen
from tests.integration.clients import DISCONNECT, Cafe
from tests.integration.command import error, output, settings, url


def test_topics(start: Start, tmp_path: Path) -> None:
    broker = start(*listen("cafe"), f"--admin-port=tcp:0:interface={HOST}")
    env = settings(url(broker, "http"), tmp_path)
    assert output("topics", "create", "a/b", "--sync", env=env) == b""
    (row,) = output("topics", "list", "--match=a/*", env=env).splitlines()
    assert row.split(b"\t")[:4] == [b"a/b", b"sync", b"0", b"0"]
    assert "pubsub topics create" in error("topics", "rotate", "a/b", "--queue-key=k", env=env)
    output("topics", "create", "a/b", "--queue-key=k1", env=env)
    rotated = output("topics", "rotate", "a/b", "--queue-key=k2", env=env)
    assert rotated == b"0 subscriptions kept, 0 ended\n"
    assert "pubsub topics rotate" in error("topics", "create", "a/b", "--queue-key=x", env=env)
    (shown,) = output("topics", "list", "--match=a/*", "--json", env=env).splitlines()
    assert json.loads(shown)["keyed"] is True


def test_a_session_is_found_shown_and_ended(start: Start, tmp_path: Path) -> None:
    broker = start(*listen("cafe"), f"--admin-port=tcp:0:interface={HOST}")
    env = settings(url(broker, "http"), tmp_path)
    with Cafe.subscriber(broker, b"\x07") as client:
        (line,) = output("sessions", "list", "--protocol=cafe", "--json", env=env).splitlines()
        row = json.loads(line)
        assert (row["subscriptions"], row["state"]) == (1, "live")
        mark = row["mark"]
        assert mark.encode() in output("sessions", env=env)
        shown = json.loads(output("sessions", "show", mark, "--json", env=env))
        assert shown["topics"] == ["cafe/7"]
        assert b"cafe/7" in output("sessions", "show", mark, env=env)
        assert output("disconnect", mark, "--reason=too noisy", env=env) == b""
        assert [one.opcode for one in client.receive_rest()] == [DISCONNECT]
    assert "pubsub sessions lists" in error("disconnect", mark, env=env)
    assert "pubsub sessions lists" in error("sessions", "show", "zz", env=env)


def test_status(start: Start, tmp_path: Path) -> None:
    broker = start(*listen("cafe"), f"--admin-port=tcp:0:interface={HOST}")
    env = settings(url(broker, "http"), tmp_path)
    error("sessions", "show", "0" * 16, env=env)
    text = output("status", env=env).decode()
    assert ": ready, up" in text
    assert re.search(r"http +unknown-session +1  \d{4}-\S+ \S+  127\.0\.0\.1:\d+$", text, re.M)
    assert "cafe" in text
    assert json.loads(output("status", "--json", env=env))["ready"] is True
