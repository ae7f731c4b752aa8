"""Clients of TLS on ports that do not speak it, and proxies' headers, over every protocol."""

from __future__ import annotations

import ssl

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.plugin import installed_protocols
from tests.unit import proxy_headers
from tests.unit.fakes import scratch
from tests.unit.streams import House
from tests.unit.tls_streams import V12, V13, client_context

SETTINGS = {"cafe": {"channels": "1:shared"}}


def client_hello(version: ssl.TLSVersion) -> tuple[ssl.SSLObject, ssl.MemoryBIO, bytes]:
    """Return a client, its input, and its first message."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context(version).wrap_bio(incoming, outgoing, server_hostname="broker.example")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return tls, incoming, outgoing.read()
    raise AssertionError("the handshake is done")


def protocol_house(case: SynchronousTestCase, protocol: str) -> House:
    """Return a broker with a listener of this protocol, which has started."""
    secret = scratch(case) / "secret"
    secret.write_bytes(bytes(range(64)))
    house = House({protocol: SETTINGS.get(protocol, {})}, top={"secret-file": str(secret)})
    house.start()
    return house


class ProxyHeaderTests(SynchronousTestCase):
    """The header of a proxy at a listener that does not take it"""

    def test_the_counters_name_it_and_the_client_is_closed(self) -> None:
        # Otherwise its program would take the answer for that to its first request.
        for protocol in installed_protocols():
            for header in (b"PROXY TCP4 192.0.2.9 192.0.2.1 4000 1\r\n", proxy_headers.header()):
                house = protocol_house(self, protocol)
                client = house.connect(protocol)
                client.send(header + b"a request")
                assert client.closed, protocol
                refusals = house.broker.counters.refusals
                assert refusals == {(protocol, "unexpected-proxy-header"): 1}

    def test_the_answer_is_one_of_the_protocol(self) -> None:
        for protocol, answer in (
            ("cafe", b"\xfe\xca\xff\x01\0\0\0\x07"),
            ("nsd", b'{"_class":"ErrorResponse","error":"INVALID REQUEST: [PROXY]"}\n'),
            ("rheos", b"\xac" + bytes(16) + b"\x01"),
            ("fast", b"\x7f\0\n" + bytes(4)),
        ):
            client = protocol_house(self, protocol).connect(protocol)
            client.send(proxy_headers.header())
            assert client.take() == answer, protocol


class PlainPortTests(SynchronousTestCase):
    """Every protocol"""

    def test_the_client_and_the_counters_learn_of_it(self) -> None:
        for protocol in installed_protocols():
            for version in (V12, V13):
                house = protocol_house(self, protocol)
                tls, incoming, hello = client_hello(version)
                client = house.connect(protocol)
                client.send(hello)
                assert client.closed, protocol
                refusals = house.broker.counters.refusals
                assert refusals == {(protocol, "tls-not-served"): 1}
                incoming.write(client.take())
                with pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"):
                    tls.do_handshake()
