"""Protocol plugins: ``IWireProtocol``, and the objects that files in ``twisted/plugins/`` create.

Every ``twistd`` command imports all dropins, so this module imports nothing heavy. A dropin names
the package that implements its protocol; its modules are imported when they are first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from twisted.plugin import IPlugin, getPlugins
from zope.interface import Attribute, Interface, implementer

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocolFactory

    from pubsub.broker.listeners.listener import Listener
    from pubsub.dissector.declaration import Declaration
    from pubsub.settings import Setting
    from pubsub.wire.client_side import ClientSide
    from pubsub.wire.dissection import Dissector


class IWireProtocol(Interface):
    """One wire protocol, found by ``twisted.plugin.getPlugins(IWireProtocol)``."""

    name: str = Attribute("Short lower-case name: the argument of ``--proto``.")
    summary: str = Attribute("One line for ``--help``.")
    port: int = Attribute("Default TCP port.")
    settings: Sequence[Setting] = Attribute("This protocol's own settings of a listener.")
    client: ClientSide | None = Attribute(
        "How programs without an event loop publish; None if a URL cannot name this protocol."
    )
    dissect: Dissector | None = Attribute(
        "Decodes the beginning of a malformed frame as far as possible; None if nothing can."
    )
    redacted: Sequence[bytes] = Attribute(
        "Regular expressions for where a secret begins in this protocol's frames. Events show "
        "malformed frames only up to there, whatever protocol they arrived by, as a client may "
        "use the wrong port. The broker's tokens need no pattern."
    )
    dissector: Declaration | None = Attribute(
        "How Wireshark shows this protocol (`pubsub dissector`); None if it cannot."
    )
    contract_driver: str | None = Attribute(
        "Dotted name of the class with which tests/contract tries this protocol, or None."
    )

    def make_factory(listener: Listener) -> IProtocolFactory:
        """Return a factory that serves this protocol's clients for ``listener``.

        Called once a listener, before it listens; creates the topics that its settings imply.
        Raises ConfigurationError for settings that contradict each other. If the factory also
        provides ``IDatagramSource``, the listener opens a UDP port beside its TCP port.
        """


@implementer(IPlugin, IWireProtocol)
class WireProtocol:
    """An ``IWireProtocol`` implemented by the modules of ``package``.

    ``server`` has ``SETTINGS``, a sequence of Setting, and ``make_factory(listener)``. Three
    modules are optional: ``client`` has ``CLIENT``, a ClientSide; ``malformed`` has
    ``dissect(frame)`` and ``REDACTED``, a sequence of patterns, or only one of the two;
    ``dissector`` has ``DISSECTOR``, a Declaration.
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

    @property
    def dissector(self) -> Declaration | None:
        """See IWireProtocol."""
        dissector: Declaration | None = getattr(self._optional("dissector"), "DISSECTOR", None)
        return dissector

    def _server(self) -> Any:
        return import_module(f"{self._package}.server")

    def _optional(self, module: str) -> Any:
        """Return a module of the package, or None if the package has no such module."""
        name = f"{self._package}.{module}"
        return None if find_spec(name) is None else import_module(name)


ADMIN = WireProtocol("admin", 7080, "HTTP: the history, and writing to it", "pubsub.http_api")
"""The HTTP API. It is configured and served like a protocol, but has a table and a port setting of
its own and is not among the installed protocols."""


def installed_protocols() -> dict[str, IWireProtocol]:
    """Return every installed protocol by name, in the order of their names."""
    found = {plugin.name: plugin for plugin in getPlugins(IWireProtocol)}
    return dict(sorted(found.items()))
