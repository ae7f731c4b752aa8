"""The metrics of the backplane: the state that is shared with other brokers."""

from __future__ import annotations

from pubsub.broker.clients.peers import states_of
from pubsub.http_api.metrics.metric_family import COUNTER, GAUGE, Family, Reading, Samples, value


def _is_connected(reading: Reading) -> Samples:
    """A server that is cut off from the others does not pass messages on to them."""
    found = reading.figures.get("backplane", {})
    if "connected" not in found:
        return ()
    return (((), float(found["connected"] and not found.get("cut_off", False))),)


def _is_shared(reading: Reading) -> Samples:
    """Sessions that fail begin again twice a second: a reason lasts until none has failed."""
    found = reading.figures.get("backplane", {})
    if "history_connected" not in found:
        return ()
    return (((), float(found["history_connected"] and not found["history_trouble"])),)


def _peers(reading: Reading) -> Samples:
    found = reading.figures.get("peers", states_of(()))
    return [((state,), float(n)) for state, n in found.items()]


BACKPLANE = (
    Family(
        "pubsub_peers",
        GAUGE,
        "Brokers with which topics are shared over spot: connected, connecting or lost.",
        ("state",),
        _peers,
    ),
    Family(
        "pubsub_backplane_connected",
        GAUGE,
        "1 while the engine of the backplane is there, with most servers of its cluster; only "
        "with a backplane.",
        (),
        _is_connected,
    ),
    Family(
        "pubsub_backplane_sent_messages",
        COUNTER,
        "Messages sent to other brokers.",
        (),
        value("backplane", "messages_out"),
    ),
    Family(
        "pubsub_backplane_received_messages",
        COUNTER,
        "Messages received from other brokers.",
        (),
        value("backplane", "messages_in"),
    ),
    Family(
        "pubsub_backplane_subscriptions",
        GAUGE,
        "Subjects that the broker subscribes to.",
        (),
        value("backplane", "subscriptions"),
    ),
    Family(
        "pubsub_backplane_queued_bytes",
        GAUGE,
        "Bytes that wait for the engine.",
        (),
        value("backplane", "queued_bytes"),
    ),
    Family(
        "pubsub_backplane_reconnects",
        COUNTER,
        "Connections to the engine after the first.",
        (),
        value("backplane", "reconnects"),
    ),
    Family(
        "pubsub_backplane_topics",
        GAUGE,
        "Topics that this broker shares with others.",
        (),
        value("backplane", "topics"),
    ),
    Family(
        "pubsub_backplane_topics_waiting",
        GAUGE,
        "Topics that this broker has still to share, or to take over from others.",
        (),
        value("backplane", "topics_waiting"),
    ),
    Family(
        "pubsub_backplane_state_changes",
        COUNTER,
        "Changes of the shared state that this broker has requested.",
        (),
        value("backplane", "state_changes"),
    ),
    Family(
        "pubsub_backplane_history_connected",
        GAUGE,
        "1 while the histories are shared; only with backplane-history shared.",
        (),
        _is_shared,
    ),
    Family(
        "pubsub_backplane_history_replicated_messages",
        COUNTER,
        "Messages of this broker that the shared stream has taken.",
        (),
        value("backplane", "history_replicated"),
    ),
    Family(
        "pubsub_backplane_history_unreplicated_messages",
        GAUGE,
        "Messages of this broker that wait for the shared stream.",
        (),
        value("backplane", "history_unreplicated"),
    ),
    Family(
        "pubsub_backplane_history_unreplicated_bytes",
        GAUGE,
        "Bytes of the messages that wait for the shared stream.",
        (),
        value("backplane", "history_unreplicated_bytes"),
    ),
    Family(
        "pubsub_backplane_history_imported_messages",
        COUNTER,
        "Messages of other brokers that this one has stored.",
        (),
        value("backplane", "history_imported"),
    ),
    Family(
        "pubsub_backplane_history_recovered_messages",
        COUNTER,
        "Messages of this broker that its history had lost and the stream had.",
        (),
        value("backplane", "history_recovered"),
    ),
    Family(
        "pubsub_backplane_history_lag",
        GAUGE,
        "Records of the stream that this broker has not read.",
        (),
        value("backplane", "history_lag"),
    ),
    Family(
        "pubsub_backplane_history_gaps",
        COUNTER,
        "Times that the stream, or its end, was lost or shortened before this broker read it all.",
        (),
        value("backplane", "history_gaps"),
    ),
    Family(
        "pubsub_backplane_history_removed_messages",
        COUNTER,
        "Messages that retention removed before the stream had them.",
        (),
        value("backplane", "history_removed"),
    ),
)
