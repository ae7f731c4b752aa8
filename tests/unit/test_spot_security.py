"""PLAIN and CURVE of spot: the admitted clients, their identities, and refusals (§2.6)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.curve_keys import decode_key, encode_key
from pubsub.broker.credentials.identity import CURVE, PASSWORD, Identity
from pubsub.errors import ConfigurationError
from pubsub.protocols.spot.connection import ZmtpConnection
from pubsub.protocols.spot.curve import Box, CurveClient, CurveServer
from pubsub.protocols.spot.security import SETTINGS, CurveSecret
from pubsub.protocols.spot.zmtp import (
    Command,
    ZmtpError,
    encode_command,
    encode_message,
    greeting,
)
from tests.unit.brokers import QUERY, message, ready, subscribe
from tests.unit.fakes import scratch
from tests.unit.spot_security import (
    CAROL,
    EVE,
    SERVER,
    SecureClient,
    curve,
    metadata,
    plain,
    secure_house,
)
from tests.unit.streams import House, logged

ERROR_400 = b"\x04\x0a\x05ERROR\x03400"


def publish(topic: bytes, data: bytes) -> bytes:
    """Return PUBLISH."""
    return encode_message([b"", b"\x01", topic, data])


def identity(client: SecureClient) -> Identity:
    protocol = client.client.protocol
    assert isinstance(protocol, ZmtpConnection)
    return protocol.identity


def stored(case: SynchronousTestCase, house: House) -> list[tuple[bytes, bytes]]:
    """Return the sender and the payload of every message in the history."""
    page = case.successResultOf(house.store.read(0, None, 10**6))
    return [
        (batch.sender, payload) for batch in page.batches for payload in batch.columns.payloads()
    ]


class SecurityCase(SynchronousTestCase):
    """Brokers whose files are in a directory of the test."""

    def house(self, mechanism: str, **settings: object) -> House:
        return secure_house(scratch(self), mechanism, **settings)


class PlainTests(SecurityCase):
    """PLAIN"""

    def test_a_right_password_identifies_the_client(self) -> None:
        bob = plain(self.house("plain"))
        assert bob.done
        assert identity(bob) == Identity("bob", PASSWORD, host="192.0.2.1")

    def test_the_bytes_of_the_handshake(self) -> None:
        client = self.house("plain").connect("spot")
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01PLAIN" + bytes(15)
        client.send(greeting + bytes(32) + b"\x04\x11\x05HELLO\x03bob\x06sesame")
        assert client.take() == greeting + b"\x01" + bytes(31) + b"\x04\x08\x07WELCOME"
        client.send(b"\x04\x1f\x08INITIATE\x0bSocket-Type\0\0\0\x06DEALER")
        assert client.take().startswith(b"\x04\x36\x05READY\x0bSocket-Type\0\0\0\x06ROUTER")

    def test_a_wrong_password_or_user_is_refused_alike(self) -> None:
        lines = logged(self)
        house = self.house("plain")
        for user, password in ((b"bob", b"wrong!"), (b"eve", b"wrong!"), (b"\xff", b"wrong!")):
            with pytest.raises(ZmtpError, match="refused-by-peer"):
                plain(house, user, password)
        assert house.broker.counters.refusals == {("spot", "wrong-password"): 3}
        assert "wrong!" not in "".join(lines)

    def test_the_refusal_is_that_of_zap_and_closes(self) -> None:
        client = self.house("plain").connect("spot")
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01PLAIN" + bytes(47)
        client.send(greeting + b"\x04\x11\x05HELLO\x03bob\x06wrong!")
        assert client.take()[64:] == ERROR_400
        assert client.closed

    def test_nothing_is_read_until_the_password_is_verified(self) -> None:
        house = self.house("plain")
        client = house.connect("spot")
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01PLAIN" + bytes(47)
        hello = b"\x04\x11\x05HELLO\x03bob\x06sesame"
        initiate = encode_command(Command(b"INITIATE", metadata(b"DEALER")))
        client.stream.feed(greeting + hello + initiate + QUERY)
        assert client.stream.paused
        assert client.take()[64:] == b""
        house.turn()
        assert client.take().endswith(message(b"", b"\x05", b"\0\0\0\0"))
        assert not client.stream.paused

    def test_a_client_that_leaves_meanwhile_costs_nothing(self) -> None:
        house = self.house("plain")
        client = house.connect("spot")
        before = house.broker.passwords.verified
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01PLAIN" + bytes(47)
        client.stream.feed(greeting + b"\x04\x11\x05HELLO\x03bob\x06sesame")
        client.stream.lose()
        house.turn()
        assert house.broker.passwords.verified == before
        assert len(house.broker.passwords) == 0

    def test_the_time_of_the_handshake_includes_the_verification(self) -> None:
        house = self.house("plain", handshake_seconds=3)
        house.broker.passwords._run = lambda call, done, failed: None
        client = house.connect("spot")
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01PLAIN" + bytes(47)
        client.stream.feed(greeting + b"\x04\x11\x05HELLO\x03bob\x06sesame")
        house.advance(3.5)
        assert client.closed
        assert house.broker.counters.refusals == {("spot", "handshake-timeout"): 1}

    def test_a_busy_broker_says_nothing_so_that_the_client_tries_again(self) -> None:
        house = self.house("plain")
        house.broker.passwords.stop()
        client = house.connect("spot")
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01PLAIN" + bytes(47)
        client.send(greeting + b"\x04\x11\x05HELLO\x03bob\x06sesame")
        assert client.take()[64:] == b""
        assert client.closed
        assert house.broker.counters.refusals == {("spot", "passwords-busy"): 1}

    def test_the_name_is_the_sender_of_a_client_without_an_identity(self) -> None:
        house = self.house("plain")
        for n, (sender, own) in enumerate(((b"bob", b""), (b"desk", b"desk"))):
            bob = plain(house, identity=own)
            bob.send(publish(b"t", b"x"))
            assert stored(self, house)[n] == (sender, b"x")

    def test_malformed_logins_are_refused_and_never_shown(self) -> None:
        house = self.house("plain", top={"events": True})
        house.start()
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01PLAIN" + bytes(47)
        lines = logged(self)
        for hello in (
            b"\x04\x06\x05HELLO",
            b"\x04\x11\x05HELLO\x03bob\x07hunter",
            b"\x04\x12\x05HELLO\x04bob\x06hunter2",
            b"\x04\x13\x05HELLO\x03bob\x06hunter2x",
            b"\x00\x12\x05HELLO\x03bob\x07hunter2",
            b"\x04\x12\x05HELLA\x03bob\x07hunter2",
            b"\x05\x12\x05HELLO\x03bob\x07hunter2",
        ):
            client = house.connect("spot")
            client.send(greeting + hello)
            house.pump(3)
            client.stream.lose()
            house.pump(3)
        shown = b"".join(payload for _sender, payload in stored(self, house))
        assert b"malformed" in shown
        assert b"hunter2" not in shown
        assert b"hunter2".hex().encode() not in shown
        assert "hunter2" not in "".join(lines)

    @given(st.binary(max_size=80))
    def test_any_bytes_after_the_greeting_are_survived(self, data: bytes) -> None:
        house = self.house("plain")
        client = house.connect("spot")
        client.send(b"\xff" + bytes(8) + b"\x7f\x03\x01PLAIN" + bytes(47) + data)
        house.pump(3)
        assert b"READY" not in client.take()


class MechanismTests(SecurityCase):
    """Which mechanism is used"""

    def test_null_is_refused_where_another_is_demanded(self) -> None:
        for mechanism in ("plain", "curve", "plain,curve"):
            house = self.house(mechanism)
            client = house.connect("spot")
            client.send(ready(b"DEALER") + subscribe(b"t"))
            assert client.closed
            assert house.broker.counters.refusals == {("spot", "mechanism"): 1}
            assert "t" not in house.broker.topics

    def test_a_client_without_any_of_a_list_learns_of_the_first(self) -> None:
        for mechanism, expected in (("plain,curve", b"PLAIN"), ("curve,plain", b"CURVE")):
            client = self.house(mechanism).connect("spot")
            client.send(ready(b"DEALER"))
            assert client.take() == greeting(expected, is_server=True)
            assert client.closed

    def test_of_a_list_the_client_chooses(self) -> None:
        house = self.house("null,plain,curve")
        client = house.connect("spot")
        assert client.take() == b"\xff" + bytes(8) + b"\x7f\x03"
        client.send(ready(b"DEALER"))
        assert client.take().startswith(b"\x01NULL" + bytes(48) + b"\x04")
        assert identity(plain(house)).name == "bob"
        assert identity(curve(house)).name == "carol"

    def test_settings_that_cannot_work_are_errors(self) -> None:
        for settings, expected in (
            ({"mechanism": "curve", "curve-secret-file": ""}, "needs curve-secret-file"),
            ({"mechanism": "magic"}, "expected one or more of null, plain, curve"),
            ({"mechanism": ""}, "expected one or more of null, plain, curve"),
            ({"curve-clients": {"short": "bob"}}, "expected a CURVE key of 40 characters"),
            ({"curve-clients": {encode_key(EVE.public): ""}}, "the name of an identity"),
            ({"curve-secret-file": "/nonexistent"}, "No such file"),
            ({"curve-secret-file": __file__}, "is not a secret key"),
            ({"peer-curve-keys": {"tcp://h:1": encode_key(EVE.public)}}, "is not one of the peers"),
            ({"peer-curve-keys": {"h:1": encode_key(EVE.public)}}, "expected tcp://HOST:PORT"),
        ):
            with pytest.raises(ConfigurationError, match=expected):
                House({"spot": settings})
        with pytest.raises(ConfigurationError, match="set password-file"):
            House({"spot": {"mechanism": "plain"}})

    def test_a_secret_key_is_not_shown(self) -> None:
        assert encode_key(SERVER.secret) not in repr(SERVER)
        assert repr(CurveSecret(SERVER.secret)) == "CurveSecret(...)"


class CurveTests(SecurityCase):
    """CURVE"""

    def test_a_known_key_identifies_the_client(self) -> None:
        carol = curve(self.house("curve"))
        assert carol.done
        assert identity(carol) == Identity("carol", CURVE, host="192.0.2.1")

    def test_other_keys_are_refused(self) -> None:
        house = self.house("curve")
        with pytest.raises(ZmtpError, match="refused-by-peer"):
            curve(house, EVE)
        assert house.broker.counters.refusals == {("spot", "unknown-key"): 1}

    def test_any_key_can_be_admitted_by_a_name_or_by_itself(self) -> None:
        for name, expected in (("guest", "guest"), ("", encode_key(EVE.public))):
            house = self.house("curve", curve_clients={"*": name})
            assert identity(curve(house, EVE)).name == expected

    def test_a_client_with_another_key_of_the_broker_is_refused(self) -> None:
        house = self.house("curve")
        eve = curve(house, server=EVE.public)
        assert eve.closed
        assert not eve.done
        assert house.broker.counters.refusals == {("spot", "curve"): 1}

    def test_messages_are_encrypted_in_both_directions(self) -> None:
        house = self.house("curve")
        carol, other = curve(house), curve(house, kind=b"SUB")
        other.send(b"\x04\x0a\x09SUBSCRIBE")
        carol.send(subscribe(b"t"))
        carol.send(publish(b"t", b"secret text") + publish(b"t", b"x" * 3000))
        house.turn()
        assert b"secret text" not in bytes(carol.client.stream.received)
        assert len(carol.client.stream.received) > 3000
        frames = carol.take()
        assert frames.startswith(publish(b"t", b"secret text"))
        assert frames.endswith(b"x" * 3000)
        assert other.take().startswith(message(b"t", b"secret text"))

    def test_messages_to_clients_behind_a_proxy_are_encrypted_too(self) -> None:
        house = self.house("curve")
        proxy = curve(house)
        route = b"\0\1\2\3\4"
        proxy.send(encode_message([route, b"", b"\x02", b"t"]))
        proxy.send(publish(b"t", b"secret text"))
        house.turn()
        assert b"secret text" not in bytes(proxy.client.stream.received)
        assert proxy.take() == encode_message([route, b"", b"\x01", b"t", b"secret text"])

    def test_input_may_arrive_in_pieces_of_any_size(self) -> None:
        house = self.house("curve")
        carol = curve(house)
        data = carol.sealed(subscribe(b"t") + publish(b"t", b"a") * 20 + publish(b"t", b"b" * 999))
        for at in range(0, len(data), 7):
            carol.client.send(data[at : at + 7])
        assert carol.take().count(b"\x01t") == 21
        assert house.broker.counters.refused == 0

    def test_thousands_of_messages_take_several_turns_in_both_directions(self) -> None:
        house = self.house("curve")
        carol = curve(house)
        carol.send(subscribe(b"t"))
        before = house.broker.memory.used
        carol.client.stream.feed(carol.sealed(publish(b"t", b"a") * 2000))
        assert 0 < house.broker.counters.published < 1000
        assert carol.client.stream.paused
        house.pump(40)
        assert house.broker.counters.published == 2000
        assert carol.take() == publish(b"t", b"a") * 2000
        assert not carol.client.stream.paused
        carol.client.stream.lose()
        house.pump()
        assert house.broker.memory.used <= before + 4096

    def test_a_reader_that_stops_and_reads_again_gets_everything(self) -> None:
        house = self.house("curve")
        carol, writer = curve(house), curve(house)
        carol.send(subscribe(b"t"))
        carol.client.stream.stop_reading()
        for n in range(300):
            writer.send(publish(b"t", b"%03d" % n + b"." * 90) * 10)
        house.pump()
        received = b""
        for _ in range(200):
            carol.client.stream.read(on=False)
            received += carol.take()
            house.pump(4)
        assert received == b"".join(publish(b"t", b"%03d" % n + b"." * 90) * 10 for n in range(300))

    def test_the_end_sends_queued_messages_first(self) -> None:
        house = self.house("curve")
        house.start()
        carol, writer = curve(house), curve(house)
        carol.send(subscribe(b"t"))
        writer.client.stream.feed(writer.sealed(publish(b"t", b"z") * 240))
        house.turn()
        writer.client.stream.feed(writer.sealed(publish(b"t", b"z") * 240))
        house.broker.stopService()
        house.pump(20)
        assert carol.take() == publish(b"t", b"z") * 480
        assert carol.closed

    def test_half_a_message_has_a_deadline_and_is_charged(self) -> None:
        house = self.house("curve", frame_seconds=5)
        house.start()
        carol = curve(house)
        before = house.broker.memory.used
        carol.send(b"\x01\x00" + b"\x03" + (10_000).to_bytes(8, "big") + b"t" * 10_000)
        assert house.broker.memory.used >= before + 10_000
        house.advance(7)
        assert carol.closed
        assert house.broker.counters.refusals == {("spot", "frame-timeout"): 1}
        carol.client.stream.lose()
        house.pump(3)
        assert house.broker.memory.used <= before

    def test_half_a_message_has_a_deadline_at_the_memory_bound(self) -> None:
        house = self.house("curve", frame_seconds=5)
        house.start()
        carol = curve(house)
        # Whole frames of a message that goes on.
        carol.send(b"\x03" + (5_000).to_bytes(8, "big") + b"t" * 5_000)
        house.broker.memory.reconfigure({"max-memory": house.broker.memory.used + 1})
        carol.send(b"\x03" + (1_000).to_bytes(8, "big") + b"t" * 1_000)
        assert carol.client.stream.paused
        house.advance(7)
        assert carol.closed
        assert house.broker.counters.refusals == {("spot", "memory"): 1}

    def test_half_a_message_waits_for_memory_with_whole_boxes_behind_it(self) -> None:
        house = self.house("curve")
        house.start()
        carol = curve(house)
        carol.send(b"\x01\x00")
        boxes = carol.sealed(b"\x03" + (5_000).to_bytes(8, "big") + b"t" * 5_000)
        carol.client.send(boxes[:4_500])
        house.broker.memory.reconfigure({"max-memory": house.broker.memory.used + 1})
        carol.client.send(boxes[4_500:])
        assert carol.client.stream.paused

    def test_a_client_with_half_a_message_can_be_evicted(self) -> None:
        house = self.house("curve")
        house.start()
        carol = curve(house)
        boxes = carol.sealed(b"\x01\x00\x03" + (5_000).to_bytes(8, "big") + b"t" * 5_000)
        carol.client.send(boxes[:4_500])
        carol.client.send(boxes[4_500:])
        largest = house.broker.memory.largest()
        assert largest is not None
        assert largest.held > 5_000
        largest.evict("memory bound")
        assert carol.closed
        assert not house.broker.memory.holders

    def test_half_a_handshake_has_a_deadline(self) -> None:
        house = self.house("curve", handshake_seconds=3)
        client = house.connect("spot")
        client.send(b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(47) + b"\x04\xc8\x05HELLO")
        house.advance(3.5)
        assert client.closed

    def test_a_frame_over_the_limit_closes(self) -> None:
        house = self.house("curve", max_message=1000)
        carol = curve(house)
        carol.send(publish(b"t", b"x" * 1001))
        assert carol.closed
        assert house.broker.counters.refusals == {("spot", "too-large"): 1}
        carol = curve(house)
        carol.send(publish(b"t", b"x" * 1000))
        assert not carol.closed

    def test_boxes_that_are_repeated_reordered_or_changed_close(self) -> None:
        house = self.house("curve")
        for n in range(4):
            carol = curve(house)
            first, second = carol.sealed(QUERY), carol.sealed(QUERY)
            bad = (
                first + first,
                second + first,
                first[:-1] + bytes((first[-1] ^ 1,)),
                b"\0\x22" + b"\7MESSAGE" + bytes(26),
            )[n]
            carol.client.send(bad)
            assert carol.closed
        assert house.broker.counters.refusals == {("spot", "curve"): 4}

    def test_a_session_belongs_to_the_key(self) -> None:
        house = self.house("curve,null", curve_clients={"*": ""})
        carol = curve(house, identity=b"desk")
        carol.send(subscribe(b"t"))
        carol.client.stream.lose()
        writer = curve(house, EVE)
        writer.send(publish(b"t", b"for carol"))
        thief = curve(house, EVE, identity=b"desk")
        anonymous = house.connect("spot")
        anonymous.send(ready(b"DEALER", b"desk"))
        house.pump()
        assert thief.take() == b""
        assert b"for carol" not in anonymous.take()
        again = curve(house, identity=b"desk")
        house.pump()
        assert again.take() == publish(b"t", b"for carol")

    def test_a_key_that_is_no_longer_listed_is_refused_after_a_reload(self) -> None:
        house = self.house("curve")
        listener = house.listeners["spot"]
        house.start()
        carol = curve(house)
        listener.reconfigure({**listener.settings})
        house.advance(1)
        assert not carol.closed
        listener.reconfigure({**listener.settings, "curve-clients": {}})
        with pytest.raises(ZmtpError):
            curve(house)
        house.advance(1.5)
        assert carol.closed

    def test_settings_that_fail_at_a_reload_change_nothing(self) -> None:
        house = self.house("curve")
        lines = logged(self)
        listener = house.listeners["spot"]
        listener.reconfigure({**listener.settings, "curve-secret-file": None})
        assert curve(house).done
        assert [line for line in lines if "clients use the previous settings" in line]


class HandshakeTests(SynchronousTestCase):
    """The commands of CURVE, changed in any way"""

    def test_a_handshake_between_both_sides(self) -> None:
        client, server = CurveClient(CAROL, SERVER.public), CurveServer(SERVER)
        initiate = client.initiate(server.welcome(client.hello()), b"mine")
        assert server.initiated(initiate) == b"mine"
        assert server.client_key == CAROL.public
        assert client.accepted(server.ready(b"yours")) == b"yours"

    def test_sizes_are_those_of_rfc_26(self) -> None:
        client, server = CurveClient(CAROL, SERVER.public), CurveServer(SERVER)
        hello = client.hello()
        welcome = server.welcome(hello)
        initiate = client.initiate(welcome, b"")
        assert [len(encode_command(one)) - 2 for one in (hello, welcome)] == [200, 168]
        assert 1 + len(initiate.name) + len(initiate.data) == 257

    @given(st.data())
    def test_a_changed_byte_is_refused(self, data: st.DataObject) -> None:
        client, server = CurveClient(CAROL, SERVER.public), CurveServer(SERVER)
        commands: list[Command] = []

        def change(command: Command) -> Command:
            commands.append(command)
            if len(commands) != victim:
                return command
            at = data.draw(st.integers(0, len(command.data) - 1))
            if command.name == b"HELLO" and 2 <= at < 74:
                # The padding is not signed.
                at = 0
            flip = data.draw(st.integers(1, 255))
            changed = bytes((command.data[at] ^ flip,))
            return Command(command.name, command.data[:at] + changed + command.data[at + 1 :])

        victim = data.draw(st.integers(1, 4))
        with pytest.raises(ZmtpError):  # noqa: PT012
            welcome = server.welcome(change(client.hello()))
            initiate = client.initiate(change(welcome), b"metadata")
            server.initiated(change(initiate))
            client.accepted(change(server.ready(b"metadata")))

    @given(st.data())
    def test_a_command_cut_anywhere_is_refused(self, data: st.DataObject) -> None:
        client, server = CurveClient(CAROL, SERVER.public), CurveServer(SERVER)
        hello = client.hello()
        cut = data.draw(st.integers(0, len(hello.data) - 1))
        with pytest.raises(ZmtpError):
            CurveServer(SERVER).welcome(Command(b"HELLO", hello.data[:cut]))
        initiate = client.initiate(server.welcome(hello), b"metadata")
        cut = data.draw(st.integers(0, len(initiate.data) - 1))
        with pytest.raises(ZmtpError):
            server.initiated(Command(b"INITIATE", initiate.data[:cut]))

    def test_a_command_of_another_name_is_refused(self) -> None:
        def other(command: Command) -> Command:
            return Command(b"MESSAGE", command.data)

        client, server = CurveClient(CAROL, SERVER.public), CurveServer(SERVER)
        hello = client.hello()
        with pytest.raises(ZmtpError):
            server.welcome(other(hello))
        welcome = server.welcome(hello)
        with pytest.raises(ZmtpError):
            client.initiate(other(welcome), b"")
        initiate = client.initiate(welcome, b"")
        with pytest.raises(ZmtpError):
            server.initiated(other(initiate))
        assert server.client_key == b""
        server.initiated(initiate)
        with pytest.raises(ZmtpError):
            client.accepted(other(server.ready(b"")))

    def test_a_nonce_that_does_not_increase_is_refused(self) -> None:
        for number, is_accepted in ((1, True), (2, False), (3, False)):
            client, server = CurveClient(CAROL, SERVER.public), CurveServer(SERVER)
            # INITIATE has the nonce 2.
            nonce = number.to_bytes(8, "big")
            signature = client._permanent.make(bytes(64), b"CurveZMQHELLO---" + nonce)
            hello = Command(b"HELLO", client.hello().data[:106] + nonce + signature)
            initiate = client.initiate(server.welcome(hello), b"mine")
            if is_accepted:
                assert server.initiated(initiate) == b"mine"
                continue
            with pytest.raises(ZmtpError):
                server.initiated(initiate)
            assert server.client_key == b""

    def test_a_vouch_for_another_broker_is_refused(self) -> None:
        """A broker to which carol has connected uses her INITIATE at another one."""
        client, server = CurveClient(CAROL, SERVER.public), CurveServer(SERVER)
        client._server = EVE.public
        initiate = client.initiate(server.welcome(client.hello()), b"")
        with pytest.raises(ZmtpError):
            server.initiated(initiate)

    def test_a_key_of_low_order_is_refused(self) -> None:
        with pytest.raises(ZmtpError):
            Box(bytes(32), SERVER.secret)


class Z85Tests(SynchronousTestCase):
    """Z85"""

    def test_the_vector_of_rfc_32(self) -> None:
        key = bytes.fromhex("8E0BDD697628B91D8F245587EE95C5B04D48963F79259877B49CD9063AEAD3B7")
        assert encode_key(key) == "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
        assert decode_key(encode_key(key)) == key

    @given(st.binary(min_size=32, max_size=32))
    def test_any_key(self, key: bytes) -> None:
        assert decode_key(encode_key(key)) == key

    @given(st.binary(min_size=32, max_size=32))
    @example(decode_key("*" + "0" * 39))
    @example(decode_key("*=" + "0" * 38))
    @example(decode_key("a=" * 20))
    def test_any_key_can_be_a_clients(self, key: bytes) -> None:
        text = encode_key(key)
        clients = next(one for one in SETTINGS if one.name == "curve-clients").kind.parse
        assert clients(f"{text}=carol,*=guest") == {text: "carol", "*": "guest"}
        assert clients([f"{text}=a=b", "*"]) == {text: "a=b", "*": ""}

    def test_invalid_keys(self) -> None:
        for text in ("", "a" * 39, "a" * 41, "~" * 40, "#" * 40, "é" * 40):
            with pytest.raises(ValueError, match="expected a CURVE key"):
                decode_key(text)
