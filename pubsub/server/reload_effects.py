"""The effect of a reload on each setting: the one table of it, by scope and name.

The scope is ``broker``, ``listener`` for the settings of every listener, or the name of a protocol
for its own settings. ``scripts/tables.py`` puts the table into the documentation, and
``tests/unit/test_reload_effects.py`` fails if a setting is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pubsub.broker.listeners.tls_settings import TLS
from pubsub.plugin import ADMIN


class Effect(StrEnum):
    """The time at which a changed setting takes effect; the text is that of the documentation."""

    NOW = "at once"
    """For connections that are open as well."""
    NEW = "for new connections"
    """Or for new subscribers of an open connection."""
    RESTART = "restart"
    """Not before the broker is started again."""


BROKER, LISTENER = "broker", "listener"
_NOW, _NEW, _RESTART = Effect.NOW, Effect.NEW, Effect.RESTART

EFFECTS: Mapping[str, Mapping[str, Effect]] = {
    BROKER: {
        "name": _RESTART,
        # Listeners move to the new address.
        "interface": _NOW,
        "history": _RESTART,
        "store": _RESTART,
        "durability": _NOW,
        "retention": _NOW,
        "commit-interval": _NOW,
        "commit-bytes": _NOW,
        "compression": _NOW,
        "admin-port": _NOW,
        "max-memory": _NOW,
        "memory-seconds": _NOW,
        "secret-file": _NOW,
        "token-deny-file": _NOW,
        "allow-weak-secret": _NOW,
        "password-file": _NOW,
        "audit-log": _NOW,
        "audit-size": _NOW,
        "events": _NOW,
        "otel": _RESTART,
        "backplane": _RESTART,
        "backplane-creds": _RESTART,
        "backplane-ca": _RESTART,
        "backplane-cert": _RESTART,
        "backplane-key": _RESTART,
        "backplane-bytes": _RESTART,
        "backplane-replicas": _RESTART,
        "backplane-history": _RESTART,
        "backplane-history-bytes": _RESTART,
        "backplane-history-age": _RESTART,
        "backplane-lease": _RESTART,
        "backplane-spool-bytes": _RESTART,
        "max-topics": _NOW,
        "topic-expiry": _NOW,
        "identity-expiry": _NOW,
        "max-sessions": _NOW,
        "resume-window": _NOW,
        "log-format": _RESTART,
        "log-level": _NOW,
        "stop-timeout": _NOW,
        "tuning": _RESTART,
    },
    LISTENER: {
        "allow-anonymous": _NOW,
        "allow-publish": _NOW,
        "allow-subscribe": _NOW,
        "grant": _NOW,
        "max-connections": _NEW,
        "max-connections-per-address": _NEW,
        "rate-messages": _NEW,
        "rate-bytes": _NEW,
        "listener-rate-messages": _NEW,
        "listener-rate-bytes": _NEW,
        "slow-consumer": _NEW,
        "slow-bytes": _NEW,
        "slow-seconds": _NEW,
        "catch-up-seconds": _NEW,
        "idle-timeout": _NOW,
        "frame-seconds": _NOW,
        "handshake-seconds": _NOW,
        "handshake-rate": _NEW,
        "tls-cert": _NEW,
        "tls-key": _NEW,
        "tls-ca": _NEW,
        "tls-identity": _NEW,
        "tls-client": _NEW,
        "tls-min": _NEW,
        "tls-ciphers": _NEW,
    },
    "cafe": {
        "client-id-password": _NEW,
        "channels": _RESTART,
        "udp": _RESTART,
        "udp-packing": _NOW,
        "udp-timeout": _NOW,
        "udp-trusted": _NOW,
    },
    "nsd": {
        "identity-password": _NOW,
        "max-body": _NOW,
        "max-identities": _NOW,
        "max-subscriptions": _NOW,
    },
    "rheos": {
        "layout": _RESTART,
        "checksum": _RESTART,
        "envelope": _RESTART,
        "max-ids": _NOW,
        "max-subscriptions": _NOW,
    },
    "spot": {
        "peers": _RESTART,
        "peer-ca": _RESTART,
        "peer-cert": _RESTART,
        "peer-key": _RESTART,
        "sync": _NOW,
        "query-timeout": _NOW,
        "confirm-seconds": _NOW,
        "heartbeat": _NOW,
        "max-message": _RESTART,
        "max-subscriptions": _NOW,
        "mechanism": _NEW,
        "curve-secret-file": _NEW,
        "curve-clients": _NOW,
        "peer-curve-keys": _NEW,
    },
    "fast": {
        "max-payload": _RESTART,
        "max-subscriptions": _NOW,
        "errors": _NOW,
        "require-create": _NOW,
        "rotation-grace": _NOW,
    },
    ADMIN.name: {
        "max-streams": _NOW,
        "max-message": _NEW,
        "max-subscriptions": _NOW,
        "max-readers": _NOW,
        "max-batch": _NOW,
        "max-staged": _NOW,
        "stage-seconds": _NOW,
        "http-hosts": _NOW,
        "http-origins": _NOW,
    },
}


def effect_of(protocol: str, name: str) -> Effect:
    """Return the effect of a setting of a listener: its protocol's own, or one of all.

    The settings of a protocol of another package take effect after a restart.
    """
    if name == TLS:
        # The contents of the files; they may differ while their names are the same.
        return Effect.NEW
    own = EFFECTS.get(protocol, {})
    return own.get(name) or EFFECTS[LISTENER].get(name, Effect.RESTART)
