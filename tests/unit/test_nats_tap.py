"""``Splitter`` and ``Tap``: the messages of topics do not pass through nats-py."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.nats_tap import Splitter, Tap

INFO = b'INFO {"server_id":"x","max_payload":1048576}\r\n'
TOPIC = "pubsub.v1.t.a.b=2Ec"


def message(subject: str, payload: bytes, reply: str = "") -> bytes:
    words = [subject, "7", *([reply] if reply else []), str(len(payload))]
    return b"MSG %s\r\n%s\r\n" % (" ".join(words).encode(), payload)


def with_headers(subject: str, payload: bytes) -> bytes:
    head = b"NATS/1.0\r\na: b\r\n\r\n"
    sizes = b"%d %d" % (len(head), len(head) + len(payload))
    return b"HMSG %s 7 %s\r\n%s%s\r\n" % (subject.encode(), sizes, head, payload)


def take(*pieces: bytes) -> tuple[list[tuple[str, bytes]], bytes]:
    """Return what is taken out of the pieces, and the rest."""
    found: list[tuple[str, bytes]] = []
    splitter = Splitter(lambda subject, data: found.append((subject, data)))
    rest = b"".join([splitter.take(bytearray(piece + b"???"), len(piece)) for piece in pieces])
    return found, rest


OTHERS = st.one_of(
    st.sampled_from([INFO, b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'x'\r\n"]),
    st.builds(message, st.just("_INBOX.x.1"), st.binary(max_size=40)),
    # What looks like a message of a topic within another one.
    st.builds(message, st.just("$JS.x"), st.just(message(TOPIC, b"inner"))),
    st.builds(with_headers, st.just(TOPIC), st.binary(max_size=40)),
)
# Lines for nats-py, and payloads of messages of the topic.
STREAMS = st.lists(
    st.tuples(st.just(True), OTHERS) | st.tuples(st.just(False), st.binary(max_size=60)), max_size=8
)


class SplitterTests(SynchronousTestCase):
    """What a server sends"""

    def test_a_message_of_a_topic(self) -> None:
        payload = b"x\r\nMSG pubsub.v1.t.q 1 3\r\n"
        found, rest = take(INFO + message(TOPIC, payload) + message(TOPIC, b"") + b"PING\r\n")
        assert found == [(TOPIC, payload), (TOPIC, b"")]
        assert rest == INFO + b"PING\r\n"

    def test_a_reply_subject_is_left_out(self) -> None:
        assert take(message(TOPIC, b"x", "_INBOX.1")) == ([(TOPIC, b"x")], b"")

    def test_other_subjects_pass(self) -> None:
        for subject in ("_INBOX.1", "pubsub.v1.tt.a", "pubsub.v2.t.a"):
            data = message(subject, b"x")
            assert take(data) == ([], data)

    def test_lines_that_are_malformed_pass(self) -> None:
        for line in (b"MSG\r\n", b"MSG pubsub.v1.t.a 1 x\r\n", b"MSG pubsub.v1.t.a 1 -1\r\n"):
            assert take(line, message(TOPIC, b"x")) == ([(TOPIC, b"x")], line)

    @given(STREAMS, st.data())
    def test_any_pieces(self, parts: list[tuple[bool, bytes]], data: Any) -> None:
        stream = b"".join([one if passes else message(TOPIC, one) for passes, one in parts])
        others = b"".join([one for passes, one in parts if passes])
        expected = [(TOPIC, one) for passes, one in parts if not passes]
        cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
        ends = [0, *cuts, len(stream)]
        pieces = [stream[a:b] for a, b in itertools.pairwise(ends)]
        assert take(*pieces) == (expected, others)

    @given(st.lists(st.binary(max_size=80), max_size=4))
    def test_garbage(self, pieces: list[bytes]) -> None:
        take(*pieces)


class _Inner:
    """Stands for the protocol of nats-py, and for the transport."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.events.append((name, *arguments))


class TapTests(SynchronousTestCase):
    """Between nats-py and its transport"""

    def test_what_is_read_and_written(self) -> None:
        inner, transport, found = _Inner(), _Inner(), []
        tap = Tap(inner, lambda *one: found.append(one))
        tap.connection_made(transport)  # type: ignore[arg-type]
        data = b"PING\r\n" + message(TOPIC, b"x")
        buffer = tap.get_buffer(-1)
        buffer[:3] = data[:3]
        # As TLS does for its next record.
        buffer[3:][: len(data) - 3] = data[3:]
        tap.buffer_updated(len(data))
        tap.buffer_updated(0)
        tap.publish([("a", [b"12", b"345"]), ("b", [b""])])
        tap.pause_writing()
        tap.resume_writing()
        tap.eof_received()
        tap.connection_lost(None)
        assert found == [(TOPIC, b"x")]
        ((name, written),) = transport.events
        assert (name, b"".join(written)) == ("writelines", b"PUB a 5\r\n12345\r\nPUB b 0\r\n\r\n")
        assert inner.events == [
            ("connection_made", transport),
            ("data_received", b"PING\r\n"),
            ("pause_writing",),
            ("resume_writing",),
            ("eof_received",),
            ("connection_lost", None),
        ]
