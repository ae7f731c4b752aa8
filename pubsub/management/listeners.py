"""The rows of lists of listeners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress

if TYPE_CHECKING:
    from pubsub.broker.readiness import Door, Readiness
    from pubsub.management.listing import Row


def listener_rows(readiness: Readiness) -> Iterator[tuple[str, Row]]:
    """Yield a key and a row for each address of each listener; one without address has a row too.

    Keys are in order.
    """
    for number, listener in enumerate(readiness.listeners):
        addresses = readiness.addresses(listener)
        for index, address in enumerate(addresses or [None]):
            yield f"{number:06}-{index:03}", _row(listener, _text(address))


def _row(listener: Door, address: str | None) -> Row:
    settings = listener.settings
    return {
        "protocol": listener.event_protocol,
        "endpoint": listener.endpoint,
        "address": address,
        "connections": listener.quota.open,
        "tls": listener.tls,
        "anonymous": listener.serves_anonymous,
        "max_connections": settings["max-connections"],
    }


def _text(address: object) -> str | None:
    match address:
        case IPv6Address(host=host, port=port):
            return f"[{host}]:{port}"
        case IPv4Address(host=host, port=port):
            return f"{host}:{port}"
        case UNIXAddress(name=bytes() as name):
            return f"unix:{name.decode(errors='replace')}"
        case None:
            return None
    return str(address)
