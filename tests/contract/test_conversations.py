"""The conversation vectors: each with its input whole, and byte by byte."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.plugin import installed_protocols
from tests.contract.conversations import methods
from tests.vectors import VECTORS


class ConversationFileTests(SynchronousTestCase):
    """Every protocol has vectors"""

    def test_every_protocol_with_vectors_is_installed(self) -> None:
        files = {path.name.split("-")[0] for path in VECTORS.glob("*-conversations.json")}
        assert files >= {"cafe", "nsd"}
        assert files <= installed_protocols().keys()


def _case(name: str, protocol: str) -> type[SynchronousTestCase]:
    # In this module, so that the runners list it here.
    return type(name, (SynchronousTestCase,), {"__module__": __name__, **methods(protocol)})


CafeConversationTests = _case("CafeConversationTests", "cafe")
FastConversationTests = _case("FastConversationTests", "fast")
NsdConversationTests = _case("NsdConversationTests", "nsd")
RheosConversationTests = _case("RheosConversationTests", "rheos")
