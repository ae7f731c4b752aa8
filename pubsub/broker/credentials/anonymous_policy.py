"""Whether a listener admits anonymous clients: those that prove nothing but their address."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from pubsub.broker.listeners.tls_settings import REQUIRED, TLS
from pubsub.settings import BOOLEAN, Kind

AUTO, ON, OFF = "auto", "on", "off"
"""Anonymous clients of this machine, all of them, or none."""


def _parse(value: object) -> str:
    if value == AUTO:
        return AUTO
    try:
        return ON if BOOLEAN.parse(value) else OFF
    except ValueError:
        raise ValueError(f"expected on, off or auto, not {value!r}") from None


ALLOW_ANONYMOUS = Kind("on|off|auto", _parse, is_flag=True)


# Each request of nsd asks.
@lru_cache(maxsize=256)
def is_here(host: str) -> bool:
    """Return whether clients at ``host`` are on this machine; true if nothing is known of it."""
    if host in ("", "unix"):
        return True
    address = ip_address(host.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback


def admits_anonymous(settings: Mapping[str, Any], host: str) -> bool:
    """Return whether a listener with these settings admits an anonymous client at ``host``.

    A client that had to present a certificate may be anonymous by its name; it is admitted.
    """
    policy = settings["allow-anonymous"]
    if policy == AUTO:
        return is_here(host) or requires_certificates(settings)
    return bool(policy == ON)


def requires_certificates(settings: Mapping[str, Any]) -> bool:
    """Return whether no client is served without a certificate."""
    return settings.get(TLS) is not None and settings["tls-client"] == REQUIRED


def is_exposed(settings: Mapping[str, Any], host: str) -> bool:
    """Return whether a listener at ``host`` would admit clients without an explicit setting."""
    undecided = settings["allow-anonymous"] == AUTO
    return undecided and not admits_anonymous(settings, host)
