"""fast's codec: the packets of ``seeds/vectors/fast-frames.json``, and properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.topic_space.topic_names import fnv1a32
from pubsub.protocols.fast import codec
from pubsub.protocols.fast.codec import (
    PACKETS,
    TYPES,
    ErrorCode,
    FastError,
    Packet,
    decode,
    encode,
    needed,
)
from pubsub.wire.fields import layout
from tests.unit.fast_wire import topic_id
from tests.vectors import frame_of_vector, load_vectors

VECTORS: dict[str, Any] = load_vectors("fast-frames")
MAX_PAYLOAD = 1_048_576
FROM_CLIENT = {0x01, 0x02, 0x03, 0x05, 0x07}

U8S = st.integers(0, 255)
U32S = st.integers(0, 2**32 - 1)
SHORT = st.binary(max_size=255)
ANY_PACKET: st.SearchStrategy[Packet] = st.one_of(
    st.builds(codec.Create, SHORT, SHORT, U8S),
    st.builds(codec.Subscribe, SHORT, U32S),
    st.builds(codec.Publish, SHORT, U32S, st.binary()),
    st.builds(codec.Message, U32S, st.binary()),
    st.builds(codec.Unsubscribe, SHORT, U32S),
    st.builds(codec.KeyUpdate, U32S, SHORT),
    st.builds(codec.RotateKey, SHORT, U32S, SHORT),
    st.builds(codec.Error, U8S, U8S, U32S),
)


def expected_packet(vector: dict[str, Any]) -> Packet:
    """Return the packet of a vector of ``frames``."""
    packet: Packet = frame_of_vector(codec, vector)
    return packet


def judged(data: bytes, limit: int = MAX_PAYLOAD) -> tuple[int, int, int] | None:
    """Return code, offending type and topic id of a fault in ``data``; None if it is valid."""
    try:
        needed(data, 0, limit)
        decode(data)
    except FastError as error:
        return error.code, error.offending, error.topic_id
    return None


class VectorTests(SynchronousTestCase):
    """The seeds' vectors"""

    def test_there_are_vectors_of_every_kind(self) -> None:
        assert {v["type"] for v in VECTORS["frames"]} == {p.__name__ for p in PACKETS.values()}
        assert {v["error"] for v in VECTORS["refused"]} == {7, 10}
        assert VECTORS["incomplete"]

    def test_ids_of_topics(self) -> None:
        for vector in VECTORS["ids"]:
            name = vector["name"]
            assert fnv1a32(name.encode()) == topic_id(name) == vector["id"], name

    def test_packets_decode_and_encode_back(self) -> None:
        for vector in VECTORS["frames"]:
            data, packet = bytes.fromhex(vector["hex"]), expected_packet(vector)
            assert decode(data) == (packet, len(data)), vector["name"]
            assert encode(packet) == data, vector["name"]

    def test_packets_decode_within_other_bytes(self) -> None:
        for vector in VECTORS["frames"]:
            data, packet = bytes.fromhex(vector["hex"]), expected_packet(vector)
            for tail in (b"\x02", b"garbage", b"\xff" * 300):
                found = decode(b"\x02\x00" + data + tail, 2)
                assert found == (packet, 2 + len(data)), vector["name"]

    def test_packets_are_incomplete_before_their_last_byte(self) -> None:
        for vector in VECTORS["frames"]:
            data = bytes.fromhex(vector["hex"])
            for end in range(len(data)):
                assert decode(data[:end]) is None, (vector["name"], end)
                if vector["from"] == "client":
                    assert end < needed(data[:end], 0, MAX_PAYLOAD) <= len(data)

    def test_refused_packets_have_their_code_with_their_last_byte_at_the_latest(self) -> None:
        for vector in VECTORS["refused"]:
            data = bytes.fromhex(vector["hex"])
            wanted = (vector["error"], vector["offending"], vector["topic_id"])
            for tail in (b"", b"\x02", bytes(50)):
                assert judged(data + tail) == wanted, vector["name"]
            for end in range(len(data)):
                assert judged(data[:end]) is None, (vector["name"], end)

    def test_packets_the_broker_sends_are_refused_from_a_client(self) -> None:
        for vector in VECTORS["frames"]:
            verdict = judged(bytes.fromhex(vector["hex"]))
            if vector["from"] == "client":
                assert verdict is None, vector["name"]
            else:
                number = TYPES[type(expected_packet(vector))]
                assert verdict == (ErrorCode.INVALID_REQUEST, number, 0), vector["name"]

    def test_incomplete_packets_need_more(self) -> None:
        for vector in VECTORS["incomplete"]:
            data = bytes.fromhex(vector["hex"])
            assert decode(data) is None, vector["name"]
            assert needed(data, 0, MAX_PAYLOAD) > len(data), vector["name"]


