"""Refusals by protocol and reason: their number, and the client of the last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pubsub.broker.counters import Counters
    from pubsub.management.listing import Row


class NamedListener(Protocol):
    """A listener, as the rows use it: its name in the configuration, and in figures."""

    @property
    def protocol(self) -> str: ...
    @property
    def event_protocol(self) -> str: ...


def refusal_rows(
    counters: Counters, listeners: Iterable[NamedListener], names_clients: bool
) -> list[tuple[str, Row]]:
    """Return the rows by key, in order; ``names_clients`` as a client with ``admin`` sees them."""
    names = {one.protocol: one.event_protocol for one in listeners}
    rows: dict[str, dict[str, Any]] = {}
    for (protocol, reason), count in counters.refusals.items():
        name = names.get(protocol, protocol)
        last = counters.last_refusals[protocol, reason]
        row = rows.setdefault(
            f"{name} {reason}",
            {
                "protocol": name,
                "reason": reason,
                "count": 0,
                "last_timestamp": 0,
                "last_client": None,
            },
        )
        row["count"] += count
        if last.timestamp >= row["last_timestamp"]:
            row["last_timestamp"] = last.timestamp
            row["last_client"] = last.client if names_clients else None
    return sorted(rows.items())
