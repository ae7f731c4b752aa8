"""The decision whether a client of a port with TLS may begin its handshake."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pubsub.wire.handshake_reasons import HANDSHAKE_RATE, PLAINTEXT
from pubsub.wire.peer_address import host_of, is_local, network_of

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

Admit = Callable[[str], bool]
"""Takes the address of a client, and returns whether it may do a handshake now."""


def first_refusal(factory: Any, peer: IAddress, data: bytes) -> tuple[str, bytes] | None:
    """Return why the client ``peer``, whose first bytes are ``data``, may not begin, or None.

    The second part is the answer, if the protocol of ``factory`` has one for a client without TLS.
    """
    admit: Admit | None = getattr(factory, "admit", None)
    if admit is not None and not is_local(peer) and not admit(network_of(host_of(peer))):
        return HANDSHAKE_RATE, b""
    answer: Callable[[bytes], bytes] | None = getattr(factory, "answer_without_tls", None)
    found = b"" if answer is None else answer(data)
    return (PLAINTEXT, found) if found else None