class LayoutTests(SynchronousTestCase):
    """Bytes in the order of the specification"""

    def test_every_packet(self) -> None:
        assert encode(codec.Create(b"tok", b"news", 3)) == b"\x01\x03tok\x04news\x03"
        assert encode(codec.Subscribe(b"tok", 1)) == b"\x02\x03tok\0\0\0\x01"
        assert encode(codec.Publish(b"tok", 258, b"hi")) == b"\x03\x03tok\0\0\x01\x02\0\0\0\x02hi"
        assert encode(codec.Message(258, b"hi")) == b"\x04\0\0\x01\x02\0\0\0\x02hi"
        assert encode(codec.Unsubscribe(b"tok", 1)) == b"\x05\x03tok\0\0\0\x01"
        assert encode(codec.KeyUpdate(1, b"k2")) == b"\x06\0\0\0\x01\x02k2"
        assert encode(codec.RotateKey(b"tok", 1, b"k2")) == b"\x07\x03tok\0\0\0\x01\x02k2"
        assert encode(codec.Error(3, 2, 1)) == b"\x7f\x03\x02\0\0\0\x01"

    def test_values_too_large_for_their_fields(self) -> None:
        for packet in (
            codec.Create(b"t" * 256, b"", 0),
            codec.Subscribe(b"", 2**32),
            codec.KeyUpdate(0, b"k" * 256),
            codec.Error(256, 0, 0),
        ):
            with pytest.raises(OverflowError):
                encode(packet)

    def test_every_field_is_big_endian(self) -> None:
        for packet in PACKETS.values():
            for _name, kind in layout(packet):
                assert "u32 big-endian" in kind.description or "u8" in kind.description


class PropertyTests(SynchronousTestCase):
    """Properties of all packets and all bytes"""

    @given(ANY_PACKET, st.binary(max_size=20), st.binary(max_size=20))
    def test_encoded_packets_are_decoded(self, packet: Packet, before: bytes, after: bytes) -> None:
        data = encode(packet)
        start = len(before)
        assert decode(before + data + after, start) == (packet, start + len(data))

    @given(st.binary(max_size=600))
    @example(b"")
    @example(b"\0")
    @example(b"\x7f")
    @example(b"\x01\xff")
    @example(b"\x03\0" + bytes(8))
    @example(b"\x03\x01t" + bytes(4) + b"\xff" * 4)
    def test_any_bytes_are_packets_or_an_error(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if (problem := judged(data[at:], 100)) is not None:
                assert problem[0] in (ErrorCode.INVALID_REQUEST, ErrorCode.TOO_LARGE)
                assert problem[1] == data[at]
                return
            need = needed(data, at, 100)
            decoded = decode(data, at)
            if decoded is None:
                assert need > len(data) - at
                return
            packet, end = decoded
            assert data[at] in FROM_CLIENT
            assert encode(packet) == data[at:end]
            at = end

    @given(st.lists(ANY_PACKET, max_size=5), st.integers(1, 30))
    def test_packets_in_pieces(self, packets: list[Packet], size: int) -> None:
        data = b"".join(map(encode, packets))
        found, at = [], 0
        for end in range(0, len(data) + size, size):
            while (decoded := decode(data[:end], at)) is not None:
                packet, at = decoded
                found.append(packet)
        assert found == packets
        assert at == len(data)

    @given(st.integers(0, 255), U32S, U32S, st.integers(0, 2**20))
    @example(0, 0, 2**20, 2**20)
    @example(0, 0, 2**20 + 1, 2**20)
    @example(255, 2**32 - 1, 2**32 - 1, 0)
    def test_the_length_alone_shows_that_a_payload_is_too_large(
        self, token: int, topic: int, length: int, limit: int
    ) -> None:
        head = b"\x03" + bytes([token]) + bytes(token) + topic.to_bytes(4) + length.to_bytes(4)
        for end in range(len(head)):
            assert needed(head[:end], 0, limit) <= len(head)
        if length <= limit:
            assert needed(head, 0, limit) == len(head) + length
        else:
            with pytest.raises(FastError) as caught:
                needed(head, 0, limit)
            assert (caught.value.code, caught.value.topic_id) == (ErrorCode.TOO_LARGE, topic)
