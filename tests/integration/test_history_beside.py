"""The history's directory beside a running broker: readers of it, checks and backups."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run
from uuid import uuid4

from pubsub.store.reading.log_view import LogView
from tests.integration.broker import Broker, Start, listen
from tests.integration.rheos_client import CREATE, PUBLISH, Rheos
from tests.unit.shown_log import shown


def open_broker(start: Start, path: Path) -> Broker:
    return start(*listen("rheos"), f"--store=log:{path}", "--retention=*=age:36500d")


def history(action: str, store: Path, *arguments: str) -> tuple[int, str]:
    """Run ``pubsub history``; return its exit code and its output."""
    command = Path(sys.executable).with_name("pubsub")
    done = run(
        [command, "history", action, *arguments, "--store", store],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_message_is_there_when_it_is_acknowledged(start: Start, tmp_path: Path) -> None:
    """For another process, through a crash of the broker."""
    path = tmp_path / "history"
    sent: list[bytes] = []
    broker = open_broker(start, path)
    view = LogView(path)
    for life in range(3):
        with Rheos(broker.port("rheos")).use(uuid4().bytes) as client:
            if not life:
                client.do(CREATE, b"news")
            for number in range(40):
                sent.append(b"%d.%d" % (life, number))
                client.do(PUBLISH, b"news", sent[-1])
                assert shown(view.refresh()) == (sent, [])
        broker.kill()
        assert shown(view.refresh()) == (sent, [])
        broker = open_broker(start, path)
    view.refresh()
    assert len(view.epochs) == 4
    view.close()


def test_check_and_backup_beside_a_broker_that_writes(start: Start, tmp_path: Path) -> None:
    path, copy, restored = (tmp_path / name for name in ("history", "copy", "restored"))
    broker = open_broker(start, path)
    with Rheos(broker.port("rheos")).use(uuid4().bytes) as client:
        client.do(CREATE, b"news")
        client.do(PUBLISH, b"news", b"before")
        client.send(*[client.request(PUBLISH, b"news", b"%d" % number) for number in range(5000)])
        code, out = history("check", path)
        assert code == 0, out
        code, out = history("backup", path, str(copy))
        assert code == 0, out
        for _ in range(5000):
            client.acked()
    code, out = history("repair", path)
    assert code == 1
    assert "in use by another broker" in out
    assert history("restore", restored, str(copy))[0] == 0
    view = LogView(copy)
    found, damaged = shown(view.refresh())
    view.close()
    assert damaged == []
    assert found == [b"before", *[b"%d" % number for number in range(len(found) - 1)]]
    second = open_broker(start, restored)
    with Rheos(second.port("rheos")).use(uuid4().bytes) as client:
        client.do(PUBLISH, b"news", b"after")
    view = LogView(restored)
    assert shown(view.refresh()) == ([*found, b"after"], [])
    view.close()
    second.stop()
    assert history("check", restored)[0] == history("check", copy)[0] == 0
