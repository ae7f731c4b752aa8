"""Plugin objects: the modules of a package that they load, and those that are optional."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from pubsub.broker.figures.events import redacted_frame, secret_pattern
from pubsub.plugin import ADMIN, IWireProtocol, WireProtocol, installed_protocols
from pubsub.server.configuration import CommandLine, merge
from tests.unit.fakes import Toy
from tests.unit.raising import raised


class WireProtocolTests(SynchronousTestCase):
    """WireProtocol"""

    def test_installed_protocols_are_complete(self) -> None:
        for name, protocol in installed_protocols().items():
            assert verifyObject(IWireProtocol, protocol)
            assert protocol.client is not None, name
            assert protocol.dissect is not None, name
            assert protocol.contract_driver is not None, name

    def test_client_and_malformed_are_optional(self) -> None:
        assert verifyObject(IWireProtocol, ADMIN)
        assert (ADMIN.client, ADMIN.dissect, ADMIN.redacted) == (None, None, ())
        assert ADMIN.settings

    def test_the_server_is_required(self) -> None:
        broken = WireProtocol("broken", 1, "", "pubsub.store")
        error = raised(ModuleNotFoundError, lambda: broken.settings)
        assert error.name == "pubsub.store.server"

    def test_an_error_in_an_optional_module_is_not_hidden(self) -> None:
        raised(ModuleNotFoundError, lambda: WireProtocol("none", 1, "", "pubsub.none").client)


class RedactionTests(SynchronousTestCase):
    """Redaction of events"""

    def test_the_patterns_of_all_protocols_are_combined(self) -> None:
        first, second = Toy("first", 1), Toy("second", 2)
        first.redacted, second.redacted = (rb"a+b",), (rb"x|y",)
        protocols = {"first": first, "second": second}
        config = merge(protocols, CommandLine({}, [("first", None)]), {})
        assert list(config.redacted) == [rb"a+b", rb"x|y"]
        secret = secret_pattern(config.redacted)
        frames = (b"1aab", b"1y", b"1eyJ", b"1ab", b"aaab", b"ab")
        found = [redacted_frame(frame, secret) for frame in frames]
        assert found == ["MQ==", "MQ==", "MQ==", "MQ==", None, None]
