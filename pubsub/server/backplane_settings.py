"""The settings of the backplane, and the backplane that they describe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.threads import deferToThreadPool

from pubsub.backplane.backplane_services import BackplaneServices
from pubsub.backplane.batches.shared_batches import SharedBatches
from pubsub.backplane.engine.engine_url import ENGINE, engine_options
from pubsub.backplane.fanout import Fanout
from pubsub.backplane.history.replica_sender import WINDOW
from pubsub.backplane.history.replica_stream import FETCHED
from pubsub.backplane.history.shared_history import SharedHistory
from pubsub.backplane.history.spool import SharedLimits
from pubsub.backplane.identities.shared_identities import SharedIdentities
from pubsub.backplane.readers.shared_readers import SharedReaders
from pubsub.backplane.sessions.shared_sessions import SharedSessions
from pubsub.backplane.state.secret_comparison import SecretComparison
from pubsub.backplane.topics.leases import LEAST, MOST, Leases
from pubsub.backplane.topics.shared_topics import SharedTopics
from pubsub.errors import ConfigurationError
from pubsub.server.clocks import elapsed
from pubsub.settings import FILE, SIZE, Kind, Setting, choice, integer
from pubsub.store.shared_store import SharedStore
from pubsub.store.upkeep.retention_limits import parse_age

if TYPE_CHECKING:
    from pubsub.backplane.history.awaited_keys import AwaitedKeys
    from pubsub.backplane.positions.shared_positions import SharedPositions
    from pubsub.backplane.state.shared_state import ISharedState
    from pubsub.broker.service import BrokerService

OWN, SHARED = "own", "shared"


def _age(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError(f"expected an age such as 90s, 30m, 12h or 7d, not {value!r}")
    return parse_age(value)


def _lease(value: object) -> float:
    seconds = _age(value)
    if not LEAST <= seconds <= MOST:
        raise ValueError(f"expected {LEAST:.0f}s to {MOST / 60:.0f}m")
    return seconds


AGE = Kind("N(s|m|h|d)", _age)
LEASE = Kind("N(s|m|h)", _lease)

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "backplane",
        ENGINE,
        "",
        "servers of NATS with JetStream through which brokers share messages; see docs/scaling.md",
    ),
    Setting(
        "backplane-creds",
        FILE,
        "",
        "a file with credentials for NATS: a JWT and a seed, or a seed alone",
    ),
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
        "bytes that may wait for NATS, and as many that may wait for the broker; both count in "
        "max-memory",
    ),
    Setting(
        "backplane-replicas",
        integer(1, 5),
        1,
        "servers of NATS that keep the shared state; only the first broker uses the setting",
    ),
    Setting(
        "backplane-lease",
        LEASE,
        "1m",
        "time without a sign of life after which the exclusive topics of a broker are free",
    ),
    Setting(
        "backplane-history",
        choice(OWN, SHARED),
        OWN,
        "own: each broker has a history of its own; shared: each has the messages of all",
    ),
    Setting(
        "backplane-history-bytes",
        SIZE,
        "10G",
        "size of the stream through which histories are shared; 0: no limit",
    ),
    Setting(
        "backplane-history-age",
        AGE,
        "7d",
        "age at which messages leave the stream: how long a broker may be disconnected",
    ),
    Setting(
        "backplane-spool-bytes",
        SIZE,
        "1G",
        "bytes of messages that may wait for NATS in a broker's history; further messages are "
        "refused",
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
    if broker["backplane-history"] == SHARED and broker["store"] is None:
        raise ConfigurationError(
            "backplane-history: shared needs a history on disk; remove --store memory"
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
    """Share the messages and topics of ``broker`` with others, if the settings say so.

    Called before the listeners are added. Raises ConfigurationError.
    """
    try:
        options = engine_options(settings)
        if options is None:
            return
        from pubsub.backplane.engine.nats_backplane import NatsBackplane
    except ImportError as error:
        raise ConfigurationError(
            f"backplane: {error}; install it with pip install 'pubsub-broker[nats]'"
        ) from None
    keys: AwaitedKeys | None = None
    services = BackplaneServices(reactor)
    if not isinstance(broker.store, SharedStore):
        backplane = NatsBackplane(options, reactor, tick_end, broker.counters.drop)
        fanout = Fanout(broker, backplane)
        fanout.set_aside(2 * options.max_bytes)
    else:
        from pubsub.backplane.engine.nats_history import StreamOptions

        stream_options = StreamOptions(
            settings["backplane-replicas"],
            settings["backplane-history-bytes"],
            settings["backplane-history-age"],
        )
        backplane = NatsBackplane(
            options, reactor, tick_end, broker.counters.drop, history=stream_options
        )
        assert backplane.history is not None
        limits = SharedLimits(settings["backplane-spool-bytes"], options.max_bytes)
        history = SharedHistory(broker, broker.store, backplane.history, reactor, limits, tick_end)
        fanout, keys = Fanout(broker, backplane, history), history.keys
        _share_places(broker, services, fanout, backplane.state, history.positions, reactor)
        fanout.set_aside(2 * options.max_bytes + WINDOW + FETCHED)
    topics = _share_topics(broker, services, fanout, backplane.state, settings, reactor)
    if keys is not None:
        keys.follow(backplane.state, lambda: topics.is_complete)
    secrets = SecretComparison(broker, backplane.state, reactor, time.time)
    fanout.also.append(secrets.figures)
    secrets.setServiceParent(services)  # type: ignore[no-untyped-call]
    fanout.setServiceParent(services)  # type: ignore[no-untyped-call]
    services.setServiceParent(broker)  # type: ignore[no-untyped-call]


def _share_topics(
    broker: BrokerService,
    services: BackplaneServices,
    fanout: Fanout,
    state: ISharedState,
    settings: Mapping[str, Any],
    reactor: Any,
) -> SharedTopics:
    shared = SharedTopics(
        broker,
        state,
        reactor,
        lambda call: deferToThreadPool(reactor, reactor.getThreadPool(), call),
        Leases(state, reactor, elapsed, settings["backplane-lease"]),
    )
    fanout.also.append(shared.figures)
    # It is called with the present state once there is a connection, so it is started before.
    shared.setServiceParent(services)  # type: ignore[no-untyped-call]
    return shared


def _share_places(
    broker: BrokerService,
    services: BackplaneServices,
    fanout: Fanout,
    state: ISharedState,
    positions: SharedPositions,
    reactor: Any,
) -> None:
    """Share the positions of readers, batches that are committed once, sessions and identities."""
    assert isinstance(broker.store, SharedStore)
    SharedReaders(state, positions, reactor, broker.memory)
    positions.batches = SharedBatches(state, broker.store, reactor, broker.memory, time.time)
    sessions = SharedSessions(broker, state, positions, reactor)
    identities = SharedIdentities(broker, broker.store, state, positions, reactor)
    sessions.also.append(identities.leave)
    fanout.also += [sessions.figures, identities.figures]
    sessions.setServiceParent(services)  # type: ignore[no-untyped-call]
    identities.setServiceParent(services)  # type: ignore[no-untyped-call]
