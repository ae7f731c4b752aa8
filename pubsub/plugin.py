"""Protocol plugins: ``IWireProtocol``, and the objects that files in ``twisted/plugins/`` create.

Every ``twistd`` command imports all dropins, so this module imports nothing heavy. A dropin names
the module that implements its protocol; that module is imported when the protocol is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from twisted.plugin import IPlugin, getPlugins
from zope.interface import Attribute, Interface, implementer

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocolFactory

    from pubsub.broker.listener import Listener
    from pubsub.settings import Setting


class IWireProtocol(Interface):
    """One wire protocol, found by ``twisted.plugin.getPlugins(IWireProtocol)``."""

    name: str = Attribute("Short lower-case name: the argument of ``--proto``.")
    summary: str = Attribute("One line for ``--help``.")
    port: int = Attribute("Default TCP port.")
    settings: Sequence[Setting] = Attribute("This protocol's own settings of a listener.")

    def make_factory(listener: Listener) -> IProtocolFactory:
        """Return a factory that serves this protocol's clients for ``listener``.

        Called once a listener, before it listens; creates the topics that its settings imply.
        Raises ConfigurationError for settings that contradict each other. If the factory also
        provides ``IDatagramSource``, the listener opens a UDP port beside its TCP port.
        """


@implementer(IPlugin, IWireProtocol)
class WireProtocol:
    """An ``IWireProtocol`` implemented by ``module``.

    The module has ``SETTINGS``, a sequence of Setting, and ``make_factory(listener)``.
    """

    def __init__(self, name: str, port: int, summary: str, module: str) -> None:
        self.name = name
        self.port = port
        self.summary = summary
        self._module = module

    @property
    def settings(self) -> Sequence[Setting]:
        """See IWireProtocol."""
        settings: Sequence[Setting] = self._implementation().SETTINGS
        return settings

    def make_factory(self, listener: Listener) -> IProtocolFactory:
        """See IWireProtocol."""
        factory: IProtocolFactory = self._implementation().make_factory(listener)
        return factory

    def _implementation(self) -> Any:
        return import_module(self._module)


ADMIN = WireProtocol("admin", 7080, "HTTP: the history, and writing to it", "pubsub.admin.server")
"""The HTTP API. It is configured and served like a protocol, but has a table and a port setting of
its own and is not among the installed protocols."""


def installed_protocols() -> dict[str, IWireProtocol]:
    """Return every installed protocol by name, in the order of their names."""
    found = {plugin.name: plugin for plugin in getPlugins(IWireProtocol)}
    return dict(sorted(found.items()))
