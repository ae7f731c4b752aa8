"""The plugin objects that ``twisted/plugins/pubsub_<protocol>.py`` files create.

A dropin must import nothing heavy, as every ``twistd`` command reads all of them: it names the
package that implements the protocol, and its modules are imported when they are first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from twisted.plugin import IPlugin, getPlugins
from zope.interface import implementer

from pubsub.interfaces import IWireProtocol

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocolFactory

    from pubsub.broker.listener import Listener
    from pubsub.settings import Setting
    from pubsub.wire.client_side import ClientSide
    from pubsub.wire.dissection import Dissector


@implementer(IPlugin, IWireProtocol)
class WireProtocol:
    """An ``IWireProtocol`` implemented by the modules of ``package``.

    ``server`` has ``SETTINGS``, a sequence of Setting, and ``make_factory(listener)``. Two modules
    are optional: ``client`` has ``CLIENT``, a ClientSide; ``malformed`` has ``dissect(frame)`` and
    ``REDACTED``, a sequence of patterns, or only one of the two.
    """

    def __init__(
        self,
        name: str,
        port: int,
        summary: str,
        package: str,
        contract_driver: str | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self.summary = summary
        self.contract_driver = contract_driver
        self._package = package

    @property
    def settings(self) -> Sequence[Setting]:
        """See IWireProtocol."""
        settings: Sequence[Setting] = self._server().SETTINGS
        return settings

    def make_factory(self, listener: Listener) -> IProtocolFactory:
        """See IWireProtocol."""
        factory: IProtocolFactory = self._server().make_factory(listener)
        return factory

    @property
    def client(self) -> ClientSide | None:
        """See IWireProtocol."""
        client: ClientSide | None = getattr(self._optional("client"), "CLIENT", None)
        return client

    @property
    def dissect(self) -> Dissector | None:
        """See IWireProtocol."""
        dissect: Dissector | None = getattr(self._optional("malformed"), "dissect", None)
        return dissect

    @property
    def redacted(self) -> Sequence[bytes]:
        """See IWireProtocol."""
        redacted: Sequence[bytes] = getattr(self._optional("malformed"), "REDACTED", ())
        return redacted

    def _server(self) -> Any:
        return import_module(f"{self._package}.server")

    def _optional(self, module: str) -> Any:
        """Return a module of the package, or None if the package has no such module."""
        name = f"{self._package}.{module}"
        return None if find_spec(name) is None else import_module(name)


ADMIN = WireProtocol("admin", 7080, "HTTP: the history, and writing to it", "pubsub.admin")
"""The HTTP API. It is configured and served as a protocol is, but has a table and a port setting
of its own, and is not among those that are installed."""


def installed_protocols() -> dict[str, IWireProtocol]:
    """Every protocol that is installed, by name, in the order of their names."""
    found = {plugin.name: plugin for plugin in getPlugins(IWireProtocol)}
    return dict(sorted(found.items()))
