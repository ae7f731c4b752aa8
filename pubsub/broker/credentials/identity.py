"""Identities: the facts that a client has proved about itself, for access rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.credentials.tokens import Token

ANONYMOUS = "anonymous"
TOKEN = "token"
CERTIFICATE = "certificate"
PASSWORD = "password"
CURVE = "curve"
SOCKET = "socket"
ADDRESS = "address"
PROOFS = (ANONYMOUS, TOKEN, CERTIFICATE, PASSWORD, CURVE, SOCKET, ADDRESS)
"""The proofs of a name: nothing, a token, a TLS certificate, a password, a CURVE key, the user id
of the process at the other end of a UNIX socket, or the address that this broker connected to."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a client.

    ``name`` is empty for an anonymous client. ``groups`` are those that the proof itself names;
    the table ``[groups]`` adds others. ``host`` is the IP address of the client, or ``unix``.
    ``issuer`` is the id of the table of ``[keys]`` that a token was verified with.
    """

    name: str = ""
    proof: str = ANONYMOUS
    groups: frozenset[str] = frozenset()
    host: str = ""
    issuer: str = ""

    @property
    def is_anonymous(self) -> bool:
        """True if nothing is proved but the address."""
        return self.proof == ANONYMOUS

    def at(self, host: str) -> Identity:
        """Return this identity at another address."""
        return self if host == self.host else replace(self, host=host)

    def __str__(self) -> str:
        """The name, or ``anonymous``."""
        return self.name or self.proof


NOBODY = Identity()
"""An anonymous client at no particular address."""


def token_identity(token: Token, host: str = "") -> Identity:
    """Return the identity of a client that presents ``token``: its subject."""
    return Identity(token.subject, TOKEN, host=host, issuer=token.secret.source)
