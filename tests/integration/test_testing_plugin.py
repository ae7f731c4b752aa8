"""The pytest plugin of pubsub.testing, in sessions of its own: fixtures, markers, reactors, errors.

Each session is a process, as a reactor cannot be started twice.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = "pytester"

PLAIN = ("-p", "no:twisted")
HEAVY = ("twisted", "pubsub.broker", "pubsub.embed", "pubsub.server", "jwt", "cryptography")
CONNECT = """
import socket

def test_{name}(pubsub_broker):
    for protocol in pubsub_broker.urls:
        socket.create_connection(pubsub_broker.address(protocol)).close()
"""


def test_a_session_without_the_fixtures_imports_nothing_heavy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import sys

        def test_imports(request):
            assert request.config.pluginmanager.has_plugin("pubsub")
            assert "pubsub.testing.pytest_plugin" in sys.modules
            assert [name for name in {HEAVY} if name in sys.modules] == []
        """
    )
    pytester.runpytest_subprocess(*PLAIN, "--strict-markers").assert_outcomes(passed=1)


def test_every_protocol_has_an_address(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import socket

        def test_addresses(pubsub_broker):
            assert {"cafe", "fast", "nsd", "rheos", "spot", "http"} <= pubsub_broker.urls.keys()
            ports = {pubsub_broker.address(protocol)[1] for protocol in pubsub_broker.urls}
            assert len(ports) == len(pubsub_broker.urls)
            for protocol in pubsub_broker.urls:
                socket.create_connection(pubsub_broker.address(protocol)).close()

        def test_an_unknown_protocol(pubsub_broker):
            import pytest
            with pytest.raises(LookupError, match="mqtt is not served; served: cafe, fast, nsd"):
                pubsub_broker.url("mqtt")
        """
    )
    pytester.runpytest_subprocess(*PLAIN).assert_outcomes(passed=2)


def test_tokens_are_accepted(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import urllib.error, urllib.request
        import pytest

        def status(broker, token):
            request = urllib.request.Request(broker.url("http") + "/v1/history?start=0")
            request.add_header("Authorization", f"Bearer {token}")
            return urllib.request.urlopen(request).status

        def test_tokens(pubsub_broker, make_pubsub_broker):
            assert status(pubsub_broker, pubsub_broker.token("history", subject="ada")) == 200
            for wrong in (pubsub_broker.token(expires=-1), make_pubsub_broker().token()):
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    status(pubsub_broker, wrong)
            with pytest.raises(ValueError, match="fast accepts at most 255"):
                pubsub_broker.token(note="x" * 200)
        """
    )
    pytester.runpytest_subprocess(*PLAIN).assert_outcomes(passed=1)


def test_the_closest_marker_wins(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.pubsub_broker(idle_timeout=500, nsd={"max_body": 7})

        def settings(broker):
            (nsd,) = [one for one in broker.service.broker.listeners if one.protocol == "nsd"]
            return nsd.idle_timeout, nsd.settings["max-body"]

        def test_module(pubsub_broker):
            assert settings(pubsub_broker) == (500, 7)

        @pytest.mark.pubsub_broker(nsd={"max-body": 8})
        def test_own(pubsub_broker):
            assert settings(pubsub_broker) == (500, 8)
        """
    )
    pytester.runpytest_subprocess(*PLAIN, "--strict-markers").assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ("nsd={'max_bodyy': 1}", "*[[]nsd] max-bodyy: no such setting; did you mean max-body*"),
        (
            "listen=[{'protocol': 'cafe', 'endpoint': 'unix:/missing/cafe.sock'}]",
            "*the broker cannot start: cafe: cannot listen on unix:/missing/cafe.sock*",
        ),
        ("'cafe'", "*pubsub_broker: expected settings by name, not*"),
    ],
)
def test_a_broker_that_cannot_start(pytester: pytest.Pytester, settings: str, line: str) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.pubsub_broker({settings})
        def test_it(pubsub_broker):
            pass

        def test_the_next(pubsub_broker):
            pass
        """
    )
    result = pytester.runpytest_subprocess(*PLAIN)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([line])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*During handling*")


