"""The settings of every listener: access, quotas, rates, slow subscribers, time limits, TLS."""

from __future__ import annotations

from pubsub.broker.credentials.anonymous_policy import ALLOW_ANONYMOUS
from pubsub.broker.credentials.anonymous_policy import AUTO as AUTO_ANONYMOUS
from pubsub.broker.delivery.slow_policy import AUTO, DISCONNECT, DROP, PAUSE
from pubsub.broker.listeners.tls_settings import TLS_SETTINGS
from pubsub.settings import COUNT, PATTERNS, SECONDS, SIZE, Setting, choice

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "allow-anonymous",
        ALLOW_ANONYMOUS,
        AUTO_ANONYMOUS,
        "serve clients that prove no identity; auto: those of this machine, and a listener that "
        "other machines can reach does not start",
    ),
    Setting("allow-publish", PATTERNS, "*", "topics that clients may publish to"),
    Setting("allow-subscribe", PATTERNS, "*", "topics that clients may read"),
    Setting("grant", PATTERNS, "", "topics with a queue key that are open on this listener"),
    Setting("max-connections", COUNT, 0, "connections of a listener; 0: no limit"),
    Setting(
        "max-connections-per-address",
        COUNT,
        0,
        "connections from one address, or IPv6 network of 64 bits; 0: no limit",
    ),
    Setting("rate-messages", COUNT, 0, "messages/s a connection may publish; 0: no limit"),
    Setting("rate-bytes", SIZE, 0, "bytes/s of messages a connection may publish; 0: no limit"),
    Setting("listener-rate-messages", COUNT, 0, "messages/s of all connections of a listener"),
    Setting("listener-rate-bytes", SIZE, 0, "bytes/s of messages of all connections of a listener"),
    Setting(
        "slow-consumer",
        choice(AUTO, PAUSE, DROP, DISCONNECT),
        AUTO,
        "policy for slow subscribers: let them continue from the history, hold their publishers, "
        "drop messages for them, or disconnect them",
    ),
    Setting("slow-bytes", SIZE, "64M", "bytes that may be queued for a slow subscriber"),
    Setting("slow-seconds", SECONDS, 30, "seconds a subscriber may be slow before its policy acts"),
    Setting("catch-up-seconds", SECONDS, 0, "seconds a subscriber may be behind; 0: no limit"),
    Setting("idle-timeout", SECONDS, 0, "seconds without input before disconnection; 0: never"),
    Setting(
        "frame-seconds",
        SECONDS,
        20,
        "seconds for a frame to arrive, plus one for each 64 KiB of it; 0: no limit",
    ),
    Setting("handshake-seconds", SECONDS, 10, "seconds for a handshake; 0: no limit"),
    Setting(
        "handshake-rate",
        COUNT,
        100,
        "TLS and CURVE handshakes/s of one address, ten times as many at once; 0: no limit",
    ),
    *TLS_SETTINGS,
)
"""The settings that every listener has, with any protocol."""
