"""Lines of the log: text, JSON, priorities; the fields that they show, and secrets."""

from __future__ import annotations

import json
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import ILogObserver, LogEvent, Logger, LogLevel
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.visible_text import visible
from pubsub.server.log_lines import (
    LEGACY,
    json_line,
    level_of,
    priority_of,
    timed_text,
    untimed_text,
    with_priorities,
)

CONNECTION = {"mark": "00aa", "protocol": "cafe", "peer": "192.0.2.1:5", "identity": "eve"}


def event(text: str | None = "took {count}", **fields: Any) -> LogEvent:
    """Return an event as a logger makes it, at one second after the epoch."""
    events: list[LogEvent] = []
    fields.setdefault("count", 3)
    level = fields.pop("level", LogLevel.warn)
    log = Logger(
        namespace="pubsub.store.opening.recovery", observer=cast(ILogObserver, events.append)
    )
    log.emit(level, text, **fields)
    return {**events[0], "log_time": 1.0}


class TextTests(SynchronousTestCase):
    """Text"""

    def test_a_line_has_time_level_namespace_message_and_connection(self) -> None:
        line = timed_text(event(connection=CONNECTION))
        stamp, clock, rest = line.split(" ", 2)
        assert (len(stamp), clock[8:12]) == (10, ".000")
        assert rest == "warn store.opening.recovery: took 3 [00aa cafe 192.0.2.1:5 eve]\n"

    def test_without_a_connection_there_are_no_brackets(self) -> None:
        assert untimed_text(event()) == "store.opening.recovery: took 3\n"
        assert untimed_text(event(connection={})) == "store.opening.recovery: took 3\n"

    def test_other_packages_are_named_without_modules(self) -> None:
        assert untimed_text({**event(), "log_namespace": "twisted.web.http"}).startswith("twisted:")
        assert untimed_text({**event(), "log_namespace": LEGACY}).startswith("twisted:")

    def test_a_message_of_several_lines_cannot_look_like_several_messages(self) -> None:
        line = untimed_text(event("from {name}", name="eve\nstore: \x1b[2Jok\r\nx\ttab"))
        assert line == "store.opening.recovery: from eve\n\tstore: \\u001b[2Jok\n\tx tab\n".replace(
            "x tab", "x   tab"
        )

    def test_a_failure_has_its_traceback(self) -> None:
        try:
            raise OSError("disk")
        except OSError:
            failed = event("it failed", log_failure=Failure(), level=LogLevel.critical)
        first, *rest = untimed_text(failed).splitlines()
        assert first == "store.opening.recovery: it failed"
        assert rest[0].startswith("\tTraceback")
        assert "OSError: disk" in rest[-1]

    def test_an_event_without_text_has_no_line(self) -> None:
        for empty in (event(None), event("")):
            assert timed_text(empty) == untimed_text(empty) == json_line(empty) == ""

    def test_an_event_that_cannot_be_formatted_is_reported(self) -> None:
        assert "Unable to format" in untimed_text(event("{missing}"))
        assert "Unable to format" in json.loads(json_line(event("{missing}")))["message"]


class JsonTests(SynchronousTestCase):
    """JSON"""

    def test_a_line_has_the_fields_of_the_message_and_of_the_connection(self) -> None:
        line = json_line(event(connection=CONNECTION))
        assert line.endswith("}\n")
        assert json.loads(line) == {
            "time": "1970-01-01T00:00:01.000Z",
            "level": "warn",
            "namespace": "pubsub.store.opening.recovery",
            "message": "took 3",
            "count": 3,
            **CONNECTION,
        }

    def test_fields_outside_the_message_are_left_out(self) -> None:
        line = json_line(event("took {count}", token="s3cret", payload=b"s3cret"))
        assert "s3cret" not in line

    def test_objects_are_text_and_fields_of_the_line_stay(self) -> None:
        made = json.loads(json_line(event("{time} {reason} {a.b}", time=1, reason=OSError("x"))))
        assert made["reason"] == "x"
        assert made["time"] == "1970-01-01T00:00:01.000Z"
        assert "a.b" not in made

    def test_a_failure_has_its_traceback(self) -> None:
        try:
            raise OSError("disk")
        except OSError:
            made = json.loads(json_line(event("it failed", log_failure=Failure())))
        assert made["message"] == "it failed"
        assert made["traceback"].rstrip().endswith("OSError: disk")

    @given(st.text())
    def test_any_client_name_makes_one_line(self, name: str) -> None:
        line = json_line(event("from {name}", name=name))
        assert line.rstrip("\n").isprintable()
        assert json.loads(line)["name"] == name
        text = untimed_text(event("from {name}", name=name))
        assert all(one.removeprefix("\t").isprintable() for one in text.splitlines())
        assert all(one.startswith("\t") for one in text.splitlines()[1:])


class PriorityTests(SynchronousTestCase):
    """Priorities"""

    def test_each_level_has_its_priority(self) -> None:
        levels = list(LogLevel.iterconstants())
        assert [priority_of(event(level=level)) for level in levels] == [7, 6, 4, 3, 2]
        assert [level_of(event(level=level)) for level in levels] == [
            "debug", "info", "warn", "error", "critical",
        ]  # fmt: skip
        assert (priority_of({}), level_of({})) == (6, "info")

    def test_each_line_begins_with_it(self) -> None:
        render = with_priorities(untimed_text)
        assert render(event("a\nb")) == "<4>store.opening.recovery: a\n<4>\tb\n"
        assert render(event("")) == ""


class VisibleTests(SynchronousTestCase):
    """visible"""

    @given(st.text())
    def test_json_keeps_its_value(self, text: str) -> None:
        shown = visible(json.dumps(text, ensure_ascii=False))
        assert shown.isprintable()
        assert json.loads(shown) == text
