"""Processes without an optional package, or with another Twisted, and what is not imported."""

from __future__ import annotations

import sys

from tests.integration.broker import run_python, run_to_end

_WITHOUT_WRAPPER = """
import sys
sys.modules["twisted.protocols.haproxy._wrapper"] = None
from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactorClock
from pubsub.errors import ConfigurationError
from pubsub.wire.listener_service import ListenerService
from pubsub.wire.proxy_protocol import use_proxied_streams
use_proxied_streams(Factory(), print)
try:
    ListenerService("cafe", "haproxy:tcp:1", Factory(), MemoryReactorClock())
except ConfigurationError as error:
    print(error)
print(ListenerService("cafe", "tcp:1", Factory(), MemoryReactorClock()).endpoint)
"""
_WITHOUT_PYSPARK = """
import sys
sys.modules["pyspark"] = None
from pubsub.commands.command import main
sys.exit(main(["pipeline", "archive", "--to=x"]))
"""
_WITHOUT_ARROW = """
import sys
sys.modules["pyarrow"] = None
import pubsub.http_api.server
"""
_WITHOUT_ZSTD = """
import sys
sys.modules["compression.zstd"] = sys.modules["backports.zstd"] = None
import pubsub_broker
"""
_BROKER = """
import sys
from pubsub.embed import embed
from pubsub.server import tap
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_without_the_wrapper_of_the_proxy_header_such_endpoints_are_refused() -> None:
    """The bytes below the header would be taken for the client's."""
    refused, listening = run_python(_WITHOUT_WRAPPER, env={}).splitlines()
    assert refused.startswith("cafe: haproxy: is not possible with this version of Twisted")
    assert listening == "tcp:1"


def test_a_job_names_the_missing_extra() -> None:
    done = run_to_end([sys.executable, "-c", _WITHOUT_PYSPARK], None, None)
    assert done.returncode == 1
    assert done.stderr == (
        "pubsub: pyspark is not installed; run: pip install 'pubsub-broker[spark]'\n"
    )


def test_without_zstandard_the_broker_and_the_command_name_it() -> None:
    check = "from pubsub.commands.command import main; sys.exit(main(['history', 'check']))"
    for what in ("pubsub_broker.Options", check):
        done = run_to_end([sys.executable, "-c", _WITHOUT_ZSTD + what], None, None)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("pubsub: history: Zstandard cannot be imported (")
        assert line.endswith(("; run: pip install backports.zstd", "built with libzstd"))


def test_the_http_api_does_not_import_arrow_before_it_is_needed() -> None:
    run_python(_WITHOUT_ARROW, env={})


def test_without_tracing_nothing_of_it_is_imported() -> None:
    assert run_python(_BROKER, env={}) == "[]\n"
