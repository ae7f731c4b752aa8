"""A sink for several brokers: what it does when some of them are away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.histories import retry
from pubsub.pipeline.histories.history import HistoryRefused, PartsLost, Unreachable
from pubsub.pipeline.histories.http_history import ErrorReply
from pubsub.pipeline.options.connector_options import Credentials, sink_options
from pubsub.pipeline.publishing import shared_sink
from pubsub.pipeline.publishing.shared_sink import SharedBatch, SharedPartStager, at_any
from pubsub.pipeline.publishing.staged_writer import RUN_AGAIN
from pubsub.pipeline.sink import make_sink
from tests.unit.raising import raised
from tests.unit.sink_batches import struct

A, B = "http://a", "http://b"
GONE = Unreachable("gone")
LOST = ErrorReply("lost", "unknown-part", {})
BEGUN = ErrorReply("begun elsewhere", "batch-elsewhere", {})
Answers = Sequence[PubSubError | None]


class SinkCase(SynchronousTestCase):
    """Brokers that answer each request with the next of their answers, the last one again."""

    def setUp(self) -> None:
        self.answers: dict[str, list[PubSubError | None]] = {A: [None], B: [None]}
        self.requests: list[tuple[str, str, object]] = []
        self.now = 0.0
        case = self

        class Api:
            def __init__(self, url: str, *_: object) -> None:
                self.url = url

            @contextmanager
            def client(self) -> Iterator[Api]:
                answers = case.answers[self.url]
                found = answers.pop(0) if len(answers) > 1 else answers[0]
                if found is not None:
                    raise found
                yield self

            def commit(self, query: str, batch: int, parts: list[str], *, shared: bool) -> None:
                assert (query, batch, shared) == ("q", 3, True)
                case.requests.append(("commit", self.url, tuple(parts)))

            def stage(self, query: str, batch: int, data: pa.Table, run: str) -> str:
                case.requests.append(("stage", self.url, data.num_rows))
                return f"{self.url}-{len(case.requests)}"

            def abort(self, query: str, batch: int) -> None:
                case.requests.append(("abort", self.url, batch))

        self.patch(shared_sink, "HttpApi", Api)  # type: ignore[no-untyped-call]
        self.patch(retry.Retry.__init__, "__defaults__", (60.0, lambda: self.now, self.sleep))  # type: ignore[no-untyped-call]
        self.batch = SharedBatch((A, B), Credentials(), "q", 3, "run")

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def answer(self, first: Answers, second: Answers) -> None:
        self.answers = {A: [*first], B: [*second]}

    def commit(self, *homes: str) -> None:
        self.batch.commit(["1", "2"], homes or (A,))


class CommitTests(SinkCase):
    def test_at_the_broker_that_has_the_parts(self) -> None:
        self.commit(B)
        assert self.requests == [("commit", B, ("1", "2"))]

    def test_another_broker_knows_that_it_is_published(self) -> None:
        self.answer([GONE], [None])
        self.commit()
        assert self.requests == [("commit", B, ("1", "2"))]
        assert self.now == 0

    def test_the_broker_with_the_parts_comes_back(self) -> None:
        self.answer([GONE, GONE, None], [LOST])
        self.commit()
        assert self.requests == [("commit", A, ("1", "2"))]

    def test_it_stays_away(self) -> None:
        self.answer([GONE], [LOST])
        assert RUN_AGAIN in str(raised(PartsLost, self.commit))
        assert 5 < self.now <= 10

    def test_it_was_restarted(self) -> None:
        self.answer([LOST], [LOST])
        raised(PartsLost, self.commit)
        self.answer([LOST], [GONE])
        raised(PartsLost, self.commit)
        assert self.now == 0

    def test_parts_at_two_brokers(self) -> None:
        self.answer([LOST], [LOST])
        raised(PartsLost, self.commit, A, B)
        self.answer([GONE], [LOST])
        raised(PartsLost, self.commit, A, B)
        assert self.now == 0
        self.answer([LOST], [None])
        self.commit(A, B)

    def test_it_may_have_been_published(self) -> None:
        """The broker that began to publish it is waited for, longer than one with parts."""
        self.answer([GONE, GONE, GONE, None], [BEGUN])
        self.commit()
        self.answer([LOST], [BEGUN])
        assert "begun elsewhere" in str(raised(Unreachable, self.commit))
        assert self.now > 30

    def test_no_broker_answers(self) -> None:
        self.answer([GONE], [GONE])
        raised(Unreachable, self.commit)
        assert self.now > 30

    def test_a_refusal(self) -> None:
        self.answer([ErrorReply("no", "not-authorized", {})], [None])
        raised(HistoryRefused, self.commit)
        assert self.requests == []

    def test_abort(self) -> None:
        self.answer([GONE], [GONE])
        # Of parts that are left, the brokers get rid by themselves.
        self.batch.abort()


class StagingTests(SinkCase):
    def stager(self) -> SharedPartStager:
        return SharedPartStager(self.batch, part_bytes=1)

    def rows(self, count: int) -> pa.RecordBatch:
        topics = pa.array(["t"] * count)
        return pa.RecordBatch.from_pydict({"topic": topics, "value": [b"x"] * count})

    def test_all_parts_are_at_the_first_broker_that_answers(self) -> None:
        self.answer([GONE, None], [None])
        stager = self.stager()
        stager.add(self.rows(3))
        assert len(stager.finish()) == 3
        assert stager.url == B
        assert {url for _, url, _ in self.requests} == {B}

    def test_no_broker_answers_yet(self) -> None:
        self.answer([GONE, GONE, None], [GONE])
        stager = self.stager()
        stager.add(self.rows(1))
        assert stager.url == A
        assert self.now > 0

    def test_the_broker_goes_away(self) -> None:
        self.answer([None, GONE], [None])
        stager = self.stager()
        assert RUN_AGAIN in str(raised(PartsLost, stager.add, self.rows(2)))

    def test_a_task_without_rows(self) -> None:
        stager = self.stager()
        stager.add(self.rows(0))
        assert stager.finish() == ()
        assert stager.url == ""

    def test_nobody_answers(self) -> None:
        def call(url: str) -> None:
            raise Unreachable(url)

        assert str(raised(Unreachable, at_any, (A, B), call)) == B


class OptionTests(SynchronousTestCase):
    """Several URLs of the sink"""

    def made(self, shared: str, **given: str) -> Any:
        self.patch(shared_sink, "history_of", lambda *_: shared)  # type: ignore[no-untyped-call]
        options = {"url": f"{A}, {B}/", **given}
        return make_sink(options, struct("topic string, value binary"), False)

    def test_brokers_that_share_a_history(self) -> None:
        assert self.made("s").options.urls == (A, B)

    def test_mistakes(self) -> None:
        for shared, text, given in (
            ("", "share a history", {}),
            ("s", "atomic=false", {"atomic": "false"}),
            ("s", "twice", {"url": f"{A},{A}"}),
            ("s", "different protocols", {"url": f"{A},cafe://b:1"}),
            ("s", "scheme://host:port", {"url": f"{A},"}),
        ):
            assert text in str(raised(ConfigurationError, self.made, shared, **given))

    def test_one_url(self) -> None:
        assert sink_options({"url": "cafe://a:1"}, ()).urls == ("cafe://a:1",)
