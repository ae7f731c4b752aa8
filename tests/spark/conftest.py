"""One Spark session for all tests, and brokers with a history and the HTTP API."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import pytest
from pyspark.sql import SparkSession

from pubsub.pipeline.spark_session import local_session
from tests.integration.broker import Broker, Start
from tests.integration.fast_client import make_secret
from tests.spark.http_brokers import serve
from tests.spark.java import java_options

EVENTS = "spark.eventLog.dir"


@pytest.fixture(scope="session", autouse=True)
def java(pytestconfig: pytest.Config) -> None:
    """Shorten the start of every Java process, whose temporary files are those of the session."""
    assert pytestconfig.cache is not None
    options = java_options(pytestconfig.cache.mkdir("java"))
    os.environ["JDK_JAVA_OPTIONS"] = f"{options} -Djava.io.tmpdir={gettempdir()}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield the session; its event log has the contents of Spark's web pages."""
    directory = tmp_path_factory.mktemp("spark")
    log = directory / "events"
    log.mkdir()
    session = local_session(
        "tests",
        cores=2,
        more={
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            EVENTS: log.as_uri(),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.driver.memory": "1g",
        },
    )
    session.sparkContext.setLogLevel("FATAL")
    yield session
    session.stop()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file with a master secret."""
    return make_secret(tmp_path / "secret")


@pytest.fixture
def broker(start: Start, tmp_path: Path, secret: Path) -> Broker:
    """Return a broker with all protocols."""
    return serve(start, tmp_path / "history", f"--secret-file={secret}", "--grant=*,$SYS/*")
