"""Marks of connections: in log lines and in events, and never the session id of a wire."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from twisted.logger import ILogObserver, LogEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import provider

from pubsub.broker.clients.connection_marks import (
    describe,
    log_fields,
    make_marks,
    mark_of,
    mark_text,
)
from pubsub.broker.figures.events import TOPIC
from tests.unit.cafe_udp import ALICE, Udp
from tests.unit.cafe_wire import frames, hs_pub
from tests.unit.connections import Setup


def log_events(case: SynchronousTestCase) -> list[LogEvent]:
    """Return the list of log events until the end of the test."""
    events: list[LogEvent] = []

    @provider(ILogObserver)
    def observe(event: LogEvent) -> None:
        events.append(event)

    globalLogPublisher.addObserver(observe)
    case.addCleanup(globalLogPublisher.removeObserver, observe)
    return events


class MarkTests(SynchronousTestCase):
    """Marks"""

    def test_a_mark_is_the_time_at_which_the_connection_began(self) -> None:
        times = iter([1000, 5000, 4000, 5000, 6000])
        marks = make_marks(lambda: next(times))
        assert [next(marks) for _ in range(5)] == [1000, 5000, 5001, 5002, 6000]

    def test_it_is_written_in_sixteen_digits(self) -> None:
        assert mark_text(1000) == "00000000000003e8"
        assert mark_of(mark_text(1000)) == 1000

    def test_other_text_is_no_mark(self) -> None:
        for text in ("", "3e8", "00000000000003E8", "0x000000000003e8", "0" * 17, "_" * 16):
            assert mark_of(text) is None, text

    def test_the_identity_is_shown_if_it_is_known(self) -> None:
        anonymous = describe(1, "cafe", "192.0.2.1:5", None)
        assert anonymous == {"mark": f"{1:016x}", "protocol": "cafe", "peer": "192.0.2.1:5"}
        assert describe(1, "cafe", "unix", SimpleNamespace(name="eve"))["identity"] == "eve"
        assert "identity" not in describe(1, "cafe", "unix", SimpleNamespace(name=""))

    def test_other_objects_have_no_fields(self) -> None:
        assert log_fields(None) == log_fields("bob") == {}


class ConnectionTests(SynchronousTestCase):
    """Connections"""

    def test_lines_of_a_connection_have_its_mark(self) -> None:
        setup, events = Setup(), log_events(self)
        _, first = setup.connect()
        _, second = setup.connect()
        second.refuse("rate-limited")
        second.abort("slow")
        expected = {"mark": mark_text(second.mark), "protocol": "toy", "peer": "192.0.2.7:4711"}
        assert [event["connection"] for event in events] == [expected] * 2
        assert first.mark != second.mark

    def test_a_connection_that_is_not_admitted_has_one(self) -> None:
        setup, events = Setup(max_connections=1), log_events(self)
        setup.connect()
        setup.connect()
        assert events[0]["connection"]["mark"].endswith("4001")

    def test_drops_name_the_connection(self) -> None:
        setup, events = Setup(), log_events(self)
        _, connection = setup.connect()
        setup.broker.counters.drop("bob", "t", "expired", 1, connection)
        setup.broker.counters.drop("eve", "t", "expired", 1)
        assert [event["connection"] for event in events] == [connection.log_fields(), {}]

    def test_events_have_the_mark_and_not_the_session_id(self) -> None:
        events = log_events(self)
        udp = Udp(top={"events": True})
        udp.start()
        (answer,) = udp.send(ALICE, hs_pub(1, b"alice"))
        ((_, payload),) = frames(answer)
        udp.send(ALICE, b"no frame")
        udp.clock.advance(0)
        page = self.successResultOf(udp.store.read(0, frozenset({TOPIC}), 2**20))
        payloads = [data for batch in page.batches for data in batch.payloads()]
        found: list[dict[str, Any]] = [json.loads(data) for data in payloads]
        (mark,) = {event["session"] for event in found}
        assert events[-1]["connection"]["mark"] == mark
        assert payload[1:9].hex() not in str(events)
