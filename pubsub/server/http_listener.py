"""The listener of the HTTP API: the setting ``admin-port``, the table ``[admin]``, or a listener.

There is at most one, as the API keeps positions of readers and staged batches itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pubsub.errors import ConfigurationError
from pubsub.plugin import ADMIN

HTTP = "http"
"""The protocol of the HTTP API among listeners."""
_OFF = "none"
ListenerEntry = Mapping[str, Any]


def split(entries: Sequence[ListenerEntry]) -> tuple[list[ListenerEntry], list[ListenerEntry]]:
    """Return the listeners of the protocols, and those of the HTTP API."""
    http = [entry for entry in entries if entry.get("protocol") == HTTP]
    return [entry for entry in entries if entry.get("protocol") != HTTP], http


def find_entry(
    admin_port: str,
    is_on_line: bool,
    table: ListenerEntry,
    listed: Sequence[ListenerEntry],
    implied: bool,
) -> tuple[dict[str, Any] | None, bool]:
    """Return the listener of the HTTP API as a table, or None, and whether it is implied.

    ``admin_port`` is the setting; ``is_on_line`` says that it is on the command line, which has
    precedence. ``listed`` are the listeners of this protocol. With ``implied`` the API is served on
    its default port unless another is given. Raises ConfigurationError.
    """
    if admin_port == _OFF:
        return None, False
    own = {name: table[name] for name in ("port", "endpoint") if name in table}
    given = {
        "admin-port": {"port": admin_port} if admin_port else None,
        "[admin]": own or None,
        "listen http": {**listed[0], "protocol": ADMIN.name} if listed else None,
    }
    if is_on_line and admin_port:
        given = {"admin-port": {"port": admin_port}}
    places = {name: entry for name, entry in given.items() if entry is not None}
    if len(listed) > 1 and "listen http" in places:
        raise ConfigurationError("listen http: the HTTP API has one listener; remove the others")
    if len(places) > 1:
        names = " and ".join(places)
        raise ConfigurationError(f"{names}: the HTTP API has one address; give one of these")
    for entry in places.values():
        return {"protocol": ADMIN.name, **entry}, False
    return ({"protocol": ADMIN.name, "port": ADMIN.port}, True) if implied else (None, False)
