"""The plugin objects that ``twisted/plugins/pubsub_<protocol>.py`` files create.

A dropin must import nothing heavy, as every ``twistd`` command reads all of them: it names the
module that implements the protocol, and that is imported when the protocol is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from twisted.plugin import IPlugin, getPlugins
from zope.interface import implementer

from pubsub.interfaces import IWireProtocol

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocolFactory

    from pubsub.broker.listener import Listener
    from pubsub.settings import Setting


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
"""The HTTP API. It is configured and served as a protocol is, but has a table and a port setting
of its own, and is not among those that are installed."""


def installed_protocols() -> dict[str, IWireProtocol]:
    """Every protocol that is installed, by name, in the order of their names."""
    found = {plugin.name: plugin for plugin in getPlugins(IWireProtocol)}
    return dict(sorted(found.items()))