def test_connections_that_are_left_open_are_reported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import socket

        left = []

        def test_leaks(pubsub_broker):
            for _ in range(2):
                left.append(socket.create_connection(pubsub_broker.address("nsd")))
                left[-1].sendall(b'{}\\n')
                assert left[-1].recv(1)

        def test_the_next(pubsub_broker):
            socket.create_connection(pubsub_broker.address("nsd")).close()
        """
    )
    result = pytester.runpytest_subprocess(*PLAIN, "-W", "default::ResourceWarning")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*::test_leaks left 2 connections to the broker open*"])


def test_two_sessions_at_the_same_time(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(CONNECT.format(name="one"))
    command = [sys.executable, "-m", "pytest", "-q", *PLAIN, str(path)]
    sessions = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    assert [session.wait(60) for session in sessions] == [0, 0]
    for session in sessions:
        assert session.stdout is not None
        session.stdout.close()


def test_several_workers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        CONNECT.format(name="one") + CONNECT.format(name="two") + CONNECT.format(name="three")
    )
    pytester.runpytest_subprocess(*PLAIN, "-n", "2").assert_outcomes(passed=3)


@pytest.mark.parametrize("reactor", ["default", "asyncio"])
def test_coroutines_share_their_reactor_with_the_broker(
    pytester: pytest.Pytester, reactor: str
) -> None:
    pytester.makepyfile(
        """
        import threading
        import pytest_twisted
        from twisted.internet import reactor
        from twisted.internet.endpoints import clientFromString, connectProtocol
        from twisted.internet.protocol import Protocol

        class Client(Protocol):
            def __init__(self):
                from twisted.internet.defer import Deferred
                self.answer = Deferred()

            def dataReceived(self, data):
                self.answer.callback(data)

        @pytest_twisted.ensureDeferred
        async def test_a_reply(pubsub_broker, make_pubsub_broker):
            for broker in (pubsub_broker, make_pubsub_broker()):
                assert reactor.running
                host, port = broker.address("nsd")
                endpoint = clientFromString(reactor, f"tcp:{host}:{port}")
                client = await connectProtocol(endpoint, Client())
                client.transport.write(b"{}\\n")
                assert b"Error" in await client.answer
                client.transport.loseConnection()
            assert threading.active_count() == 1

        def test_that_blocks(pubsub_broker):
            pass
        """
    )
    result = pytester.runpytest_subprocess(f"--reactor={reactor}")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*make the test a coroutine with pytest_twisted*"])


def test_a_reactor_in_another_thread_is_used(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import threading
        from twisted.internet import reactor

        running = threading.Event()
        reactor.callWhenRunning(running.set)
        thread = threading.Thread(
            target=reactor.run, kwargs={"installSignalHandlers": False}, daemon=True
        )
        thread.start()
        running.wait()
        """
    )
    pytester.makepyfile(CONNECT.format(name="one"))
    pytester.runpytest_subprocess(*PLAIN).assert_outcomes(passed=1)


def test_a_forked_child_gets_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os
        from pubsub.errors import StartError
        from pubsub.testing import running_broker

        def test_fork(pubsub_broker):
            child = os.fork()
            if not child:
                try:
                    with running_broker():
                        os._exit(1)
                except StartError as error:
                    os._exit(0 if "parent process" in str(error) else 2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """
    )
    pytester.runpytest_subprocess(*PLAIN).assert_outcomes(passed=1)


def test_trial_beside_the_thread_gets_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from twisted.trial.unittest import TestCase
        from pubsub.testing import start_broker

        def test_first(pubsub_broker):
            pass

        class Tests(TestCase):
            def test_second(self):
                start_broker(self)
        """
    )
    result = pytester.runpytest_subprocess(*PLAIN)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*run trial's TestCases in a process of their own*"])


TRIAL = """
from twisted.internet import reactor
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.trial.unittest import TestCase

from pubsub.errors import ConfigurationError, StartError
from pubsub.testing import start_broker


class Tests(TestCase):
    def setUp(self):
        self.broker = start_broker(self)

    async def test_leaks(self):
        host, port = self.broker.address("cafe")
        endpoint = clientFromString(reactor, f"tcp:{host}:{port}")
        client = await connectProtocol(endpoint, Protocol())
        self.addCleanup(client.transport.abortConnection)

    def test_errors(self):
        self.assertRaises(ConfigurationError, start_broker, self, max_topicz=1)
        listen = [{"protocol": "cafe", "port": self.broker.address("cafe")[1]}]
        error = self.assertRaises(StartError, start_broker, self, listen=listen)
        self.assertIn("cannot listen", str(error))
"""


def test_trial_finds_the_reactor_clean(tmp_path: Path) -> None:
    (tmp_path / "test_trial.py").write_text(TRIAL)
    done = subprocess.run(
        [sys.executable, "-m", "twisted.trial", "test_trial"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
