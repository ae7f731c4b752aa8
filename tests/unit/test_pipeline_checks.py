"""The options of jobs that are checked before Java starts."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from unittest.mock import patch

from twisted.trial.unittest import TestCase

from pubsub.commands import command
from pubsub.pipeline.job_runs import job_runner
from pubsub.pipeline.job_runs.checkpoint_lock import checkpoint_lock


class CheckTests(TestCase):
    """Mistakes that Java and a broker are not needed to find are errors before Java starts."""

    def setUp(self) -> None:
        self.directory = Path(mkdtemp())
        self.addCleanup(rmtree, self.directory)
        self.to = f"--to={self.directory / 'table'}"

    def mistaken(self, expected: str, job: str, *given: str) -> None:
        errors = io.StringIO()
        started = patch.object(job_runner, "job_session", side_effect=AssertionError("started"))
        with redirect_stderr(errors), started:
            assert command.main(["pipeline", job, *given]) == 1
        assert errors.getvalue() == f"pubsub: {expected}\n"
        assert not Path(self.directory, "table").exists()

    def test_a_second_job_with_the_checkpoint(self) -> None:
        table = self.directory / "other"
        sql = self.directory / "query.sql"
        sql.write_text("SELECT topic FROM messages")
        for job, given, checkpoint in (
            ("metrics", (f"--to={table}",), table / "_checkpoints" / "metrics"),
            (
                "derive",
                (f"--to=table:{table}", f"--sql={sql}"),
                table / "_checkpoints" / "derive",
            ),
            ("metrics", (self.to, f"--checkpoint={table}"), table),
        ):
            with checkpoint_lock(str(checkpoint)):
                self.mistaken(
                    f"{checkpoint}: another job uses this checkpoint; stop it, or give this job "
                    "another directory with --checkpoint",
                    job,
                    *given,
                )

    def test_the_source(self) -> None:
        for job in ("archive", "metrics", "sessions", "audit", "dead-letters"):
            self.mistaken("--url: not a valid URL", job, self.to, "--url=http://h:p")
        time = "a time such as 2026-01-31T12:00:00Z, not 'soon'"
        self.mistaken(
            f"--starting: expected earliest, latest, JSON with offsets, or {time}",
            "archive", self.to, "--starting=soon",
        )  # fmt: skip
        pattern = "missing ), unterminated subpattern at position 0"
        self.mistaken(
            f"--subscribe-pattern: {pattern}", "archive", self.to, "--subscribe-pattern=("
        )
        self.mistaken(
            "--subscribe: a topic name has 1 to 255 bytes, not 0",
            "metrics", self.to, "--subscribe=a,,b",
        )  # fmt: skip
        missing = self.directory / "none"
        self.mistaken(
            f"{missing}: No such file or directory", "audit", self.to, f"--token-file={missing}"
        )
        empty = self.directory / "empty"
        empty.touch()
        self.mistaken(
            f"--token-file: {empty}: the file is empty",
            "dead-letters", self.to, f"--token-file={empty}",
        )  # fmt: skip
        self.mistaken(
            f"{missing}: the directory of the history does not exist",
            "archive", self.to, f"--path={missing}",
        )  # fmt: skip

    def test_the_table(self) -> None:
        Path(self.directory, "mine").touch()
        used = "cannot create a Delta table: the directory has other files: 'mine'"
        for job in ("archive", "metrics", "sessions", "audit", "dead-letters"):
            self.mistaken(
                f"{self.directory}: {used}; choose a new or empty directory",
                job, f"--to={self.directory}",
            )  # fmt: skip
        self.mistaken(
            "--format iceberg: option --checkpoint is required, as the catalog places the table",
            "archive", "--to=a.b", "--format=iceberg",
        )  # fmt: skip
        for given in ("--catalog=lake", "--catalog-option=type=sql"):
            self.mistaken(
                "--format delta: --catalog and --catalog-option are for --format iceberg; add it, "
                "or leave them out",
                "archive", self.to, given,
            )  # fmt: skip
        self.mistaken(
            "--format iceberg: the catalog has the options of its storage; give them with "
            "--catalog-option, or in the configuration of pyiceberg, instead of --storage-option",
            "archive", "--to=a.b", "--format=iceberg", "--storage-option=AWS_REGION=x",
        )  # fmt: skip

    def test_publishing(self) -> None:
        name = "a topic name has 1 to 255 bytes, not 0"
        self.mistaken(f"--publish: {name}", "metrics", self.to, "--publish=")
        self.mistaken(f"--alerts: {name}", "audit", self.to, "--threshold=1", "--alerts=")

    def test_derive(self) -> None:
        sql = self.directory / "query.sql"
        given = (f"--sql={sql}", "--to=topic:x", "--checkpoint=c", "--subscribe=x")
        self.mistaken(f"{sql}: No such file or directory", "derive", *given)
        sql.write_text("SELECT 1")
        neither = "the query reads neither the view messages nor the view events"
        self.mistaken(f"--sql: {neither}", "derive", *given)
        sql.write_text("SELECT * FROM messages")
        self.mistaken(
            "--to topic: the job reads the topic 'x', so it would read its own messages; choose "
            "other topics with --subscribe or --subscribe-pattern, or allow it with "
            "--allow-feedback",
            "derive", *given,
        )  # fmt: skip
        self.mistaken(
            "--to topic: option --checkpoint is required", "derive", given[0], "--to=topic:"
        )

    def test_replay(self) -> None:
        archive = self.directory / "archive"
        given = (f"--from={archive}", "--checkpoint=c")
        self.mistaken(f"{archive}: not a Delta table", "replay", *given)
        http = "expected the HTTP API, http:// or https://, not 'cafe://h:1'"
        self.mistaken(f"--url: {http}", "replay", *given, "--url=cafe://h:1")
