"""cafe: a user and a password in the ClientID (cafe §3.9), over streams and datagrams."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.identity import PASSWORD, Identity
from pubsub.broker.credentials.password_changes import changed_users, end_connections
from pubsub.broker.credentials.passwords import MAX_PER_SOURCE
from pubsub.errors import ConfigurationError
from tests.unit import cafe_wire as wire
from tests.unit.cafe_udp import ALICE, BOB, Udp
from tests.unit.cafe_wire import GAP, PING, PONG, Cafe
from tests.unit.fakes import scratch
from tests.unit.streams import House, logged
from tests.unit.user_files import user_file

RIGHT, WRONG = b"bob:sesame", b"bob:hunter2"


def contents(case: SynchronousTestCase, house: House) -> list[tuple[bytes, bytes]]:
    """Return the sender and the payload of every message in the history."""
    page = case.successResultOf(house.store.read(0, None, 10**6))
    return [(batch.sender, one) for batch in page.batches for one in batch.payloads()]


class PasswordCase(SynchronousTestCase):
    """Houses with a password file."""

    def cafe(self, mode: str = "required", events: bool = False, **settings: object) -> Cafe:
        top = {"password-file": user_file(scratch(self)), "events": events}
        return Cafe(top, client_id_password=mode, **settings)

    def udp(self, mode: str = "required") -> Udp:
        top = {"password-file": user_file(scratch(self))}
        return Udp(top=top, client_id_password=mode)


class StreamTests(PasswordCase):
    """Over TCP"""

    def test_a_right_password_identifies_the_client_by_its_name_alone(self) -> None:
        cafe = self.cafe()
        client = cafe.connect("cafe")
        client.send(wire.hs_pub(1, RIGHT))
        assert client.take() == wire.ack(1)
        assert client.protocol.identity == Identity("bob", PASSWORD, host="192.0.2.1")
        assert client.protocol.label.startswith("bob@")

    def test_the_password_is_nowhere(self) -> None:
        cafe = self.cafe(events=True)
        cafe.start()
        lines = logged(self)
        for client_id in (RIGHT, b"bob:hunter2", b"eve:hunter2", b":hunter2", b"bob:"):
            client = cafe.connect("cafe")
            client.send(wire.hs_pub(1, client_id))
            cafe.pump(3)
            client.send(wire.publish(1, b"x"))
            client.stream.lose()
            cafe.pump(3)
        handshake = wire.hs_pub(1, b"bob:hunter2 sesame")
        for bad in (
            handshake[:7] + b"\x01\xff" + handshake[9:],
            handshake[:3] + b"\x05" + handshake[4:],
            handshake[:2] + b"\x05" + handshake[3:],
            b"\xca\xfe" + handshake[2:],
            b"\x00" + handshake,
            handshake + handshake,
        ):
            client = cafe.connect("cafe")
            client.send(bad)
            cafe.pump(3)
            client.stream.lose()
            cafe.pump(3)
        payloads = [payload for _sender, payload in contents(self, cafe)]
        events = [json.loads(payload) for payload in payloads if payload.startswith(b"{")]
        malformed = [event for event in events if event["event"] == "malformed"]
        assert len(malformed) == 5
        shown = b"".join([*payloads, *(b64decode(event.get("frame", "")) for event in malformed)])
        for secret in (b"hunter2", b"sesame"):
            assert secret not in shown
            assert secret.decode() not in "".join(lines)
            assert secret not in repr(vars(cafe.broker.sessions)).encode()

    def test_without_passwords_a_malformed_frame_with_a_colon_is_shown(self) -> None:
        cafe = Cafe({"events": True})
        cafe.start()
        bad = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        cafe.connect("cafe").send(bad)
        cafe.pump(3)
        events = [json.loads(payload) for _sender, payload in contents(self, cafe)]
        frames = [event["frame"] for event in events if event["event"] == "malformed"]
        assert [b64decode(frame) for frame in frames] == [bad]

    def test_the_user_is_the_sender(self) -> None:
        cafe = self.cafe()
        client = cafe.connect("cafe")
        client.send(wire.hs_pub(1, RIGHT))
        client.send(wire.publish(1, b"x"))
        assert (b"bob", b"x") in contents(self, cafe)

    def test_a_wrong_password_is_refused_in_the_handshake(self) -> None:
        cafe = self.cafe()
        for client_id in (WRONG, b"eve:sesame", b"bob:", b":sesame", b"\xff:sesame", b"bob", b""):
            client = cafe.connect("cafe")
            client.send(wire.hs_sub(b"\x01", client_id))
            assert client.take() == wire.ack(0, status=8)
            assert client.closed
        assert cafe.broker.counters.refusals == {("cafe", "wrong-password"): 7}
        assert len(cafe.broker.sessions) == 0

    def test_where_passwords_are_optional_a_name_alone_is_anonymous(self) -> None:
        cafe = self.cafe("optional")
        client = cafe.connect("cafe")
        client.send(wire.hs_pub(1, b"bob"))
        assert client.take() == wire.ack(1)
        assert client.protocol.identity.is_anonymous
        client = cafe.connect("cafe")
        client.send(wire.hs_pub(1, WRONG))
        assert client.take() == wire.ack(0, status=8)

    def test_by_default_a_colon_is_part_of_the_name(self) -> None:
        cafe = Cafe()
        client = cafe.connect("cafe")
        client.send(wire.hs_pub(1, b"bob:x"))
        assert client.take() == wire.ack(1)
        assert client.protocol.identity.is_anonymous
        assert client.protocol.label.startswith("bob:x@")

    def test_a_colon_may_be_in_the_password(self) -> None:
        cafe = self.cafe()
        client = cafe.connect("cafe")
        client.send(wire.hs_pub(1, b"bob:ses:ame"))
        assert client.take() == wire.ack(0, status=8)

    def test_input_waits_for_the_verification(self) -> None:
        cafe = self.cafe()
        reader = cafe.connect("cafe")
        reader.send(wire.hs_sub(b"\x01", RIGHT))
        cafe.clock.advance(GAP)
        reader.take()
        client = cafe.connect("cafe")
        cafe.broker.passwords.replace({**(cafe.config.passwords or {})})
        client.stream.feed(wire.hs_pub(1, RIGHT) + wire.publish(1, b"first") + PING)
        client.stream.feed(wire.publish(1, b"second"))
        assert client.take() == b""
        assert client.stream.paused
        cafe.pump(3)
        assert client.take() == wire.ack(2) + PONG
        assert wire.payloads(reader.take()) == [b"first", b"second"]

    def test_with_a_password_that_is_remembered_input_does_not_wait(self) -> None:
        cafe = self.cafe()
        cafe.connect("cafe").send(wire.hs_pub(1, RIGHT))
        cafe.pump(3)
        client = cafe.connect("cafe")
        client.stream.feed(wire.hs_pub(1, RIGHT) + PING)
        client.stream.feed(PING)
        assert client.take() == wire.ack(2) + PONG * 2
        assert cafe.broker.passwords.verified == 1

    def test_clients_of_other_machines_need_no_permission_to_be_anonymous(self) -> None:
        for mode, exposed in (("required", False), ("optional", True), ("none", True)):
            cafe = self.cafe(mode, allow_anonymous="auto")
            listener = cafe.listeners["cafe"]
            assert listener.is_exposed("192.0.2.1") == exposed
            listener.reconfigure({**listener.settings, "client-id-password": "none"})
            assert listener.is_exposed("192.0.2.1")
            assert not listener.admits_anonymous("192.0.2.1")

    def test_subscriptions_without_a_password_end_when_all_need_one(self) -> None:
        cafe = self.cafe("optional")
        cafe.start()
        clients = [cafe.connect("cafe") for _ in range(2)]
        for client, client_id in zip(clients, (b"bob", RIGHT), strict=True):
            client.send(wire.hs_sub(b"\x01", client_id))
        cafe.clock.advance(GAP)
        for client in clients:
            client.take()
        cafe.document["listen"][0]["client-id-password"] = "required"  # type: ignore[index]
        cafe.reloader().reload()
        cafe.pump(3)
        assert [client.take() for client in clients] == [wire.error(0x08), b""]

    def test_a_session_is_resumed_with_the_password(self) -> None:
        cafe = self.cafe("optional")
        client = cafe.connect("cafe")
        client.send(wire.hs_sub(b"\x01", RIGHT))
        assert client.take() == wire.ack(1)
        client.stream.lose()
        alice = cafe.connect("cafe")
        alice.send(wire.hs_pub(1, b"ann:other") + wire.publish(1, b"missed"))
        for thief, status in ((b"bob", 1), (WRONG, 8), (b"ann:other", 1)):
            other = cafe.connect("cafe")
            other.send(wire.hs_sub(b"", wire.resume(thief, 1)))
            assert other.take() == wire.ack(0, status=status)
        again = cafe.connect("cafe")
        again.send(wire.hs_sub(b"", wire.resume(RIGHT, 1)))
        cafe.clock.advance(GAP)
        (_, acknowledged), *rest = wire.frames(again.take())
        assert acknowledged[0] == 0
        assert [payload[9:] for _, payload in rest] == [b"missed"]

    def test_a_client_that_leaves_costs_no_verification(self) -> None:
        cafe = self.cafe()
        client = cafe.connect("cafe")
        client.stream.feed(wire.hs_pub(1, WRONG))
        client.stream.lose()
        cafe.pump(3)
        assert cafe.broker.passwords.verified == 0
        assert cafe.broker.counters.refused == 0

    def test_the_handshake_has_its_time_limit_meanwhile(self) -> None:
        cafe = self.cafe(handshake_seconds=3)
        cafe.broker.passwords._run = lambda call, done, failed: None
        client = cafe.connect("cafe")
        client.stream.feed(wire.hs_pub(1, RIGHT))
        cafe.advance(3.5)
        assert client.take() == wire.error(1)
        assert client.closed

    def test_a_busy_broker_is_no_permanent_error(self) -> None:
        cafe = self.cafe()
        cafe.broker.passwords.stop()
        client = cafe.connect("cafe")
        client.send(wire.hs_pub(1, RIGHT))
        assert client.take() == wire.ack(0, status=4)
        assert cafe.broker.counters.refusals == {("cafe", "passwords-busy"): 1}

    def test_without_users_the_listener_is_not_made(self) -> None:
        with pytest.raises(ConfigurationError, match="set password-file"):
            Cafe(client_id_password="required")


class DatagramTests(PasswordCase):
    """Over UDP"""

    def test_a_right_and_a_wrong_password(self) -> None:
        udp = self.udp()
        assert udp.send(ALICE, wire.hs_pub(1, RIGHT)) == [wire.ack(1)]
        assert udp.send(BOB, wire.hs_sub(b"\x01", WRONG)) == [wire.ack(0, status=8)]
        assert udp.broker.counters.connections == 1

    def test_a_password_in_a_damaged_datagram_is_not_shown(self) -> None:
        handshake = wire.hs_pub(1, b"bob:hunter2")
        # A handshake that has lost its opcode, or its end too.
        damaged = handshake[:2] + b"\x05" + handshake[3:]
        for known in (True, False):
            for bad in (damaged, damaged[:-1], b"\xff" + handshake):
                top = {"password-file": user_file(scratch(self)), "events": True}
                udp = Udp(top=top, client_id_password="required")
                udp.start()
                if known:
                    udp.join(ALICE, wire.hs_pub(1, RIGHT))
                udp.send(ALICE, bad)
                udp.pump(3)
                found = [json.loads(payload) for _sender, payload in contents(self, udp)]
                malformed = [event for event in found if event["event"] == "malformed"]
                assert len(malformed) == 1
                assert "frame" not in malformed[0]

    def test_datagrams_wait_and_handshakes_that_are_repeated_are_ignored(self) -> None:
        udp = self.udp()
        udp.join(BOB, wire.hs_sub(b"\x01", RIGHT))
        memory = udp.broker.memory.used
        handshake = wire.hs_pub(1, b"ann:other")
        udp.protocol.datagramReceived(handshake + wire.publish(1, b"same"), ALICE)
        udp.protocol.datagramReceived(handshake, ALICE)
        udp.protocol.datagramReceived(wire.publish(1, b"next"), ALICE)
        assert udp.port.sent == []
        udp.pump(3)
        assert udp.take(ALICE) == [wire.ack(2)]
        assert wire.payloads(b"".join(udp.take(BOB))) == [b"same", b"next"]
        assert udp.broker.memory.used < memory + 16_000

    def test_unproved_addresses_wait_as_one(self) -> None:
        udp = self.udp()
        for n in range(MAX_PER_SOURCE + 10):
            address = (f"198.51.100.{n}", 4000)
            udp.protocol.datagramReceived(wire.hs_pub(1, b"eve:%d" % n), address)
        assert len(udp.broker.passwords) == MAX_PER_SOURCE
        client = udp.connect("cafe")
        client.stream.feed(wire.hs_pub(1, RIGHT))
        udp.pump(3)
        assert client.take()[7] == 0

    def test_waiting_input_has_a_bound_and_is_freed(self) -> None:
        udp = self.udp()
        before = udp.broker.memory.used
        udp.protocol.datagramReceived(wire.hs_pub(1, WRONG), ALICE)
        for n in range(100):
            udp.protocol.datagramReceived(wire.publish(1, b"%03d" % n + b"." * 1000), ALICE)
        assert udp.broker.memory.used < before + 32 * 1024
        udp.pump(3)
        assert udp.take(ALICE) == [wire.ack(0, status=8)]
        assert udp.broker.memory.used == before

    def test_a_forged_address_gets_one_small_reply(self) -> None:
        udp = self.udp()
        for _ in range(10):
            udp.protocol.datagramReceived(wire.hs_pub(1, WRONG), ALICE)
        udp.pump(3)
        assert udp.take(ALICE) == [wire.ack(0, status=8)]


class ChangedPasswordTests(PasswordCase):
    """Connections whose password is changed"""

    def test_users_whose_hash_is_another_one_or_gone(self) -> None:
        before = {"same": "1", "new hash": "1", "gone": "1"}
        after = {"same": "1", "new hash": "2", "added": "1"}
        assert changed_users(before, after) == {"new hash", "gone"}
        assert changed_users(before, None) == set(before)
        assert changed_users(None, after) == set()

    def test_only_their_connections_end(self) -> None:
        cafe = self.cafe("optional")
        clients = [cafe.connect("cafe") for _ in range(3)]
        for client, client_id in zip(clients, (RIGHT, b"ann:other", b"bob"), strict=True):
            client.send(wire.hs_pub(1, client_id))
        for _ in end_connections(cafe.broker.clients, {"bob"}):
            pass
        cafe.pump(3)
        assert [client.closed for client in clients] == [True, False, False]

    def test_over_udp(self) -> None:
        udp = self.udp()
        udp.join(ALICE, wire.hs_pub(1, RIGHT))
        for _ in end_connections(udp.broker.clients, {"bob"}):
            pass
        assert udp.broker.counters.connections == 0
