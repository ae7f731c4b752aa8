"""The limits that the documents give as numbers, against the constants that they describe."""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.batches import returning_batches, settled_batches
from pubsub.backplane.topics import shared_entries
from pubsub.broker.clients.identity_sharing import MAX_CHANNELS
from pubsub.broker.credentials import passwords
from pubsub.broker.credentials.queue_key_limit import MAX_KEY
from pubsub.broker.credentials.verification_throttle import VERIFICATIONS
from pubsub.broker.delivery.history_reads import PAGE_BYTES
from pubsub.broker.figures import counters
from pubsub.broker.figures.events import FRAME_BYTES
from pubsub.broker.topic_space.topic_names import MAX_NAME
from pubsub.client.link_timing import Timing
from pubsub.client.publish_calls import TURN_BYTES
from pubsub.client.publish_requests import GROUP_BYTES, GROUP_MESSAGES
from pubsub.commands import tail
from pubsub.http_api.exactly_once import committed_batches, part_registry
from pubsub.http_api.publishing import message_body
from pubsub.http_api.readers import reader_positions
from pubsub.http_api.reading.live_response import HEARTBEAT_SECONDS
from pubsub.http_api.websocket import websocket_frames, websocket_limits
from pubsub.management import listing
from pubsub.store.commits import commit_gate
from pubsub.store.commits.log_writer import SEGMENT_BYTES
from pubsub.store.segments import log_directory
from pubsub.store.segments.segment_index import ENTRY_BYTES
from pubsub.wire import tls_input

_DOCS = Path(__file__).parents[2] / "docs"
_KIB, _MIB, _GIB, _DAY = 1024, 1024**2, 1024**3, 24 * 3600


def _n(number: float) -> str:
    """Return a number as the documents write it; it has no fraction beyond the first digit."""
    return f"{number:,.1f}".removesuffix(".0")


def _kib(size: int) -> str:
    return f"{_n(size / _KIB)} KiB"


def _mib(size: int) -> str:
    return f"{_n(size / _MIB)} MiB"


_PHRASES = {
    "http.md": (
        f"messages of a request, up to {_n(message_body.MAX_MESSAGES)}, are published together",
        f"each: {_n(_GIB // 4 // reader_positions._READER_BYTES)} positions with 1G",
        f"each: {_n(_GIB // 8 // committed_batches._QUERY_BYTES)} queries with 1G",
        f"remembers the last batch of {_n(committed_batches.MAX_QUERIES)} queries",
        f"A key has 1 to {_n(MAX_KEY)} bytes",
        f"{_n(listing.DEFAULT_ROWS)} by default and at most {_n(listing.MAX_ROWS)}",
        f"for names, of up to {_n(listing.MAX_PATTERN)} bytes",
        f"A sign of life is sent every {_n(HEARTBEAT_SECONDS)} s",
    ),
    "websocket.md": (
        f"the first request, of up to {_kib(websocket_limits.CONNECT_BYTES)}",
        f"up to {_n(websocket_frames._BATCH_MESSAGES)} of them or "
        f"{_kib(websocket_frames._BATCH_BYTES)}",
        f"or has {_n(websocket_limits.MAX_CONFIRMING)} unconfirmed publishes",
    ),
    "scaling.md": (
        f"with more than {_kib(MAX_CHANNELS)} of channel names",
        f"remembers deletions for {_n(shared_entries._REMEMBERED['deleted'] / _DAY)} days",
        f"in the last {_n(settled_batches.KEPT / _DAY)} days "
        f"({_n(settled_batches.MAX_QUERIES)} queries of each owner)",
        f"For about {_n(returning_batches._OTHERS)} seconds after that, commits",
    ),
    "security.md": (f"has {_n(passwords.RATE)} passwords and {_n(VERIFICATIONS)} tokens a second",),
    "protocols.md": (f"one name, 1 to {_n(MAX_NAME)} bytes of UTF-8",),
    "operating.md": (
        f"A connection with TLS counts {_kib(tls_input.STREAM_BYTES)} more",
        f"{_kib(tls_input._MAX_SILENT)} of control messages of TLS (KeyUpdate) in a row, or leaves "
        f"more than {_kib(tls_input._MAX_ANSWERS)} of the answers",
        f"a page of {_kib(PAGE_BYTES)} at a time",
        f"the {_n(part_registry._MAX_PARTS)} parts that may be staged",
        f"by client for the last {_n(counters._MAX_KINDS)} clients",
        f"at most the first {_n(FRAME_BYTES)} bytes, in base64",
    ),
    "reliability.md": (
        f"held while {_mib(commit_gate.MAX_UNWRITTEN)} are not written, or a sixteenth of "
        f"`max-memory`, {_n(commit_gate.MAX_UNWRITTEN / _MIB)} to "
        f"{_mib(commit_gate.MAX_UNSYNCED)}, is not on disk",
    ),
    "client.md": (
        f"that grow from {_n(Timing().first_pause)} s to {_n(Timing().longest_pause)} s",
        f"after each {_kib(TURN_BYTES)} the call",
        f"up to {_n(GROUP_MESSAGES)} messages or {_mib(GROUP_BYTES)}, share the next one",
    ),
    "command.md": (f"or holds up to {_mib(tail._KEPT_BYTES)} of them",),
    "history-format.md": (
        f"| `reserve` | {_mib(log_directory._RESERVE_BYTES)} that are freed",
        f"no more records when it has {_mib(SEGMENT_BYTES)} or",
        f"whole records of about {_kib(ENTRY_BYTES)}",
    ),
}


class TestDocumentedNumbers(SynchronousTestCase):
    def test_that_pages_have_the_numbers_of_the_code(self) -> None:
        for page, phrases in _PHRASES.items():
            prose = re.sub(r"\s+", " ", (_DOCS / page).read_text(encoding="utf-8"))
            for phrase in phrases:
                assert phrase in prose, f"docs/{page} lacks {phrase!r}"
