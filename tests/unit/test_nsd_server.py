"""nsd's server: long replies in pages, pipelining, closing, other protocols."""

from __future__ import annotations

import base64
import json
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Page
from pubsub.store.memory_store import MemoryStore
from tests.unit import cafe_wire
from tests.unit import nsd_lines as wire
from tests.unit.nsd_lines import NOTHING, SUCCESS, Nsd

MIB = 1024 * 1024


class LongListTests(SynchronousTestCase):
    """The reply to a Get is streamed as the client reads (nsd §3.5)"""

    def setUp(self) -> None:
        self.nsd = Nsd(max_body=100_000)
        self.texts = self.nsd.write_history(60, 50_000)

    def test_it_is_one_line_in_pages(self) -> None:
        client = self.nsd.connect("nsd")
        client.stream.feed(wire.get("ada"))
        assert 0 < len(client.stream.received) < MIB
        self.nsd.turn()
        assert wire.bodies(client.take()) == self.texts
        assert len(client.stream.writes) > 5

    def test_a_list_in_base64(self) -> None:
        client = self.nsd.connect("nsd")
        client.send(base64.b64encode(wire.get("ada", 2).strip()) + b"\n")
        self.nsd.pump()
        line = client.take()
        assert line.endswith(b"\n")
        assert wire.bodies(base64.b64decode(line[:-1], validate=True) + b"\n") == self.texts[2:]

    def test_it_waits_while_the_transport_is_full(self) -> None:
        client = wire.slow_client(self.nsd)
        client.send(wire.get("ada"))
        self.nsd.pump()
        assert 65_536 < len(client.stream.buffered) < MIB
        seen = len(client.stream.buffered)
        self.nsd.pump()
        assert len(client.stream.buffered) == seen
        assert client.stream.paused
        for _ in range(30):
            client.stream.read(on=False)
            self.nsd.pump(3)
            assert len(client.stream.buffered) < MIB
        assert wire.bodies(client.take()) == self.texts
        assert not client.stream.paused

    def test_a_client_that_has_closed_its_half_gets_all_of_it(self) -> None:
        """And the replies to the requests behind it, even if the history answers later."""
        read, waiting = self.nsd.store.read, list[tuple[Deferred[Page], Deferred[Page]]]()

        def read_later(*arguments: Any, **named: Any) -> Deferred[Page]:
            waiting.append((read(*arguments, **named), Deferred()))
            return waiting[-1][1]

        self.patch(self.nsd.store, "read", read_later)  # type: ignore[no-untyped-call]
        client = self.nsd.connect("nsd")
        client.send(wire.get("ada") + wire.get("ada", 59) + wire.open_("ben"))
        client.protocol.readConnectionLost()
        self.nsd.turn()
        assert (client.take(), client.closed) == (b"", False)
        while waiting:
            page, later = waiting.pop()
            page.chainDeferred(later)
            self.nsd.turn()
        first, second, third = client.take().splitlines(keepends=True)
        assert wire.bodies(first) == self.texts
        assert wire.bodies(second) == [self.texts[59]]
        assert third == SUCCESS
        self.nsd.turn()
        assert client.stream.lost

    def test_a_half_that_is_found_closed_when_the_broker_reads_again(self) -> None:
        """As over a UNIX socket: requests that came before have not been handled yet."""
        client = wire.slow_client(self.nsd)
        client.send(wire.get("ada") + wire.open_("ben"))
        resume = client.stream.resumeProducing

        def resume_and_end() -> None:
            resume()
            client.protocol.readConnectionLost()

        self.patch(client.stream, "resumeProducing", resume_and_end)  # type: ignore[no-untyped-call]
        for _ in range(20):
            client.stream.read(on=False)
            self.nsd.pump(3)
        first, second = client.take().splitlines(keepends=True)
        assert wire.bodies(first) == self.texts
        assert second == SUCCESS
        assert client.closed

    def test_a_client_that_has_closed_its_half_and_does_not_read_is_aborted(self) -> None:
        client = wire.slow_client(self.nsd)
        client.send(wire.get("ada") * 3)
        client.protocol.readConnectionLost()
        self.nsd.advance(28)
        assert not client.stream.aborted
        # It takes some of it: then it has its time once more.
        client.stream.read(on=False)
        self.nsd.advance(28)
        assert not client.stream.aborted
        self.nsd.advance(4)
        assert client.stream.aborted

    def test_requests_after_it_are_answered_in_order(self) -> None:
        client = wire.slow_client(self.nsd)
        behind = wire.publish("ada", "news") + b"x\n" + wire.get("ada", 59) + wire.open_("ben")
        client.send(wire.get("ada") + behind[:-9])
        client.send(behind[-9:])
        self.nsd.pump()
        client.stream.read()
        self.nsd.pump()
        first, *others = client.take().splitlines(keepends=True)
        assert wire.bodies(first) == self.texts
        assert others[:2] == [SUCCESS, wire.error("INVALID REQUEST: [x]")]
        assert wire.bodies(others[2]) == [self.texts[59], "news"]
        assert others[3:] == [SUCCESS]

    def test_messages_published_meanwhile_are_for_the_next_get(self) -> None:
        client = wire.slow_client(self.nsd)
        client.send(wire.get("ada"))
        assert self.nsd.ask(wire.publish("ada", "later")) == [{"_class": "SuccessResponse"}]
        client.stream.read()
        self.nsd.pump()
        assert wire.bodies(client.take()) == self.texts
        client.send(wire.get("ada", 60))
        assert wire.bodies(client.take()) == ["later"]

    def test_short_replies_do_not_accumulate_for_a_client_that_does_not_read(self) -> None:
        """Memory is bounded also with Gets whose replies fit one page each."""
        client = wire.slow_client(self.nsd)
        client.send(wire.get("ada", 57) * 200)
        self.nsd.pump()
        assert len(client.stream.buffered) < MIB
        client.stream.read()
        self.nsd.pump(500)
        lines = client.take().splitlines(keepends=True)
        assert [len(wire.bodies(line)) for line in lines] == [3] * 200

    def test_requests_wait_unparsed_while_replies_are_not_read(self) -> None:
        client = wire.slow_client(self.nsd)
        client.send(wire.get("ada"))
        self.nsd.pump()
        client.send(b"".join(wire.publish("ada", f"x{n}") for n in range(50)))
        assert self.nsd.broker.counters.published == 60
        client.stream.read()
        self.nsd.pump()
        assert self.nsd.broker.counters.published == 110
        answer, *rest = client.take().splitlines(keepends=True)
        assert wire.bodies(answer) == self.texts
        assert rest == [SUCCESS] * 50

    def test_a_transport_that_becomes_full_between_two_reads(self) -> None:
        """As over TLS, where small replies are collected and sent after the read."""
        client = wire.slow_client(self.nsd)
        client.stream.producer.pauseProducing()
        for _ in range(20):
            client.send(wire.open_("ben") * 1000)
        assert client.stream.paused
        assert self.nsd.broker.memory.used < 100_000
        client.stream.producer.resumeProducing()
        client.stream.read()
        self.nsd.turn()
        assert client.take() == SUCCESS * 20_000

    def test_attachments_count_for_a_page(self) -> None:
        nsd = Nsd()
        nsd.ask(
            wire.open_("ada"), *[wire.publish("ada", "", file="x" * 200_000) for _ in range(20)]
        )
        client = wire.slow_client(nsd)
        client.send(wire.get("ada"))
        nsd.pump()
        assert len(client.stream.buffered) < MIB

    def test_empty_messages_count_for_a_page(self) -> None:
        nsd = Nsd(also={"cafe": {"channels": "1:ada"}})
        alice = nsd.connect("cafe")
        alice.send(cafe_wire.hs_pub(1))
        for _ in range(10):
            alice.send(cafe_wire.publish(1, *[b""] * 8_000))
        nsd.ask(wire.open_("ada"))
        client = wire.slow_client(nsd)
        client.send(wire.get("ada"))
        nsd.pump()
        assert len(client.stream.buffered) < MIB

    def test_a_client_that_disconnects_within_a_page_holds_nothing(self) -> None:
        for how in ("lose", "abort"):
            client = wire.slow_client(self.nsd)
            client.send(wire.get("ada") + wire.open_("never"))
            self.nsd.pump(2)
            if how == "lose":
                client.stream.lose()
            else:
                client.protocol.abort("why")
            self.nsd.pump()
            assert not self.nsd.broker.clients
            assert not self.nsd.clock.getDelayedCalls()
            assert "never" not in self.nsd.broker.topics
        assert self.nsd.listeners["nsd"].quota.open == 0

    def test_a_client_that_disconnects_between_pages_holds_nothing(self) -> None:
        client = self.nsd.connect("nsd")
        client.stream.feed(wire.get("ada"))
        client.stream.lose()
        self.nsd.pump()
        assert not self.nsd.clock.getDelayedCalls()
        assert len(client.stream.received) < MIB

    def test_shutdown_finishes_the_present_reply_only(self) -> None:
        self.nsd.start()
        client, idle = wire.slow_client(self.nsd), self.nsd.connect("nsd")
        client.send(wire.get("ada") + wire.open_("never"))
        stopped = self.nsd.broker.stopService()
        assert idle.closed
        assert idle.take() == b""
        idle.stream.lose(clean=True)
        self.nsd.pump()
        assert not bool(client.closed)
        client.stream.read()
        self.nsd.pump()
        assert wire.bodies(client.take()) == self.texts
        assert client.closed
        assert "never" not in self.nsd.broker.topics
        self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
        client.stream.lose(clean=True)
        self.successResultOf(stopped)

    def test_a_slow_reader_has_until_the_deadline_for_the_rest_of_a_reply(self) -> None:
        """nsd §8: "closes each connection after the response under way"."""
        self.nsd.start()
        client = wire.slow_client(self.nsd)
        client.send(wire.get("ada", 50))
        self.nsd.broker.stopService()
        client.stream.read(on=False)
        self.nsd.advance(4)
        client.stream.read()
        self.nsd.pump()
        assert wire.bodies(client.take()) == self.texts[50:]

    def test_a_client_that_does_not_read_is_aborted_at_the_deadline(self) -> None:
        self.nsd.start()
        client = wire.slow_client(self.nsd)
        client.send(wire.get("ada"))
        stopped = self.nsd.broker.stopService()
        self.nsd.advance(9)
        self.assertNoResult(stopped)  # type: ignore[no-untyped-call]
        self.nsd.advance(2)
        self.successResultOf(stopped)
        assert client.stream.aborted


