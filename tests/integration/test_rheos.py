"""rheos over real sockets: formats, takeover, one connection a request, stopping."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.integration.broker import Broker, Start, listen
from tests.integration.rheos_client import CREATE, PUBLISH, SUBSCRIBE, Rheos

FORMATS = [(layout, checksum) for layout in ("spec", "original") for checksum in ("off", "crc32")]


@pytest.fixture
def broker(start: Start) -> Broker:
    return start(*listen("rheos"))


def connect(broker: Broker, client_id: bytes | None = None) -> Rheos:
    """Return a client, with a new id by default."""
    return Rheos(broker.port("rheos")).use(client_id or uuid4().bytes)


@pytest.mark.parametrize(("layout", "checksum"), FORMATS)
def test_a_conversation_in_every_format(start: Start, layout: str, checksum: str) -> None:
    options = [f"--rheos-layout={layout}", f"--rheos-checksum={checksum}"]
    broker = start(*listen("rheos"), *options)
    with connect(broker) as ada, connect(broker) as ben:
        for client in (ada, ben):
            client.use(client.client_id, layout, checksum)
        topic = ada.do(CREATE, b"news")
        assert UUID(bytes=topic).version == 5
        assert ben.do(SUBSCRIBE, b"news") == topic
        longest = 1024 * 1024 - 10 if layout == "original" else 65_535
        for data in (b"hi", b"", bytes(range(256)) * 4, b"x" * longest):
            assert UUID(bytes=ada.do(PUBLISH, b"news", data)).version == 8
            assert ben.message() == (ada.client_id, data)
        many = [b"%d" % number for number in range(3000)]
        ada.send(*[ada.request(PUBLISH, b"news", data) for data in many])
        assert len({ada.acked() for _ in many}) == len(many)
        assert [ben.message()[1] for _ in many] == many
        ada.send(ada.request(CREATE, b"news"), ada.request(7, b""), b"\x00")
        assert [ada.failed() for _ in range(3)] == [True] * 3
        assert ada.at_end()


@pytest.mark.modes
def test_takeover_and_back(broker: Broker) -> None:
    with connect(broker) as ada, connect(broker) as ben:
        ada.do(CREATE, b"news")
        ben.do(SUBSCRIBE, b"news")
        with connect(broker, ben.client_id) as again:
            again.send(again.request(CREATE, b"news"))
            assert again.failed()
            ada.do(PUBLISH, b"news", b"1")
            assert again.message() == (ada.client_id, b"1")
            again.reset()
        # The broker has noticed once messages arrive on the older connection again.
        numbers = iter(range(2, 1_000_000))
        ben.sock.settimeout(0.05)
        while True:
            ada.do(PUBLISH, b"news", b"%d" % next(numbers))
            try:
                assert ben.message()[0] == ada.client_id
                break
            except TimeoutError:
                continue


def test_one_connection_for_each_request(start: Start) -> None:
    broker = start(*listen("rheos"), "--rheos-layout=original")
    me = uuid4().bytes

    def ask(opcode: int, topic: bytes, data: bytes = b"") -> bytes:
        with connect(broker) as client:
            client.use(me, "original")
            client.send(client.request(opcode, topic, data))
            return client.sock.recv(1024)

    assert ask(CREATE, b"client", b"client123")[::17] == b"\xac\x00"
    assert ask(SUBSCRIBE, b"client", b"jhsdgvjhfg")[::17] == b"\xac\x00"
    assert ask(PUBLISH, b"topic:test", b"Hello World")[::17] == b"\xac\x01"
    assert ask(255, b"fail", b"should fail")[::17] == b"\xac\x01"
    # The subscription belongs to the client and follows it to its next connection.
    with connect(broker) as listening, connect(broker) as ada:
        listening.use(me, "original").send(listening.request(CREATE, b"client"))
        assert listening.failed()
        ada.use(ada.client_id, "original").do(PUBLISH, b"client", b"Msg 1")
        assert listening.message() == (ada.client_id, b"Msg 1")


def test_half_a_request_before_a_half_close(broker: Broker) -> None:
    with connect(broker) as ada, connect(broker) as ben:
        ada.do(CREATE, b"news")
        ben.do(SUBSCRIBE, b"news")
        whole = ada.request(PUBLISH, b"news", b"whole")
        ada.send(whole, whole[:-1])
        ada.acked()
        ada.close()
        assert ben.message()[1] == b"whole"
    with connect(broker) as cy:
        cy.send(cy.request(CREATE, b"sport"))
        cy.sock.shutdown(1)
        cy.acked()
        assert cy.at_end()


@pytest.mark.modes
def test_stopping_delivers_accepted_messages(broker: Broker) -> None:
    count = 20_000
    with connect(broker) as ada, connect(broker) as ben:
        ada.do(CREATE, b"news")
        ben.do(SUBSCRIBE, b"news")
        ada.send(*[ada.request(PUBLISH, b"news", b"%05d" % number) for number in range(count)])
        for _ in range(count):
            ada.acked()
        broker.signal()
        assert [ben.message()[1] for _ in range(count)] == [b"%05d" % n for n in range(count)]
        assert ben.at_end()
        assert ada.at_end()
    broker.wait()
    assert broker.totals() == {"published": count, "delivered": count, "dropped": 0, "refused": 0}
