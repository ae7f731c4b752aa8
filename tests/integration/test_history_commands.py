"""``pubsub tail``, ``replay`` and ``bench`` over a broker."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

from tests.integration.broker import TIMEOUT, Broker
from tests.integration.command import PUBSUB, error, output, run

TOPIC = "cafe/7"


class TestTail:
    """pubsub tail"""

    def test_the_last_messages(self, env: dict[str, str]) -> None:
        assert output("tail", env=env) == b""
        output("pub", TOPIC, env=env, stdin=b"".join(b"%d\n" % n for n in range(3000)))
        output("pub", "cafe/8", "other", env=env)
        assert output("tail", env=env).splitlines()[-2:] == [b"2999", b"other"]
        assert output("tail", TOPIC, "-n", "3", env=env) == b"2997\n2998\n2999\n"
        assert output("tail", TOPIC, "-n", "0", env=env) == b""
        assert output("tail", "-vn1", "cafe/8", env=env) == b"cafe/8 other\n"
        assert len(output("tail", TOPIC, "-n", "9999", env=env).splitlines()) == 3000

    def test_following(self, env: dict[str, str]) -> None:
        output("pub", TOPIC, env=env, stdin=b"a\nb")
        with subprocess.Popen(
            [PUBSUB, "tail", "-f", "-n", "1", TOPIC], env=env, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"b\n"
            output("pub", TOPIC, "c", env=env)
            assert process.stdout.readline() == b"c\n"
            process.terminate()
            process.wait(TIMEOUT)
        assert "needs a topic" in error("tail", "-f", env=env, code=2)


class TestReplay:
    """pubsub replay"""

    def test_to_a_file(self, env: dict[str, str], tmp_path: Path) -> None:
        output("pub", TOPIC, env=env, stdin=b"a\nb\nc")
        path = tmp_path / "out"
        done = run("replay", TOPIC, "--from=1", "--output", str(path), env=env)
        assert (done.returncode, done.stderr) == (0, b"2 messages of offsets 1 to 3\n")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(row["offset"], row["payload"]) for row in rows] == [(1, "b"), (2, "c")]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "not replaced" in error("replay", TOPIC, "-o", str(path), env=env)
        assert output("replay", "-o-", "-Fraw", "--to=2", env=env) == b"ab"

    def test_to_a_topic(self, env: dict[str, str]) -> None:
        output("pub", TOPIC, env=env, stdin=b"a\nb\nc")
        assert output("replay", TOPIC, "--into=cafe/8", "-q", env=env) == b""
        assert output("tail", "cafe/8", env=env) == b"a\nb\nc\n"

    def test_where_to_is_needed(self, env: dict[str, str], tmp_path: Path) -> None:
        assert "--into" in error("replay", TOPIC, env=env, code=2)
        assert "read while" in error("replay", TOPIC, "--into", TOPIC, env=env, code=2)
        assert "read while" in error("replay", "--into", TOPIC, env=env, code=2)
        path = tmp_path / "out"
        bad = "--api=http://127.0.0.1:1"
        assert "cannot be reached" in error("replay", TOPIC, "-o", str(path), bad, env=env)
        assert not path.exists()


class TestBench:
    """pubsub bench"""

    def test_json(self, env: dict[str, str]) -> None:
        found = json.loads(output("bench", "-n", "3000", "--pub=2", "--sub=2", "--json", env=env))
        assert (found["published"], found["received"], found["lost"]) == (3000, 6000, 0)
        assert 0 < found["latency"]["p50"] <= found["latency"]["max"]
        assert sum(bar["count"] for bar in found["histogram"]) == 6000

    def test_text(self, env: dict[str, str], served: Broker) -> None:
        text = output("bench", "-n", "2000", "--confirm", env=env).decode()
        assert text.startswith("published         2,000")
        assert "p99.9" in text
        assert "█" in text
        only = output("bench", "-n", "2000", "--sub=0", env=env).decode()
        assert only.count("\n") == 1

    def test_no_broker(self, env: dict[str, str]) -> None:
        assert "check the URL" in error("bench", "--url=cafe://127.0.0.1:1", env=env)
