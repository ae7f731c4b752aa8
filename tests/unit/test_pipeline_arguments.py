"""The options of the jobs of the pipeline: their defaults, and the values that they take."""

from __future__ import annotations

import argparse
import io
from contextlib import redirect_stderr
from datetime import UTC, datetime
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.command_line import arguments
from pubsub.pipeline.command_line.argument_groups import DEFAULT_URL
from pubsub.pipeline.command_line.argument_values import time_range
from tests.unit.raising import raised

NEEDED = {
    "archive": ["--to=t"],
    "metrics": ["--to=t"],
    "sessions": ["--to=t"],
    "audit": ["--to=t"],
    "dead-letters": ["--to=t"],
    "replay": ["--from=t", "--checkpoint=c"],
    "derive": ["--sql=q", "--to=console"],
}


def parsed(job: str, *given: str) -> argparse.Namespace:
    """Return the options of ``job`` with the necessary ones and ``given``."""
    return arguments.job_parser(job).parse_args([*NEEDED[job], *given])


class JobTests(SynchronousTestCase):
    """job_parser"""

    def defaults(self, job: str, **expected: Any) -> None:
        found = vars(parsed(job))
        assert {name: found[name] for name in expected} == expected

    def test_defaults(self) -> None:
        self.defaults("archive", format="delta", partition_by="topic,day", compact_every=60)
        self.defaults("metrics", window=10, watermark=5, trigger=2, publish=None)
        self.defaults("sessions", longest=7 * 86_400, watermark=10)
        self.defaults("audit", window=60, threshold=None, alerts="$SYS/pipeline/alerts")
        self.defaults("dead-letters", trigger=10, starting="earliest", max_rows=2_000_000)
        self.defaults("replay", table="t", url=DEFAULT_URL, prefix="", rate=None)
        self.defaults("derive", partition_by="", watermark=10, once=False, checkpoint=None)
        self.defaults("derive", allow_feedback=False)

    def test_all_jobs_run_on_a_cluster(self) -> None:
        assert set(NEEDED) == set(arguments.JOBS)
        for job in arguments.JOBS:
            found = parsed(job, "--master=spark://h:7077", "--conf=a=b=c", "--conf", "d=")
            assert found.master == "spark://h:7077"
            assert found.conf == [("a", "b=c"), ("d", "")]

    def test_required_options(self) -> None:
        for job, needed in NEEDED.items():
            for left_out in needed:
                errors = io.StringIO()
                given = [one for one in needed if one is not left_out]
                with redirect_stderr(errors), pytest.raises(SystemExit):
                    arguments.job_parser(job).parse_args(given)
                assert left_out.partition("=")[0] in errors.getvalue()

    def test_topics_can_be_chosen_of_messages_only(self) -> None:
        assert parsed("metrics", "--subscribe=a,b").subscribe == "a,b"
        assert parsed("metrics", "--subscribe-pattern=a.*").subscribe_pattern == "a.*"
        for job in ("sessions", "audit", "dead-letters"):
            errors = io.StringIO()
            with redirect_stderr(errors), pytest.raises(SystemExit):
                parsed(job, "--subscribe=a")
            assert "unrecognized arguments: --subscribe=a" in errors.getvalue()

    def test_empty_values(self) -> None:
        """As of a variable that is not set: they stand for no default, such as all topics."""
        of_stream = ("--url=", "--path=", "--token-file=", "--checkpoint=")
        for job, given in (
            ("archive", (*of_stream, "--to=", "--subscribe=", "--subscribe-pattern=")),
            ("audit", (*of_stream, "--to=", "--storage-options-file=")),
            ("derive", (*of_stream, "--subscribe=", "--subscribe-pattern=")),
            ("replay", ("--from=", "--url=", "--token-file=", "--checkpoint=", "--subscribe=")),
        ):
            for one in given:
                errors = io.StringIO()
                with redirect_stderr(errors), pytest.raises(SystemExit):
                    parsed(job, one)
                assert f"argument {one[:-1]}: the value is empty" in errors.getvalue()

    def test_metrics_are_published_on_a_topic(self) -> None:
        assert parsed("metrics", "--publish").publish == "$SYS/pipeline/metrics"
        assert parsed("metrics", "--publish=mine").publish == "mine"

    def test_the_report(self) -> None:
        parser = argparse.ArgumentParser()
        arguments.REPORT.add_options(parser)
        found = parser.parse_args(["t", "--since=2026-01-31T12:00:00Z"])
        assert (found.table, found.to, found.topics) == ("t", "report.html", 8)
        assert time_range(found) == (datetime(2026, 1, 31, 12, tzinfo=UTC), None)

    def test_times_in_the_wrong_order(self) -> None:
        late, early = "2026-01-31T12:00:00Z", "2026-01-31T12:00:00+00:01"
        assert time_range(parsed("replay", f"--since={early}", f"--until={late}"))
        for until in (early, late):
            found = parsed("replay", f"--since={late}", f"--until={until}")
            error = str(raised(ConfigurationError, time_range, found))
            assert error == f"--since: {late} is not before --until, {until}: nothing is between"

    def test_times_without_a_zone(self) -> None:
        for text in ("2026-01-31T12:00:00", "yesterday"):
            found = parsed("replay", f"--until={text}")
            error = str(raised(ConfigurationError, time_range, found))
            assert error.startswith("--until: expected a time such as ")
            assert repr(text) in error
