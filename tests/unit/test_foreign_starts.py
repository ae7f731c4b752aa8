"""Clients of TLS on ports that do not speak it, over every protocol."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.plugin import installed_protocols
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


class PlainPortTests(SynchronousTestCase):
    """Every protocol"""

    def test_the_client_and_the_counters_learn_of_it(self) -> None:
        secret = str(scratch(self) / "secret")
        Path(secret).write_bytes(bytes(range(64)))
        for protocol in installed_protocols():
            for version in (V12, V13):
                house = House({protocol: SETTINGS.get(protocol, {})}, top={"secret-file": secret})
                house.start()
                tls, incoming, hello = client_hello(version)
                client = house.connect(protocol)
                client.send(hello)
                assert client.closed, protocol
                refusals = house.broker.counters.refusals
                assert refusals == {(protocol, "tls-not-served"): 1}
                incoming.write(client.take())
                with pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"):
                    tls.do_handshake()
