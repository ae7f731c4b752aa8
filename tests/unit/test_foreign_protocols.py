"""Clients and listeners of different protocols: the errors name the protocol of the port."""

from __future__ import annotations

from http.client import BadStatusLine, RemoteDisconnected
from itertools import permutations
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import ConnectFailed
from pubsub.client.base_client import Client
from pubsub.client.client_options import read_options
from pubsub.commands import api_client
from pubsub.wire.foreign_protocols import FIRST_BYTES, reply_problem
from tests.unit.api_at import at
from tests.unit.client_runtime import MemoryRuntime, Work
from tests.unit.raising import raised
from tests.unit.streams import House

PROTOCOLS = ("cafe", "nsd", "rheos", "spot")


class ClientTests(SynchronousTestCase):
    """The client library"""

    def failure(self, protocol: str, listener: str) -> str:
        """Return why a publish of a client of ``protocol`` at this listener has failed."""
        runtime = MemoryRuntime(House({name: {} for name in PROTOCOLS}))
        client = Client(runtime, read_options(f"{protocol}://{listener}:1"))
        work: Work[object] = runtime.begin(client.publish("cafe/7", b"x"))
        # nsd waits for the end of a line.
        runtime.advance(15)
        return str(raised(ConnectFailed, work.result))

    def test_the_port_of_another_protocol(self) -> None:
        for protocol, listener in permutations(PROTOCOLS, 2):
            why = f"the port speaks {listener}"
            assert why in self.failure(protocol, listener), (protocol, listener)

    def test_a_connection_that_is_closed_at_once(self) -> None:
        house = House({"nsd": {}})
        runtime = MemoryRuntime(house)
        work: Work[object] = runtime.begin(runtime.client("nsd").publish("a", b"x"))
        assert work.done
        house = House({"nsd": {}})
        runtime = MemoryRuntime(house)
        with patch.object(House, "connect") as connect:
            connect.return_value.take.return_value = b""
            connect.return_value.closed = True
            work = runtime.begin(runtime.client("nsd").publish("a", b"x"))
        assert "as by a port that expects TLS" in str(raised(ConnectFailed, work.result))


class ReplyTests(SynchronousTestCase):
    """The first bytes of servers"""

    def test_replies(self) -> None:
        for data, name in (
            (b"HTTP/1.1 400 Bad Request\r\n", "http"),
            (b"\x15\x03\x03\0\x02\x02\x46", "TLS"),
            (b'{"_class":"ErrorResponse"}', "nsd"),
            (b"\xfe\xca\xff\x01\0\0\0\x07", "cafe"),
            (b"\xac" + bytes(16) + b"\x01", "rheos"),
            (b"\xff" + bytes(8) + b"\x7f\x03\x01NULL", "spot"),
            (b"\x7fG\x0a" + bytes(4), "fast"),
            (b'INFO {"server_id":"x"}', "nats"),
        ):
            for is_tls in (False, True):
                problem = f"the port speaks {name}, not toy"
                assert reply_problem(data[:FIRST_BYTES], "toy", is_tls) == problem
                assert reply_problem(data, name, is_tls) == ""
        assert reply_problem(b"+OK", "toy", False) == ""
        assert reply_problem(b"", "toy", True) == ""

    def test_the_command_does_not_show_the_bytes(self) -> None:
        api = at("http://127.0.0.1:1")
        for error, why in (
            (BadStatusLine("\xfe\xca\xff\x01"), "the port speaks cafe, not http"),
            (BadStatusLine("\x1b[2J"), "the reply is not one of HTTP"),
            (RemoteDisconnected("x"), "as by a port that expects TLS"),
        ):
            with patch("http.client.HTTPConnection.request", side_effect=error):
                text = str(raised(api_client.RequestFailed, api.bounds))
            assert why in text
            assert text.isprintable()
