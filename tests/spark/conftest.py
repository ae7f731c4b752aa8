"""The session that all tests here share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pubsub.pipeline.session import local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores; tests leave nothing in it."""
    session = local_session("pubsub tests", cores=2)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
