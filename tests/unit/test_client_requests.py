"""Requests that cannot be sent: what ``publish`` rejects, and a message that cannot be encoded."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable
from functools import partial
from typing import Any, Never, assert_type

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import (
    HistoryNeeded,
    InvalidUrl,
    Level,
    Message,
    NotExpressible,
    Notice,
    NotSent,
    OutcomeUnknown,
    Uncertain,
)
from pubsub.client.client_tls import TlsOptions
from pubsub.client.runtime import Cancel, Observer
from pubsub.client.subscription import Subscription
from tests.unit.client_runtime import MemoryRuntime, Work
from tests.unit.raising import raised
from tests.unit.streams import House

PROTOCOLS = ("cafe", "nsd", "rheos", "spot", "http")


class LevelTests(SynchronousTestCase):
    """Level"""

    def test_its_text_is_its_name(self) -> None:
        assert str(Level.STORED) == f"{Level.STORED}" == "stored"
        assert f"{Level.HANDLED:>8}" == " handled"
        assert Level.HANDLED < Level.STORED
        assert int(Level.STORED) == 2


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


class TypeTests(SynchronousTestCase):
    """The types of payloads and senders"""

    def test_bytes_and_text(self) -> None:
        runtime = MemoryRuntime(House({"nsd": {}}))
        client = runtime.client("nsd")
        given: list[Any] = [b"a", bytearray(b"b"), memoryview(b"c"), "d\xe9", array("B", b"e")]
        for payload in given:
            runtime.run(client.publish("news", payload, confirm=True))
        runtime.run(client.publish("news", b"f", sender="bob", confirm=True))
        runtime.run(client.publish_many("news", given, confirm=True))
        runtime.run(client.publish_many("news", ("g", b"h"), sender=bytearray(b"ada")))
        runtime.run(client.flush())
        reader = client.subscribe("news", start=0)
        found = [message.payload for message in runtime.run(taken(reader, 13))]
        same = [b"a", b"b", b"c", "d\xe9".encode(), b"e"]
        assert found == [*same, b"f", *same, b"g", b"h"]

    def test_other_types(self) -> None:
        runtime = MemoryRuntime(House({"cafe": {}}))
        client: Any = runtime.client("cafe")
        runtime.run(client.publish("cafe/7", b"x", confirm=True))
        others: list[Any] = [5, True, [65, 66], None, 1.5, {}]
        for payload in others:
            text = f"or str, not {type(payload).__name__}"
            for work in (
                Work(client.publish("cafe/7", payload)),
                Work(client.publish_many("cafe/7", [payload] * 3)),
                Work(client.publish_many("cafe/7", [b"x" * 50] * 1000 + [payload])),
            ):
                assert text in str(raised(TypeError, work.result))
        assert "the sender" in str(
            raised(TypeError, Work(client.publish("cafe/7", b"", sender=5)).result)
        )
        for payloads in ("ab", b"ab", 5, None):
            raised(TypeError, Work(client.publish_many("cafe/7", payloads)).result)

    def test_text_that_has_no_encoding(self) -> None:
        client = MemoryRuntime(House({})).client("nsd")
        for work in (
            Work(client.publish("news", "\ud800")),
            Work(client.publish("news", b"", sender="\ud800")),
            Work(client.publish_many("news", ["\ud800"])),
        ):
            assert "cannot be encoded in UTF-8" in str(raised(NotExpressible, work.result))


class RequestTypeTests(SynchronousTestCase):
    """The types of topics, prefixes, starts and levels: each error says what is expected"""

    def setUp(self) -> None:
        self.runtime = MemoryRuntime(House({}))

    def test_a_subscription_without_events_has_messages_alone(self) -> None:
        """mypy checks this; a program need not distinguish what cannot come."""
        client = self.runtime.client("spot")
        messages = client.subscribe("t")
        assert_type(messages, Subscription[Never])
        messages_and_notices = client.subscribe("t", events=True)
        assert_type(messages_and_notices, Subscription[Notice])
        shorter: Subscription = messages
        assert_type(shorter, Subscription[Never])

        async def take() -> None:
            assert_type(await anext(messages), Message)
            assert_type(await anext(messages_and_notices), Message | Notice)

        take().close()

    def test_a_publish_returns_a_level_if_it_is_confirmed(self) -> None:
        """mypy checks the types; a program need not look for a None that cannot come."""
        runtime = MemoryRuntime(House({"spot": {}}))
        client = runtime.client("spot")

        async def publish(confirm: bool) -> list[Level | None]:
            queued: list[Awaitable[None]] = [
                client.publish("t", b"x"),
                client.publish("t", b"x", confirm=False),
                client.publish_many("t", [b"x"]),
            ]
            for one in queued:
                await one
            levels = [
                await client.publish("t", b"x", confirm=True),
                await client.publish("t", b"x", confirm=Level.HANDLED),
            ]
            assert_type(levels, list[Level])
            either = await client.publish("t", b"x", confirm=confirm)
            assert_type(either, Level | None)
            many = await client.publish_many("t", [b"x"], confirm=True)
            assert_type(many, Level | None)
            return [*levels, either, many]

        assert runtime.run(publish(False)) == [Level.HANDLED, Level.HANDLED, None, Level.HANDLED]

    def test_topics_of_another_type(self) -> None:
        for protocol in PROTOCOLS:
            client: Any = self.runtime.client(protocol)
            for topic in (b"cafe/7", None, 7):
                text = f"the name of a topic must be str, not {type(topic).__name__}"
                for work in (
                    Work(client.publish(topic, b"")),
                    Work(client.publish_many(topic, [b""])),
                ):
                    assert text in str(raised(TypeError, work.result))
                assert text in str(raised(TypeError, client.subscribe, topic))
            error = raised(TypeError, client.subscribe, ["cafe/7", "cafe/8"])
            assert "not list; subscribe(*topics) takes several topics" in str(error)
        assert self.runtime.streams == []

    def test_starts(self) -> None:
        for protocol in PROTOCOLS:
            client: Any = self.runtime.client(protocol, api="http://b:1")
            starts: list[Any] = ["earliest", 1.5, True]
            for start in starts:
                asked = partial(client.subscribe, "cafe/7", start=start)
                assert f"an int, not {type(start).__name__}" in str(raised(TypeError, asked))
            asked = partial(client.subscribe, "cafe/7", start=-1)
            assert "an offset of 0 or more" in str(raised(NotExpressible, asked))
        assert self.runtime.streams == []

    def test_prefixes(self) -> None:
        client: Any = self.runtime.client("spot")
        given: list[tuple[Any, type[Exception], str]] = [
            ("game:", TypeError, "a list of str, not str"),
            (None, TypeError, "a list of str, not NoneType"),
            ([b"game:"], TypeError, "a prefix must be str, not bytes"),
            (["\ud800"], NotExpressible, "the prefix '\\ud800' cannot be encoded in UTF-8"),
        ]
        for prefixes, kind, text in given:
            assert text in str(raised(kind, partial(client.subscribe, prefixes=prefixes)))

    def test_levels(self) -> None:
        client: Any = self.runtime.client("nsd")
        for confirm in ("yes", 7, 1.5):
            work = Work(client.publish("news", b"", confirm=confirm))
            assert "True, False or a Level" in str(raised(TypeError, work.result))

    def test_an_api_that_is_no_url_is_named(self) -> None:
        """That of the client is another one, and right."""
        client = self.runtime.client("rheos", api="127.0.0.1:7080")
        error = raised(InvalidUrl, partial(client.subscribe, "news", start=0))
        assert str(error).startswith("api= or PUBSUB_API: the URL has no protocol")
        client = self.runtime.client("spot", api="127.0.0.1:7080")
        work = self.runtime.begin(client.publish("news", b"x", confirm=True))
        assert str(raised(InvalidUrl, work.result)).startswith("api= or PUBSUB_API: ")

    def test_an_api_without_a_history(self) -> None:
        client = self.runtime.client("rheos", api="cafe://b:1")
        error = raised(HistoryNeeded, partial(client.subscribe, "cafe/7", start=0))
        assert "cafe has no history; api= is a URL of the HTTP API" in str(error)


async def taken(reader: Subscription[Any], count: int) -> list[Any]:
    return [await anext(reader) for _ in range(count)]


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


class SilentRuntime(MemoryRuntime):
    """Attempts to connect have no outcome"""

    def connect(self, host: str, port: int, tls: TlsOptions | None, observer: Observer) -> Cancel:
        return lambda: None


class SilenceTests(SynchronousTestCase):
    """A timeout that is over before the attempt to connect"""

    def test_the_error_names_the_connection(self) -> None:
        runtime = SilentRuntime(House({"cafe": {}}))
        client = runtime.client("cafe", timeout=5)
        work = runtime.begin(client.publish("cafe/7", b"x", confirm=True))
        runtime.advance(6)
        text = "not sent in time: the broker has not answered the attempt to connect"
        assert text in str(raised(NotSent, work.result))
        runtime.run(client.close(flush=False))
