"""The program that runs Spark's Python workers, and the setting for it."""

from __future__ import annotations

import ast
import subprocess
import sys
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.pipeline import spark_session

PRINT = "import os, sys; print([os.environ['PYTHONPATH'], *sys.argv[1:]])"


class WorkerPythonTests(SynchronousTestCase):
    def run_worker(self, path: str, *arguments: str) -> list[str]:
        """Return the PYTHONPATH of what the program runs, and its arguments."""
        environment = {"PYTHONPATH": path, "PUBSUB_WORKER_PYTHON": sys.executable}
        command = [spark_session.worker_python(), "-c", PRINT, *arguments]
        out = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
        return list(ast.literal_eval(out.decode()))

    def test_only_the_archives_of_spark_are_left_out(self) -> None:
        spark = "/opt/spark/python/lib/pyspark.zip:/opt/spark/python/lib/py4j-0.10.9.9-src.zip"
        assert self.run_worker(spark) == [""]
        assert self.run_worker(f"/first:{spark}:/a b/c:*") == ["/first:/a b/c:*"]
        assert self.run_worker("/mine/pyspark.zip") == ["/mine/pyspark.zip"]
        assert self.run_worker("") == [""]

    def test_arguments_are_passed_as_they_are(self) -> None:
        assert self.run_worker("", "a b:c", "*", "") == ["", "a b:c", "*", ""]

    def test_without_it_workers_run_this_python(self) -> None:
        with patch("pubsub.pipeline.spark_session.os.access", return_value=False):
            assert spark_session.worker_python() == sys.executable
        with patch("pubsub.pipeline.spark_session.find_spec") as found:
            found.return_value.origin = "/opt/spark/python/lib/pyspark.zip/pyspark/__init__.py"
            assert spark_session.worker_python() == sys.executable
