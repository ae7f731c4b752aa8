"""spot's conversation vectors: each with its input whole, and byte by byte."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.contract.conversations import methods

SpotConversationTests = type(
    "SpotConversationTests", (SynchronousTestCase,), {"__module__": __name__, **methods("spot")}
)