class HistoryTests(SynchronousTestCase):
    """The messages of a Get"""

    def test_expired_messages_are_not_returned(self) -> None:
        nsd = Nsd(top={"history": "5"})
        texts = nsd.write_history(12, 1)
        (response,) = nsd.ask(wire.get("ada", 3))
        assert [message["body"] for message in response["messages"]] == texts[7:]
        assert [message["when"] for message in response["messages"]] == [8, 9, 10, 11, 12]

    def test_the_position_of_a_client_that_continues(self) -> None:
        nsd = Nsd()
        nsd.store.open(1)
        nsd.write_history(3, 1)

        def position(after: int, epoch: str = nsd.store.epoch) -> tuple[int, bool]:
            known = {"position": True, "epoch": epoch, "after": after}
            request = {"_class": "SubscribeRequest", "identity": "ada", "channel": "ada", **known}
            (found,) = nsd.ask(json.dumps(request).encode() + b"\n")
            return found["when"], found["continues"]

        assert position(2) == (2, True)
        assert position(3) == (3, True)
        # With a larger one a Get would have nothing until there are so many messages.
        assert position(4) == (3, True)
        assert position(2**62) == (3, True)
        assert position(2, "another") == (3, False)

    def test_without_a_history_nothing_is_returned_and_when_still_increases(self) -> None:
        nsd = Nsd(top={"history": "0"})
        nsd.write_history(3, 1)
        assert nsd.store.next_offset == 3
        client = nsd.connect("nsd")
        client.send(wire.get("ada"))
        nsd.pump()
        assert client.take() == NOTHING

    def test_a_rare_channel_in_a_long_history_is_found(self) -> None:
        nsd = Nsd()
        nsd.ask(wire.open_("ada"), wire.open_("ben"), wire.publish("ben", "first"))
        client = nsd.connect("nsd")
        for _ in range(10):
            client.send(wire.publish("ada", "x") * 500)
        nsd.ask(wire.publish("ben", "last"))
        client.take()
        client.send(wire.get("ben"))
        assert wire.bodies(client.take()) == ["first", "last"]
        client.send(wire.get("ben", 1))
        assert wire.bodies(client.take()) == ["last"]

    def test_a_history_that_cannot_be_read_ends_the_connection(self) -> None:
        class Broken(MemoryStore):
            def read(self, *given: Any, **named: Any) -> Deferred[Page]:
                return fail(OSError("the disk is gone"))

        nsd = Nsd(store=Broken(100, MIB))
        nsd.ask(wire.open_("ada"), wire.publish("ada", "x"))
        client = nsd.connect("nsd")
        client.send(wire.get("ada") + wire.get("ada"))
        nsd.clock.pump([1.0] * 20)
        assert not client.stream.aborted
        nsd.clock.pump([1.0] * 20)
        assert client.stream.aborted
        errors = self.flushLoggedErrors(OSError)
        assert len(errors) == 1

    def test_permission_is_checked_for_each_channel_of_a_get(self) -> None:
        nsd = Nsd(also={"cafe": {"channels": "1:secret,2:open"}}, allow_subscribe="open,ada")
        alice = nsd.connect("cafe")
        alice.send(cafe_wire.hs_pub(1, b"alice"))
        alice.send(cafe_wire.publish(1, b"s") + cafe_wire.publish(2, b"o"))
        identities = nsd.factories["nsd"]._identities
        identities.subscribe("ada", "secret", 10, 10)
        identities.subscribe("ada", "open", 10, 10)
        (response,) = nsd.ask(wire.get("ada"))
        assert [message["body"] for message in response["messages"]] == ["o"]

    def test_messages_of_cafe(self) -> None:
        nsd = Nsd(also={"cafe": {"channels": "7"}})
        alice = nsd.connect("cafe")
        alice.send(cafe_wire.hs_pub(7, b"al\xffice"))
        long = "ü" * 5000
        alice.send(cafe_wire.publish(7, b"caf\xc3\xa9", b"\xff\x00", b"", long.encode()))
        nsd.ask(wire.subscribe("ada", "cafe/7"))
        client = nsd.connect("nsd")
        client.send(wire.get("ada"))
        first = (
            '{"_class":"MessageListResponse","messages":['
            '{"_class":"Message","from":"al\ufffdice","when":1,"body":"café"},'
            '{"_class":"Message","from":"al\ufffdice","when":2,"body":"","data":"/wA="},'
            '{"_class":"Message","from":"al\ufffdice","when":3,"body":""},'
            '{"_class":"Message","from":"al\ufffdice","when":4,"body":"'
        )
        assert client.take().decode() == first + long + '"}]}\n'

    def test_messages_to_cafe_are_the_body_only(self) -> None:
        nsd = Nsd(also={"cafe": {"channels": "7:ada"}})
        nsd.ask(wire.open_("ada"))
        bob = nsd.connect("cafe")
        bob.send(cafe_wire.hs_sub(b"\x07"))
        nsd.clock.advance(cafe_wire.GAP)
        bob.take()
        nsd.ask(wire.publish("ada", "grüße", file="QUJD"))
        assert cafe_wire.payloads(bob.take()) == ["grüße".encode()]


