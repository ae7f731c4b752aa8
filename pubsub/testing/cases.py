"""Brokers for TestCases: those of trial, of unittest, and synchronous ones."""

from __future__ import annotations

import unittest

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pubsub.errors import StartError
from pubsub.testing.local_broker import LocalBroker, report_leaks
from pubsub.testing.reactor_thread import call_in_reactor, global_reactor, runs_here


def start_broker(
    case: unittest.TestCase | SynchronousTestCase, /, **settings: object
) -> LocalBroker:
    """Start a broker that stops with the test ``case``; called in setUp, asyncSetUp or the test.

    A TestCase of trial runs in the reactor, and so does its broker. For every other TestCase the
    broker runs in a thread. Raises ConfigurationError and StartError.
    """
    where = case.id()
    if isinstance(case, TestCase):
        return _start_in_reactor(case, settings, where)
    broker: LocalBroker = call_in_reactor(lambda: LocalBroker(settings))
    case.addCleanup(lambda: report_leaks(call_in_reactor(broker.stop), where))
    return broker


def _start_in_reactor(case: TestCase, settings: dict[str, object], where: str) -> LocalBroker:
    # Trial runs the reactor only while a test waits for a Deferred.
    if global_reactor().running and not runs_here():
        raise StartError(
            "the reactor runs in a thread for the broker of another test; run trial's TestCases "
            "in a process of their own"
        )
    broker = LocalBroker(settings)

    def stop() -> Deferred[None]:
        return broker.stop().addCallback(report_leaks, where)

    case.addCleanup(stop)
    return broker
