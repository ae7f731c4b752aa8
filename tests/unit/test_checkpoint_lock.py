"""The lock of a job's checkpoint."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from unittest.mock import patch

import pytest
from twisted.trial.unittest import TestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.job_runs.checkpoint_lock import checkpoint_lock
from tests.unit.fakes import scratch


class CheckpointLockTests(TestCase):
    def setUp(self) -> None:
        self.directory = scratch(self) / "archive"

    def test_one_job_holds_it(self) -> None:
        with checkpoint_lock(str(self.directory)):
            with (
                pytest.raises(ConfigurationError, match="archive: another job uses this check"),
                checkpoint_lock(str(self.directory)),
            ):
                pass
            assert not os.listdir(self.directory)
        with checkpoint_lock(str(self.directory)):
            pass

    def test_a_killed_job_releases_it(self) -> None:
        program = (
            "import os, sys, signal\n"
            "from pubsub.pipeline.job_runs.checkpoint_lock import checkpoint_lock\n"
            "with checkpoint_lock(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)"
        )
        killed = subprocess.run([sys.executable, "-c", program, self.directory], check=False)
        assert killed.returncode == -9
        with checkpoint_lock(str(self.directory)):
            pass

    def test_a_file_system_without_locks(self) -> None:
        with (
            patch.object(fcntl, "flock", side_effect=OSError(9, "Bad file descriptor")),
            checkpoint_lock(str(self.directory)),
        ):
            assert self.directory.is_dir()

    def test_urls_and_no_checkpoint(self) -> None:
        for where in (None, "s3a://bucket/archive"):
            with checkpoint_lock(where):
                pass
