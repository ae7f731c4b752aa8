"""fast's refusals: order, codes, silence; and required settings (§5.2, §6)."""

from __future__ import annotations

import pytest

from pubsub.errors import NotConfigured, Refused
from pubsub.protocols.fast.refusals import CODES
from tests.unit import fast_wire as wire
from tests.unit.fast_wire import (
    BAD_TOKEN,
    FORGED,
    INVALID,
    KEYLESS,
    NO_PERMISSION,
    NO_TOPIC,
    OTHER,
    OWNER,
    RATE_LIMITED,
    READER,
    WRONG_KEY,
    Fast,
    FastCase,
)
from tests.unit.streams import House, logged


class OrderTests(FastCase):
    """§5.2: token, topic, queue key, permission"""

    def test_checks_of_each_request_are_in_order(self) -> None:
        nothing = wire.grant("x")
        for kind, request in (
            (2, wire.subscribe),
            (3, lambda raw: wire.publish(raw, b"x")),
            (5, wire.unsubscribe),
            (7, lambda raw: wire.rotate(raw, b"\xff")),
        ):
            fast = self.house()
            assert self.answer(fast, request(FORGED)) == wire.error(kind, BAD_TOKEN)
            assert self.answer(fast, request(nothing)) == wire.error(kind, NO_TOPIC)
            fast.owner()
            assert self.answer(fast, request(FORGED)) == wire.error(kind, BAD_TOKEN)
            assert self.answer(fast, request(wire.grant("x", key="k2"))) == wire.error(
                kind, WRONG_KEY
            )
            assert self.answer(fast, request(KEYLESS)) == wire.error(kind, WRONG_KEY)
            if kind != 5:
                assert self.answer(fast, request(nothing)) == wire.error(kind, NO_PERMISSION)
        assert self.answer(fast, wire.rotate(OWNER, b"\xff")) == wire.error(7, INVALID)


class HintTests(FastCase):
    """Clients that do not know ERROR (§6.1)"""

    def setUp(self) -> None:
        self.lines = logged(self)

    def hints(self) -> list[str]:
        """Return the hints that have been logged."""
        return [line for line in self.lines if "errors=off" in line]

    def test_a_client_that_leaves_after_an_error(self) -> None:
        fast = self.house()
        for _ in range(3):
            client = fast.client(wire.publish(OWNER, b"x"))
            assert client.take() == wire.error(3, NO_TOPIC)
            client.stream.lose()
        (hint,) = self.hints()
        assert hint.startswith("fast on tcp:7074:interface=127.0.0.1: '192.0.2.1:")
        assert hint.endswith(
            "' disconnected after an ERROR; if its program does not know this packet, "
            "set errors=off"
        )

    def test_a_client_that_goes_on_or_leaves_without_an_error(self) -> None:
        fast = self.house()
        client = fast.client(wire.publish(OWNER, b"x"))
        client.send(wire.create(OWNER))
        client.stream.lose()
        fast.client(wire.publish(OWNER, b"x")).stream.lose()
        assert self.hints() == []

    def test_a_client_that_asks_for_an_error(self) -> None:
        """As the client library does after each request."""
        fast = self.house()
        client = fast.client(wire.publish(OWNER, b"x") + wire.unsubscribe(OWNER, topic=0))
        assert client.take() == wire.error(3, NO_TOPIC) + wire.error(5, NO_TOPIC, topic=0)
        client.stream.lose()
        assert self.hints() == []

    def test_a_client_that_the_broker_disconnects(self) -> None:
        fast = self.house()
        client = fast.client(b"\x99")
        client.stream.lose()
        assert self.hints() == []

    def test_without_errors(self) -> None:
        self.house(errors="off").client(wire.publish(OWNER, b"x")).stream.lose()
        assert self.hints() == []