class HttpRequestTests(SynchronousTestCase):
    """A web page can make a browser send lines of its choice, behind those of an HTTP request"""

    def setUp(self) -> None:
        self.nsd = Nsd()

    def test_the_connection_is_closed_before_the_body(self) -> None:
        client = self.nsd.connect("nsd")
        client.send(wire.open_("ada"))
        client.take()
        page = self.nsd.connect("nsd")
        page.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + wire.publish("ada", "forged") + b"\n")
        assert page.take() == wire.error("INVALID REQUEST: [POST / HTTP/1.1]")
        page.send(wire.publish("ada", "forged"))
        assert page.take() == b""
        client.send(wire.get("ada"))
        assert client.take() == NOTHING
        assert self.nsd.broker.counters.refusals == {("nsd", "http-request"): 1}

    def test_any_method_and_version(self) -> None:
        for line in (b"GET /a?b HTTP/1.0", b"PRI * HTTP/2.0", b"M-SEARCH * HTTP/1.1"):
            page = self.nsd.connect("nsd")
            page.send(line + b"\r\n" + wire.open_("ada"))
            assert page.take() == wire.error(f"INVALID REQUEST: [{line.decode()}]")

    def test_other_lines_leave_it_open(self) -> None:
        for line in (b"GET / HTTP/1", b"GET /", b"HTTP/1.1 200 OK", b"a b c HTTP/1.1"):
            client = self.nsd.connect("nsd")
            client.send(line + b"\r\n" + wire.open_("ada"))
            assert client.take() == wire.error(f"INVALID REQUEST: [{line.decode()}]") + SUCCESS


class BinaryTests(SynchronousTestCase):
    """The first message of a binary protocol, which need not contain a line feed"""

    def test_it_is_answered_at_once(self) -> None:
        greeting = b"\xff" + bytes(8) + b"\x7f\3"
        for data in (cafe_wire.hs_sub(b"\x07"), greeting, b"\x01abc", greeting + b"\n" + greeting):
            nsd = Nsd()
            client = nsd.connect("nsd")
            client.send(data)
            shown = data.partition(b"\n")[0].decode(errors="replace")
            assert json.loads(client.take())["error"] == f"INVALID REQUEST: [{shown}]"
            assert client.closed
            assert nsd.broker.counters.refusals == {("nsd", "binary-protocol"): 1}

    def test_text_leaves_it_open(self) -> None:
        for line in ("é", "\ufeff{}", "\t\x01", "[\x7f", "\U0010ffff"):
            client = Nsd().connect("nsd")
            client.send(line.encode())
            assert client.take() == b""
            # Bytes that are not the first do not matter.
            client.send(b"\n\x01\n")
            answers = [json.loads(one)["error"] for one in client.take().splitlines()]
            assert answers == [f"INVALID REQUEST: [{one}]" for one in (line, "\x01")]
            assert not client.closed
