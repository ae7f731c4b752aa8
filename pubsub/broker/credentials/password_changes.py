"""Closes the connections whose password is no longer valid."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pubsub.broker.credentials.identity import PASSWORD, Identity

if TYPE_CHECKING:
    from pubsub.broker.clients.client_registry import ClientRegistry
    from pubsub.broker.slices import Work

REASON = "the password of its user was changed or removed"


def changed_users(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> set[str]:
    """Return the users that were removed, or have another password."""
    after = now or {}
    return {user for user, hashed in (before or {}).items() if after.get(user) != hashed}


def end_connections(clients: ClientRegistry, users: Collection[str]) -> Work:
    """Close the connections that have logged in as one of ``users``, one a step."""
    for client in clients.after(0):
        identity = getattr(client, "identity", None)
        if isinstance(identity, Identity) and identity.proof == PASSWORD and identity.name in users:
            client.abort(REASON)
        yield