class ErrorTests(FastCase):
    """§6"""

    def test_every_refusal_of_the_broker_has_a_code(self) -> None:
        # fast has neither sessions nor passwords.
        others = {"SessionUnknown", "WrongPassword", "PasswordsBusy"}
        assert CODES.keys() >= {
            kind for kind in Refused.__subclasses__() if kind.__name__ not in others
        }
        assert {int(code) for code in CODES.values()} == {1, 2, 3, 4, 5, 6, 7, 8, 10}

    def test_messages_come_before_the_error_that_closes(self) -> None:
        for settings in ({}, {"errors": "off"}):
            fast = self.house(**settings)
            client = fast.client(wire.create(OWNER) + wire.subscribe(OWNER))
            client.send(wire.publish(OWNER, b"a") + wire.publish(OWNER, b"b") + b"\x99")
            error = b"" if settings else wire.error(0x99, INVALID, 0)
            assert client.take() == wire.message(b"a") + wire.message(b"b") + error
            assert fast.broker.counters.dropped == 0

    def test_questions_are_no_refusals(self) -> None:
        # Whether all was handled, and whether a topic exists.
        fast = self.house()
        fast.owner()
        assert self.answer(fast, wire.unsubscribe(OWNER, 0) * 2) == wire.error(5, NO_TOPIC, 0) * 2
        assert self.answer(fast, wire.unsubscribe(OWNER, 1)) == wire.error(5, NO_TOPIC, 1)
        assert fast.refusals() == {}
        assert self.answer(fast, wire.unsubscribe(FORGED, 1)) == wire.error(5, BAD_TOKEN, 1)
        assert self.answer(fast, wire.unsubscribe(OTHER)) == wire.error(5, WRONG_KEY)
        assert self.answer(fast, wire.subscribe(OWNER, 1)) == wire.error(2, NO_TOPIC, 1)
        assert fast.refusals() == {"bad-token": 1, "wrong-queue-key": 1, "topic-not-found": 1}

    def test_without_errors_refusals_are_counted_only(self) -> None:
        fast = self.house(errors="off")
        silent = (
            wire.create(FORGED)
            + wire.create(KEYLESS)
            + wire.create(OWNER, flags=8)
            + wire.create(OWNER)
        )
        client = fast.client(
            silent + wire.create(OTHER) + wire.publish(READER, b"x") + wire.subscribe(OWNER, 1)
        )
        assert client.take() == b""
        assert not client.closed
        client.send(wire.subscribe(OWNER) + wire.publish(OWNER, b"x"))
        assert client.take() == wire.message(b"x")
        assert sum(fast.refusals().values()) == 6

    def test_without_errors_the_connection_closes_silently(self) -> None:
        fast = self.house(errors="off", max_connections=2)
        for bad in (b"\x00", b"\x03\x00\0\0\0\0\xff\xff\xff\xff"):
            client = fast.client(bad)
            assert (client.take(), client.closed) == (b"", True)
        third = fast.client()
        assert (third.take(), third.closed) == (b"", True)

    def test_types_that_clients_do_not_send_close(self) -> None:
        for number in (0x00, 0x04, 0x06, 0x08, 0x7F, 0xFF):
            fast = self.house()
            client = fast.client(bytes([number]))
            assert client.take() == wire.error(number, INVALID, 0)
            assert client.closed
            client.send(wire.create(OWNER))
            assert not len(fast.broker.topics)

    def test_a_connection_over_quota_gets_an_error_and_is_closed(self) -> None:
        fast = self.house(max_connections=1)
        fast.client()
        second = fast.client(wire.create(OWNER))
        assert second.take() == wire.error(0, RATE_LIMITED, 0)
        assert second.closed
        assert not len(fast.broker.topics)

    def test_shutdown_closes_without_a_packet(self) -> None:
        fast = self.house()
        owner = fast.owner()
        reader = fast.reader()
        fast.start()
        owner.send(wire.publish(OWNER, b"last"))
        fast.broker.stopService()
        fast.pump()
        assert reader.take() == wire.message(b"last")
        assert reader.closed
        assert owner.closed


class ConfigurationTests(FastCase):
    """Required settings"""

    def test_without_a_secret_the_start_fails_with_instructions(self) -> None:
        with pytest.raises(NotConfigured, match=r"`pubsub secret FILE`.*--secret-file FILE"):
            House({"fast": {}})

    def test_fast_listeners_share_the_owners_and_the_throttle(self) -> None:
        fast = Fast(self)
        factory = fast.factories["fast"]
        twin = type(factory)(fast.listeners["fast"])
        assert twin.shared.ownership._owners is factory.shared.ownership._owners
