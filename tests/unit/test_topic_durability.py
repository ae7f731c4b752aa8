"""The durability of topics over the HTTP API, with replies that are made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.client.client_tls import TlsOptions
from pubsub.client.client_url import parse_urls
from pubsub.client.runtime import Cancel, Observer, Runtime, Transport, Waiter
from pubsub.client.tickets import Ticket
from pubsub.client.topic_durability import TopicDurability

SECONDS = 5.0


class Stream:
    """A transport that records its output."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True

    def set_reading(self, reading: bool) -> None: ...


class MadeUpRuntime(Runtime):
    """Attempts to connect wait for the test."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.attempts: list[Observer] = []
        self.cancelled = 0

    def now(self) -> float:
        return self.clock.seconds()

    def call_later(self, seconds: float, function: Callable[[], None]) -> Cancel:
        call = self.clock.callLater(seconds, function)

        def cancel() -> None:
            if call.active():
                call.cancel()

        return cancel

    def call_from_any_thread(self, function: Callable[[], None]) -> None:
        raise NotImplementedError

    def waiter(self) -> Waiter:
        raise NotImplementedError

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        raise NotImplementedError

    def connect(self, host: str, port: int, tls: TlsOptions | None, observer: Observer) -> Cancel:
        self.attempts.append(observer)
        return self._cancel

    def _cancel(self) -> None:
        self.cancelled += 1


def reply(status: str, body: object) -> bytes:
    """Return a response of the API."""
    text = json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(text), text)


class TopicDurabilityTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.runtime = MadeUpRuntime()
        self.token: str | None = None
        self.durability = TopicDurability(
            self.runtime, parse_urls("http://[::1]:7080"), TlsOptions(), lambda: self.token, SECONDS
        )

    def of_several(self) -> TopicDurability:
        targets = parse_urls("http://a,http://b,http://c")
        return TopicDurability(self.runtime, targets, TlsOptions(), lambda: None, SECONDS)

    def answer(self, *parts: bytes) -> Stream:
        """Answer the question that waits."""
        stream = Stream()
        transport: Transport = stream
        observer = self.runtime.attempts.pop()
        observer.made(transport)
        for part in parts:
            observer.received(part)
        observer.lost("the broker closed the connection")
        return stream

    def outcome(self, ticket: Ticket[str | None]) -> str | None:
        assert ticket.done
        return ticket.result

    def test_it_is_asked_for_once_a_topic(self) -> None:
        self.token = "t1"
        both = self.durability.of("a/é"), self.durability.of("a/é")
        whole = reply("200 OK", {"name": "a/é", "durability": "sync"})
        stream = self.answer(whole[:30], whole[30:])
        assert stream.written == (
            b"GET /v1/topics/a%2F%C3%A9 HTTP/1.1\r\nHost: [::1]:7080\r\nConnection: close\r\n"
            b"Authorization: Bearer t1\r\n\r\n"
        )
        assert [self.outcome(one) for one in both] == ["sync", "sync"]
        assert self.outcome(self.durability.of("a/é")) == "sync"
        assert not self.runtime.attempts
        assert not self.runtime.clock.getDelayedCalls()

    def test_another_broker_is_asked_if_one_does_not_answer(self) -> None:
        self.durability = self.of_several()
        asked = self.durability.of("a")
        for _ in range(2):
            self.runtime.attempts.pop().lost("connection refused")
        stream = self.answer(reply("200 OK", {"durability": "sync"}))
        assert b"Host: c:7080" in stream.written
        assert self.outcome(asked) == "sync"
        # It is the first from now on.
        self.durability.of("b")
        stream = self.answer(reply("404 Not Found", {"error": "unknown-topic"}))
        assert b"Host: c:7080" in stream.written
        assert not self.runtime.attempts

    def test_no_broker_answers(self) -> None:
        self.durability = self.of_several()
        asked = self.durability.of("a")
        for _ in range(3):
            assert not asked.done
            self.runtime.attempts.pop().lost("connection refused")
        assert self.outcome(asked) is None

    def test_no_other_broker_is_asked_after_the_end(self) -> None:
        self.durability = self.of_several()
        asked = self.durability.of("a")
        self.durability.close()
        assert self.outcome(asked) is None
        assert len(self.runtime.attempts) == 1

    def test_a_caller_that_gives_up_leaves_the_others(self) -> None:
        first, second = self.durability.of("a"), self.durability.of("a")
        first.fail(RuntimeError("cancelled"))
        self.answer(reply("200 OK", {"durability": "none"}))
        assert self.outcome(second) == "none"

    def test_a_token_that_is_no_token_is_not_sent(self) -> None:
        self.token = "t\r\nHost: another"
        self.durability.of("a")
        assert b"Authorization" not in self.answer().written

    def test_an_unknown_durability_is_requested_again(self) -> None:
        replies = [
            (b"", 60.0),
            (b"SSH-2.0-x\r\n", 60.0),
            (reply("200 OK", ["durability"]), 60.0),
            (reply("200 OK", {"durability": 1}), 60.0),
            (reply("200 OK", {"durability": "sync"})[:-5], 60.0),
            (reply("401 Unauthorized", {"error": "bad-token"}), 60.0),
            (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(100_000), 60.0),
            (reply("404 Not Found", {"error": "not-found"}), 1.0),
        ]
        for number, (raw, pause) in enumerate(replies):
            topic = f"t{number}"
            asked = self.durability.of(topic)
            self.answer(raw)
            assert self.outcome(asked) is None
            self.runtime.clock.advance(pause - 0.1)
            assert self.outcome(self.durability.of(topic)) is None
            assert not self.runtime.attempts
            self.runtime.clock.advance(0.2)
            asked = self.durability.of(topic)
            self.answer(reply("200 OK", {"durability": "async"}))
            assert self.outcome(asked) == "async"

    def test_a_question_has_a_time_limit(self) -> None:
        connecting = self.durability.of("a")
        self.runtime.clock.advance(SECONDS)
        assert self.outcome(connecting) is None
        assert self.runtime.cancelled == 1
        late = Stream()
        self.runtime.attempts.pop().made(late)
        assert (late.aborted, late.written) == (True, b"")
        silent = self.durability.of("b")
        stream = Stream()
        self.runtime.attempts[-1].made(stream)
        self.runtime.clock.advance(SECONDS)
        assert self.outcome(silent) is None
        assert stream.aborted

    def test_the_end_of_the_client_gives_questions_up(self) -> None:
        asked = [self.durability.of("a"), self.durability.of("b")]
        self.durability.close()
        assert [self.outcome(one) for one in asked] == [None, None]
        assert not self.runtime.clock.getDelayedCalls()

    def test_the_number_of_kept_answers_is_bounded(self) -> None:
        for number in range(1025):
            self.durability.of(f"t{number}")
            self.answer(reply("200 OK", {"durability": "none"}))
        assert self.outcome(self.durability.of("t1024")) == "none"
        assert not self.durability.of("t0").done
