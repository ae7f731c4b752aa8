"""The metrics of the broker: their names, and the figures from which their samples are taken.

The names are an interface: dashboards and alert rules of users depend on them.
``docs/metrics.md`` has the table that is made of these declarations.
"""

from __future__ import annotations

from pubsub.http_api.metrics.backplane_families import BACKPLANE
from pubsub.http_api.metrics.metric_family import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    INFO,
    Family,
    by_key,
    certificates,
    drops,
    evictions,
    of_issuers,
    per_protocol,
    refusals,
    value,
)

FAMILIES: tuple[Family, ...] = (
    Family(
        "pubsub_build",
        INFO,
        "The version, the form of the kernel, Python's version and the name of the broker; the "
        "value is 1.",
        ("version", "kernel", "python", "name"),
        lambda reading: ((tuple(reading.build.values()), 1.0),),
    ),
    Family(
        "pubsub_start_time_seconds",
        GAUGE,
        "When the broker was started, in seconds since the Unix epoch.",
        (),
        lambda reading: (((), reading.started),),
    ),
    # Clients
    per_protocol("pubsub_connections", GAUGE, "Open connections.", "connections"),
    per_protocol(
        "pubsub_sessions",
        GAUGE,
        "Sessions of connections, or kept for clients that may resume them.",
        "sessions",
    ),
    Family("pubsub_topics", GAUGE, "Topics.", (), value("topics")),
    Family("pubsub_subscriptions", GAUGE, "Subscriptions.", (), value("subscriptions")),
    Family(
        "pubsub_twice_hosted_topics",
        GAUGE,
        "Topics that this broker and a peer host, or two peers: their messages are not shared.",
        (),
        value("twice_hosted", "topics"),
    ),
    # Messages
    per_protocol(
        "pubsub_received_messages", COUNTER, "Messages that were accepted.", "messages_in"
    ),
    per_protocol(
        "pubsub_received_bytes", COUNTER, "Bytes of the payloads that were accepted.", "bytes_in"
    ),
    per_protocol(
        "pubsub_sent_messages", COUNTER, "Messages written to connections.", "messages_out"
    ),
    per_protocol(
        "pubsub_sent_bytes", COUNTER, "Bytes of messages written, with their frames.", "bytes_out"
    ),
    Family(
        "pubsub_dropped_messages",
        COUNTER,
        "Messages that a subscriber did not get, counted for each.",
        ("reason",),
        drops,
    ),
    Family(
        "pubsub_evictions",
        COUNTER,
        "Clients disconnected to protect the others.",
        ("reason",),
        evictions,
    ),
    Family(
        "pubsub_refusals",
        COUNTER,
        "Requests answered with an error, and connections not admitted.",
        ("protocol", "reason"),
        refusals,
    ),
    # Slow subscribers
    Family(
        "pubsub_paused_subscribers",
        GAUGE,
        "Subscribers whose transport takes no more.",
        (),
        value("slow", "paused"),
    ),
    Family(
        "pubsub_catching_up_subscribers",
        GAUGE,
        "Subscribers that read the history, as they are behind.",
        (),
        value("slow", "catching_up"),
    ),
    Family(
        "pubsub_behind_offsets",
        GAUGE,
        "Offsets that subscribers which are behind have not read, added up.",
        (),
        value("slow", "behind"),
    ),
    Family(
        "pubsub_queued_bytes",
        GAUGE,
        "Bytes that wait for subscribers that do not read.",
        (),
        value("slow", "queued_bytes"),
    ),
    # Times
    Family(
        "pubsub_flush_seconds",
        HISTOGRAM,
        "Time from a publish until its messages are sent; at most 10 in each tenth of a second.",
        source="flush",
    ),
    Family(
        "pubsub_commit_seconds",
        HISTOGRAM,
        "Time from a publish until the history is written, for each commit.",
        source="commit",
    ),
    Family(
        "pubsub_sync_seconds",
        HISTOGRAM,
        "Time from a publish until the history is on disk, for each commit.",
        source="sync",
    ),
    # The history
    Family(
        "pubsub_history_first_offset",
        GAUGE,
        "Smallest offset that can be read.",
        (),
        value("store", "first_offset"),
    ),
    Family(
        "pubsub_history_next_offset",
        GAUGE,
        "Offset of the next message.",
        (),
        value("store", "next_offset"),
    ),
    Family(
        "pubsub_history_committed_offset",
        GAUGE,
        "Offset before which all messages are written.",
        (),
        value("store", "committed"),
    ),
    Family(
        "pubsub_history_bytes",
        GAUGE,
        "Bytes of the segments; of the messages if the history is in memory.",
        (),
        value("store", "bytes"),
    ),
    Family(
        "pubsub_history_segments",
        GAUGE,
        "Segments on disk.",
        (),
        value("store", "segments"),
    ),
    Family(
        "pubsub_history_index_bytes",
        GAUGE,
        "Bytes of the indexes of the segments.",
        (),
        value("store", "index_bytes"),
    ),
    Family(
        "pubsub_history_disk_free_bytes",
        GAUGE,
        "Bytes that the history's file system has free.",
        (),
        value("store", "disk_free"),
    ),
    Family(
        "pubsub_history_damaged_offsets",
        GAUGE,
        "Offsets that were found damaged or missing.",
        (),
        value("store", "damaged_offsets"),
    ),
    Family(
        "pubsub_history_read_errors",
        COUNTER,
        "Reads of segments that the disk has failed.",
        (),
        value("store", "read_errors"),
    ),
    Family(
        "pubsub_history_unreadable_segments",
        GAUGE,
        "Segments whose last read failed, within ten minutes, and that are not taken for damaged.",
        (),
        value("store", "unreadable_segments"),
    ),
    Family(
        "pubsub_history_metadata_failing",
        GAUGE,
        "1 while the history's metadata cannot be written: its segments are kept until they can.",
        (),
        value("store", "metadata_failing"),
    ),
    Family("pubsub_history_commits", COUNTER, "Commits.", (), value("store", "commits")),
    Family(
        "pubsub_history_failures",
        COUNTER,
        "Writes and syncs that failed.",
        (),
        value("store", "failures"),
    ),
    Family(
        "pubsub_history_last_commit_age_seconds",
        GAUGE,
        "Time since the last commit.",
        (),
        value("store", "seconds_since_commit"),
    ),
    Family(
        "pubsub_history_stalled_seconds",
        GAUGE,
        "Time for which a write or sync has not ended; 0 if there is none.",
        (),
        value("store", "stalled_seconds"),
    ),
    *BACKPLANE,
    # The process
    Family(
        "pubsub_memory_bytes",
        GAUGE,
        "Memory counted to max-memory, by what it is used for.",
        ("account",),
        by_key("memory", "accounts"),
    ),
    Family(
        "pubsub_memory_limit_bytes",
        GAUGE,
        "The bound max-memory; 0 if there is none.",
        (),
        value("memory", "limit"),
    ),
    Family(
        "pubsub_certificate_expiry_timestamp_seconds",
        GAUGE,
        "When a certificate of TLS expires, in seconds since the Unix epoch; only with TLS.",
        ("protocol", "setting", "subject"),
        certificates,
    ),
    Family(
        "pubsub_token_checks",
        COUNTER,
        "Tokens that were known, that had to be verified, and that were rejected.",
        ("result",),
        by_key("tokens"),
    ),
    Family(
        "pubsub_issuer_keys",
        GAUGE,
        "Public keys of an issuer with a jwks-url.",
        ("issuer",),
        of_issuers("keys"),
    ),
    Family(
        "pubsub_issuer_keys_age_seconds",
        GAUGE,
        "Time since an issuer's keys were fetched; missing until they are.",
        ("issuer",),
        of_issuers("age"),
    ),
    Family(
        "pubsub_issuer_fetch_failures",
        COUNTER,
        "Fetches of an issuer's keys that failed.",
        ("issuer",),
        of_issuers("failures"),
    ),
    Family(
        "pubsub_clock_jumps",
        COUNTER,
        "Jumps of the system's clock.",
        (),
        value("clock", "jumps"),
    ),
    Family(
        "pubsub_reactor_worst_lag_seconds",
        GAUGE,
        "By how much a timer was late, at most, in the last second.",
        (),
        value("reactor", "lag"),
    ),
    Family(
        "pubsub_reactor_lag_seconds",
        COUNTER,
        "By how much timers were late, added up.",
        (),
        lambda reading: (((), reading.lag[1]),),
    ),
    Family(
        "pubsub_reactor_measurements",
        COUNTER,
        "Measurements of the reactor's lag.",
        (),
        lambda reading: (((), reading.lag[0]),),
    ),
    Family(
        "pubsub_collector_worst_pause_seconds",
        GAUGE,
        "Longest run of Python's garbage collector in the last second.",
        (),
        value("reactor", "collector_pause"),
    ),
    Family(
        "pubsub_collector_pause_seconds",
        COUNTER,
        "Time in Python's garbage collector.",
        (),
        lambda reading: (((), reading.pauses[1]),),
    ),
    Family(
        "pubsub_collector_runs",
        COUNTER,
        "Runs of Python's garbage collector.",
        (),
        lambda reading: (((), reading.pauses[0]),),
    ),
)
