"""The settings of the backplane, and the backplane that they describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pubsub.backplane.engine_url import ENGINE, engine_options
from pubsub.backplane.fanout import Fanout
from pubsub.errors import ConfigurationError
from pubsub.settings import FILE, SIZE, Setting

if TYPE_CHECKING:
    from pubsub.broker.service import BrokerService

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "backplane",
        ENGINE,
        "",
        "servers of NATS with JetStream through which brokers share messages; see docs/scaling.md",
    ),
    Setting("backplane-creds", FILE, "", "a file with credentials for NATS (JWT and seed)"),
    Setting(
        "backplane-ca",
        FILE,
        "",
        "a file in PEM with the authorities of the servers of NATS; default: those of the system",
    ),
    Setting("backplane-cert", FILE, "", "a file in PEM with the certificate for NATS"),
    Setting(
        "backplane-key", FILE, "", "a file in PEM with its key; default: backplane-cert has it"
    ),
    Setting(
        "backplane-bytes",
        SIZE,
        "16M",
        "bytes that may wait for NATS, and as many that may wait for the broker; counted to "
        "max-memory",
    ),
)


def check_backplane(broker: Mapping[str, Any], listeners: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigurationError for settings that contradict each other."""
    if not broker["backplane"]:
        return
    if any(settings.get("peers") for settings in listeners):
        raise ConfigurationError(
            "backplane: cannot be combined with --peer; a topic would reach the same broker twice"
        )
    needed = 2 * broker["backplane-bytes"]
    if 0 < broker["max-memory"] <= needed:
        raise ConfigurationError(
            f"max-memory: the backplane alone needs {needed} bytes; give more memory, or lower "
            "backplane-bytes"
        )


def add_backplane(
    broker: BrokerService,
    settings: Mapping[str, Any],
    reactor: Any,
    tick_end: Callable[[Callable[[], None]], object],
) -> None:
    """Share the messages of ``broker`` with others, if the settings say so.

    Called before the listeners are added. Raises ConfigurationError.
    """
    options = engine_options(settings)
    if options is None:
        return
    try:
        from pubsub.backplane.nats_backplane import NatsBackplane
    except ImportError as error:
        raise ConfigurationError(
            f"backplane: {error}; install it with pip install 'pubsub-broker[nats]'"
        ) from None
    backplane = NatsBackplane(options, reactor, tick_end, broker.counters.drop)
    fanout = Fanout(broker, backplane)
    fanout.set_aside(2 * options.max_bytes)
    fanout.setServiceParent(broker)  # type: ignore[no-untyped-call]
