"""The order of the commands of PLAIN (spot §2.6, RFC 24), and the form of a login."""

from __future__ import annotations

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.protocols.spot.mechanisms import Login, Mechanism, PlainClient, PlainServer
from pubsub.protocols.spot.zmtp import Command, ZmtpError, encode_command
from tests.unit.fakes import scratch
from tests.unit.spot_security import metadata, secure_house

HELLO = Command(b"HELLO", b"\x03bob\x06sesame")
WELCOME = Command(b"WELCOME")
INITIATE = Command(b"INITIATE", metadata(b"DEALER"))
READY = Command(b"READY", metadata(b"ROUTER"))
ALL = (HELLO, WELCOME, INITIATE, READY, Command(b"ERROR", b"\0"), Command(b"PING", b"\0\0"))
UNEXPECTED = b"\x04\x19\x05ERROR\x12unexpected command"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01PLAIN" + bytes(47)


class PlainOrderTests(SynchronousTestCase):
    """A command in another order is refused"""

    def refused(self, side: Mechanism, *expected: Command, answer: bytes = b"") -> None:
        """Check that ``side`` refuses every command but those that it expects."""
        for command in ALL:
            if command not in expected:
                with pytest.raises(ZmtpError) as problem:
                    side.take(command)
                assert (problem.value.reason, problem.value.answer) == ("no-handshake", answer)

    def test_at_the_server(self) -> None:
        server = PlainServer()
        self.refused(server, HELLO, answer=UNEXPECTED)
        assert server.take(HELLO) == (b"", None)
        assert server.login == Login(b"bob", b"sesame")
        # Until the password is verified.
        self.refused(server, answer=UNEXPECTED)
        assert server.welcome() == encode_command(WELCOME)
        assert server.login is None
        self.refused(server, INITIATE, answer=UNEXPECTED)
        assert server.take(INITIATE) == (b"", INITIATE.data)

    def test_at_the_client(self) -> None:
        client = PlainClient(Login(b"bob", b"sesame"), INITIATE.data)
        assert client.begin() == encode_command(HELLO)
        self.refused(client, WELCOME)
        with pytest.raises(ZmtpError):
            client.take(Command(b"WELCOME", b"x"))
        assert client.take(WELCOME) == (encode_command(INITIATE), None)
        self.refused(client, READY)
        assert client.take(READY) == (b"", READY.data)

    def test_nobody_is_served_without_a_login(self) -> None:
        house = secure_house(scratch(self), "plain")
        client = house.connect("spot")
        client.send(GREETING + encode_command(INITIATE))
        house.turn()
        assert client.take()[64:] == UNEXPECTED
        assert client.closed
        assert house.broker.counters.refusals == {("spot", "no-handshake"): 1}


class LoginTests(SynchronousTestCase):
    """The user and the password in HELLO"""

    def test_both_may_be_empty(self) -> None:
        server = PlainServer()
        server.take(Command(b"HELLO", b"\0\0"))
        assert server.login == Login(b"", b"")

    def test_malformed_ones(self) -> None:
        for data in (b"", b"\x03", b"\x03bob", b"\x03bob\x07sesame", b"\x03bob\x05sesame"):
            server = PlainServer()
            with pytest.raises(ZmtpError) as problem:
                server.take(Command(b"HELLO", data))
            assert problem.value.reason == "malformed-login"
            assert problem.value.answer == b"\x04\x16\x05ERROR\x0fmalformed HELLO"
            assert server.login is None

    def test_it_is_not_shown(self) -> None:
        assert repr(Login(b"bob", b"sesame")) == "Login()"
