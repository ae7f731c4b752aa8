"""The proof of the identity in a request: that of a user needs the user's password (nsd §1.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pubsub.broker.credentials.identity import PASSWORD, Identity
from pubsub.errors import NotAuthorized, Refused, WrongPassword
from pubsub.wire.peer_address import network_of

if TYPE_CHECKING:
    from pubsub.broker.credentials.passwords import PasswordCheck
    from pubsub.protocols.nsd.identities import Identities
    from pubsub.protocols.nsd.message_heads import Source
    from pubsub.wire.connection import Connection

NO_PASSWORD, OPTIONAL, REQUIRED = "none", "optional", "required"
"""The values of ``identity-password``."""


def is_proved(connection: Connection, name: str) -> bool:
    """Return whether the client has proved to be ``name``."""
    identity = connection.identity
    return identity.name == name and not identity.is_anonymous


def check_identity(connection: Connection, name: str) -> None:
    """Raise WrongPassword unless the client may use the identity ``name``."""
    listener = connection.listener
    if is_proved(connection, name):
        return
    required = listener.settings["identity-password"] == REQUIRED
    if listener.passwords.is_user(name) or (required and connection.identity.is_anonymous):
        raise WrongPassword


def may_name(connection: Connection, names: Iterable[str]) -> bool:
    """Return whether no password is missing for the identities ``names``."""
    if connection.listener.settings["identity-password"] == NO_PASSWORD:
        return True
    try:
        for name in names:
            check_identity(connection, name)
    except Refused:
        return False
    return True


def may_publish(connection: Connection, identities: Identities, sources: list[Source]) -> bool:
    """Return whether nothing has to be done for the identities of ``sources`` before."""
    is_used = connection.listener.settings["identity-password"] != NO_PASSWORD
    if not is_used and not identities.is_shared:
        return True
    names = [source.identity for source in sources]
    return may_name(connection, names) and identities.are_open(names)


def owner_of(connection: Connection, name: str) -> str:
    """Return the user that owns a new identity ``name``; empty if there is none.

    A user owns the identity of the same name by its password. Where passwords are required, other
    identities that the user subscribes with belong to it as well.
    """
    listener = connection.listener
    required = listener.settings["identity-password"] == REQUIRED
    return connection.identity.name if required and not is_proved(connection, name) else ""


def check_owner(connection: Connection, owner: str) -> None:
    """Raise WrongPassword unless the client may use the subscriptions of ``owner``, if any."""
    is_used = connection.listener.settings["identity-password"] != NO_PASSWORD
    if owner and is_used and connection.identity.name != owner:
        raise WrongPassword


def check_user(connection: Connection, name: str, owner: str) -> None:
    """Check the client of a request about the subscriptions of the identity ``name``.

    Raises NotAuthorized if it is anonymous and not served, and as ``check_owner`` does.
    """
    identity = connection.identity
    if identity.is_anonymous and not connection.listener.admits_anonymous(identity.host):
        raise NotAuthorized(name)
    check_owner(connection, owner)


def prove(
    connection: Connection, name: str, password: str, done: Callable[[Refused | None], None]
) -> PasswordCheck:
    """Verify a password and identify the client, then call ``done``; it may be called at once."""

    def verified(refused: Refused | None) -> None:
        if refused is None:
            connection.identify(Identity(name, PASSWORD, host=connection.identity.host))
        done(refused)

    source = network_of(connection.identity.host)
    return connection.listener.passwords.verify(
        name, password.encode(errors="replace"), source, verified
    )
