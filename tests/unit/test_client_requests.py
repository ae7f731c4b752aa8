"""Requests that cannot be sent: what ``publish`` rejects, and a message that cannot be encoded."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import Level, NotExpressible, Notice, OutcomeUnknown, Uncertain
from tests.unit.client_runtime import MemoryRuntime, Work
from tests.unit.raising import raised
from tests.unit.streams import House

PROTOCOLS = ("cafe", "nsd", "rheos", "spot", "http")


class HeaderTests(SynchronousTestCase):
    """Headers"""

    def rejected(self, error: type[Exception], headers: Any, text: str) -> None:
        """``publish`` raises ``error`` over every protocol, and connects to none."""
        runtime = MemoryRuntime(House({}))
        for protocol in PROTOCOLS:
            client: Any = runtime.client(protocol)
            for confirm in (False, True):
                work = Work(client.publish("cafe/7", b"", confirm=confirm, headers=headers))
                assert text in str(raised(error, work.result))
            work = Work(client.publish_many("cafe/7", [b""], headers=headers))
            assert text in str(raised(error, work.result))
        assert runtime.streams == []

    def test_their_types(self) -> None:
        self.rejected(TypeError, {"a": "b"}, "the value of the header 'a' must be bytes, not str")
        self.rejected(TypeError, {"a": None}, "not NoneType")
        self.rejected(TypeError, {b"a": b"b"}, "the name of a header must be str, not bytes")
        self.rejected(TypeError, [("a", b"b")], "a mapping of str to bytes, not list")
        self.rejected(TypeError, [], "not list")

    def test_a_name_that_is_not_text(self) -> None:
        self.rejected(NotExpressible, {"\ud800": b"x"}, "'\\ud800' cannot be encoded in UTF-8")


class DefectTests(SynchronousTestCase):
    """A message that the wire cannot encode, although the checks passed"""

    def setUp(self) -> None:
        self.runtime = MemoryRuntime(House({"spot": {}}))
        self.notices: list[Notice] = []
        self.client = self.runtime.client("spot", on_event=self.notices.append)
        self.runtime.run(self.client.publish("news", b"0", confirm=True))
        publishing = self.client._links.publishing
        assert publishing is not None

        def fail(*_: object) -> None:
            raise RuntimeError("defect")

        self.patch(publishing.link.connection, "publish", fail)  # type: ignore[no-untyped-call]

    def test_it_fails_and_the_next_one_is_published(self) -> None:
        with self.assertLogs("pubsub.client", "ERROR"):
            work = self.runtime.begin(self.client.publish("news", b"1", confirm=True))
        assert "could not be encoded" in str(raised(OutcomeUnknown, work.result))
        after = self.runtime.begin(self.client.publish("news", b"2", confirm=True))
        self.runtime.advance(1)
        assert after.result() is Level.HANDLED
        assert self.notices == []

    def test_one_that_no_call_waits_for_is_reported(self) -> None:
        with self.assertLogs("pubsub.client", "ERROR"):
            self.runtime.run(self.client.publish("news", b"1"))
            self.runtime.settle()
        assert self.notices == [Uncertain(1, "a message could not be encoded")]
        self.runtime.advance(1)
        self.runtime.run(self.client.close())
