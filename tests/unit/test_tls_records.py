"""Records of a TLS connection: those of one read arrive together, and output leaves together."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from itertools import accumulate, cycle

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.wire.connection import Connection
from pubsub.wire.tls_input import Records
from tests.unit.streams import House
from tests.unit.tls_house import publisher, serve
from tests.unit.tls_streams import V12, V13, TlsClient, over_tls

RECORD = 2**14
SIZES = st.sampled_from([1, 2, 100, RECORD - 1, RECORD, RECORD + 1, 3 * RECORD])
READS = st.sampled_from([1, 1000, RECORD, RECORD + 1, 100_000])
DATA = bytes(range(250)) * 300


def connected(version: ssl.TLSVersion = V13) -> tuple[House, TlsClient]:
    """Return a house, and a client whose protocol receives nothing yet."""
    house = serve(version)
    client = publisher(house)
    assert isinstance(client, TlsClient)
    return house, client


class RecordsTests(SynchronousTestCase):
    """Several records in one read or write"""

    def setUp(self) -> None:
        self.house, self.client = connected()
        self.got: list[bytes] = []
        self.patch(self.client.protocol, "dataReceived", self.got.append)  # type: ignore[no-untyped-call]

    def test_those_of_one_read_are_delivered_together(self) -> None:
        self.client.stream.feed(self.client.records(DATA))
        assert self.got == [DATA]

    def test_a_record_that_is_not_complete_waits(self) -> None:
        data = self.client.records(DATA)
        self.client.stream.feed(data[:-1])
        assert len(self.got) == 1
        self.client.stream.feed(data[-1:])
        assert b"".join(self.got) == DATA
        assert len(self.got) == 2

    def test_very_many_arrive_in_several_ticks(self) -> None:
        sent = bytes(range(200)) * 20
        self.client.stream.feed(b"".join(self.client.records(bytes([one])) for one in sent))
        (first,) = self.got
        assert len(first) <= 1200
        assert self.client.stream.paused
        self.house.pump(10)
        assert b"".join(self.got) == sent
        assert not self.client.stream.paused

    def test_output_is_one_write(self) -> None:
        stream = self.client.stream
        before = len(stream.writes)
        self.client.end.write(DATA)  # type: ignore[no-untyped-call]
        assert len(stream.writes) == before + 1
        assert self.client.take() == DATA

    def test_the_end_comes_behind_them(self) -> None:
        self.client.stream.feed(self.client.records(DATA) + self.closing())
        assert self.got == [DATA]
        assert self.client.protocol.closing

    def closing(self) -> bytes:
        fed: list[bytes] = []
        self.patch(self.client.stream, "feed", fed.append)  # type: ignore[no-untyped-call]
        self.client.end_output()
        del self.client.stream.feed
        return b"".join(fed)


class GreetingTests(SynchronousTestCase):
    """A protocol in which the broker speaks first"""

    def test_it_does_not_hold_the_client_during_the_handshake(self) -> None:
        for version in (V12, V13):
            house = House({"spot": {}})
            house.attach = over_tls(version)
            house.start()
            client = house.connect("spot")
            assert client.take()[:1] == b"\xff"
            assert not client.stream.paused

    def test_what_is_written_when_the_handshake_is_done_comes_behind_it(self) -> None:
        def complete(connection: Connection) -> None:
            connection.stream.write(b"refused")

        self.patch(Connection, "handshakeCompleted", complete)  # type: ignore[no-untyped-call]
        house = House({"spot": {}})
        house.attach = over_tls(V13)
        house.start()
        got = house.connect("spot").take()
        assert got[:1] == b"\xff"
        assert got.endswith(b"refused")


class PieceTests(SynchronousTestCase):
    """Pieces with a bounded number of records"""

    @given(
        st.lists(st.integers(0, 300), min_size=1, max_size=30),
        st.lists(st.integers(1, 400), min_size=1, max_size=20),
        st.integers(1, 7),
    )
    def test_they_end_between_records(
        self, sizes: Sequence[int], reads: Sequence[int], most: int
    ) -> None:
        heads = [b"\x17\x03\x03" + size.to_bytes(2, "big") for size in sizes]
        data = b"".join(head + bytes(size) for head, size in zip(heads, sizes, strict=True))
        ends = {0, *accumulate(5 + size for size in sizes)}
        records, at = Records(), 0
        for read in cycle(reads):
            piece = data[at : at + read]
            before, size = records.begun, records.add(piece, most)
            assert records.begun - before <= most
            if size < len(piece):
                assert records.begun - before == most
                assert at + size in ends
            assert size > 0
            at += size
            if at == len(data):
                break
        assert records.begun == records.whole == len(sizes)
        assert records.partial == 0


class AnySplitTests(SynchronousTestCase):
    """Records of any sizes, in reads of any sizes"""

    @settings(deadline=None, max_examples=60)
    @given(
        st.sampled_from([V12, V13]),
        st.lists(SIZES, min_size=1, max_size=6),
        st.lists(SIZES, min_size=1, max_size=6),
        READS,
    )
    def test_all_arrives(
        self, version: ssl.TLSVersion, sizes: Sequence[int], reads: Sequence[int], read: int
    ) -> None:
        house, client = connected(version)
        got: list[bytes] = []
        protocol, end = client.protocol, client.end
        protocol.dataReceived = got.append  # type: ignore[method-assign, assignment]
        end.bufferSize = max(read, 100)
        sent = [bytes([number + 65]) * size for number, size in enumerate(sizes)]
        data = b"".join(map(client.records, sent))
        at = 0
        for number in range(len(data)):
            size = reads[number % len(reads)]
            client.stream.feed(data[at : at + size])
            at += size
            if at >= len(data) or number > 200:
                break
        client.stream.feed(data[at:])
        house.pump(len(data) // end.bufferSize + 5)
        assert b"".join(got) == b"".join(sent)
        assert max(map(len, got)) <= end.bufferSize
        assert not client.stream.paused
