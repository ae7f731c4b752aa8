"""Class data of Java, prepared for jobs."""

from __future__ import annotations

import argparse
import io
from contextlib import redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import StartError
from pubsub.pipeline.job_runs import class_data
from tests.unit.fakes import scratch
from tests.unit.raising import raised

RUN = "pubsub.pipeline.job_runs.class_data.subprocess.run"


class ClassDataTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.cache = scratch(self)
        java = self.cache / "java"
        java.write_text("")
        java.chmod(0o755)
        given = {"XDG_CACHE_HOME": str(self.cache), "PATH": str(self.cache)}
        environment = patch.dict("os.environ", given)
        environment.start()
        self.addCleanup(environment.stop)

    def prepare(self) -> str:
        """Prepare, and return the output."""
        printed = io.StringIO()
        with redirect_stdout(printed):
            assert class_data.run(argparse.Namespace()) == 0
        return printed.getvalue()

    def test_a_prepared_file_is_used(self) -> None:
        assert class_data.java_option() == ""
        with patch(RUN, _dump):
            path = self.prepare().removeprefix("prepared ").strip()
        assert Path(path).read_text() == "classes"
        assert f'"-XX:SharedArchiveFile={path}"' in class_data.java_option()
        assert [one.name for one in Path(path).parent.iterdir()] == [Path(path).name]

    def test_a_failure_leaves_nothing(self) -> None:
        for failed in (
            CompletedProcess([], 1, "WARNING\nno memory\n"),
            CompletedProcess([], 0, ""),
        ):
            with patch(RUN, return_value=failed):
                error = raised(StartError, class_data.run, argparse.Namespace())
            assert str(error).endswith("no memory" if failed.returncode else "no output")
            assert class_data.java_option() == ""
            assert not list((self.cache / "pubsub").iterdir())

    def test_no_java(self) -> None:
        (self.cache / "java").unlink()
        assert class_data.java_option() == ""
        raised(StartError, class_data.run, argparse.Namespace())

    def test_another_java_needs_other_data(self) -> None:
        with patch(RUN, _dump):
            self.prepare()
        (self.cache / "java").write_text("newer")
        (self.cache / "java").touch()
        assert class_data.java_option() == ""


def _dump(command: list[str], **_: Any) -> CompletedProcess[str]:
    Path(command[3]).write_text("classes")
    return CompletedProcess(command, 0, "")
