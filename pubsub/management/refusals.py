"""Refusals by protocol and reason: their number, and the client of the last."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.figures.counters import Counters
    from pubsub.management.listing import Row


def refusal_rows(counters: Counters, names_clients: bool) -> list[tuple[str, Row]]:
    """Return the rows by key, in order; ``names_clients`` as a client with ``admin`` sees them."""
    rows = [
        (
            f"{protocol} {reason}",
            {
                "protocol": protocol,
                "reason": reason,
                "count": count,
                "last_timestamp": (last := counters.last_refusals[protocol, reason]).timestamp,
                "last_client": last.client if names_clients else None,
            },
        )
        for (protocol, reason), count in counters.refusals.items()
    ]
    return sorted(rows, key=itemgetter(0))
