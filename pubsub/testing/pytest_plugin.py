"""The pytest plugin: fixtures with a broker. It imports nothing heavy until one of them is used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pubsub.testing.local_broker import LocalBroker

_CallInReactor = Callable[[Callable[[], Any]], Any]
MARKER = "pubsub_broker"


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(**settings): settings of the fixture pubsub_broker, as in a configuration file",
    )


@pytest.fixture
def make_pubsub_broker(request: pytest.FixtureRequest) -> Iterator[Callable[..., LocalBroker]]:
    """Start brokers: ``make_pubsub_broker(**settings)`` returns one, which ends with the test."""
    from pubsub.errors import PubSubError
    from pubsub.testing.local_broker import LocalBroker, report_leaks

    start, wait = _reactor_calls(request)
    with ExitStack() as stack:

        def make(**settings: object) -> LocalBroker:
            problem = ""
            try:
                broker: LocalBroker = start(lambda: LocalBroker(settings))
            except PubSubError as error:
                problem = str(error)
            # Not in the clause above, because pytest would show both exceptions.
            if problem:
                pytest.fail(f"the broker cannot start: {problem}", pytrace=False)
            stack.callback(lambda: report_leaks(wait(broker.stop), request.node.nodeid))
            return broker

        yield make


@pytest.fixture
def pubsub_broker(
    request: pytest.FixtureRequest, make_pubsub_broker: Callable[..., LocalBroker]
) -> LocalBroker:
    """A broker with every protocol and HTTP on free ports, its history in memory.

    The marker ``pubsub_broker(**settings)`` gives it settings; see ``pubsub.testing.LocalBroker``.
    """
    settings: dict[str, object] = {}
    # The closest marker wins, one setting at a time.
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        if marker.args:
            pytest.fail(f"{MARKER}: expected settings by name, not {marker.args!r}", pytrace=False)
        settings |= marker.kwargs
    return make_pubsub_broker(**settings)


def _reactor_calls(request: pytest.FixtureRequest) -> tuple[_CallInReactor, _CallInReactor]:
    """Return a function that calls in the reactor, and one that also waits for the Deferred."""
    from pubsub.testing.reactor_thread import call_in_reactor

    twisted = request.config.pluginmanager.get_plugin("twisted")
    if twisted is None or request.getfixturevalue("twisted_greenlet") is None:
        return call_in_reactor, call_in_reactor
    # pytest-twisted calls every test in the reactor, in this thread.
    if not _is_asynchronous(request):
        pytest.fail(
            "pytest-twisted runs this test in the reactor, which also serves the broker: make the "
            "test a coroutine with pytest_twisted.ensureDeferred, or run it with -p no:twisted",
            pytrace=False,
        )
    return lambda function: function(), lambda function: twisted.blockon(function())


def _is_asynchronous(request: pytest.FixtureRequest) -> bool:
    function = inspect.unwrap(getattr(request.node, "obj", None) or request.function)
    return inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function)
