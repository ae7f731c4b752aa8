"""rheos's codec: the packets of ``seeds/vectors/rheos-frames.json``, and properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.protocols.rheos import codec
from pubsub.protocols.rheos.codec import (
    LAYOUTS,
    MAX_PAYLOAD,
    NIL,
    Ack,
    Codec,
    Fault,
    Packet,
    Request,
    Response,
    RheosError,
)
from tests.unit import rheos_wire as wire
from tests.unit.rheos_wire import ALICE
from tests.vectors import frame_of_vector, load_vectors

VECTORS: dict[str, Any] = load_vectors("rheos-frames")
CODECS = [Codec(layout, checksum) for layout in LAYOUTS for checksum in (False, True)]
IDS = st.binary(min_size=16, max_size=16)
REQUESTS = st.builds(
    Request, st.integers(0, 2), IDS.filter(lambda i: i != NIL), st.binary(), st.binary()
)
ANSWERS: st.SearchStrategy[Ack | Response] = st.one_of(
    st.builds(Ack, IDS, st.integers(0, 1)), st.builds(Response, IDS, st.binary())
)
ANY_CODEC = st.sampled_from(CODECS)


def codec_of(vector: dict[str, Any]) -> Codec:
    """Return the codec of a vector's options."""
    options = vector["options"]
    return Codec(options.get("layout", "spec"), options.get("checksum") == "crc32")


def expected_packet(vector: dict[str, Any]) -> Packet:
    """Return the packet of a vector of ``frames``."""
    packet: Packet = frame_of_vector(codec, vector)
    return packet


def decoded(coder: Codec, vector: dict[str, Any], data: bytes, at: int = 0) -> object:
    """Return ``data`` decoded by the receiver of the vector's packet."""
    if vector["from"] == "client":
        return coder.decode(data, at)
    return coder.decode_answer(data, at)


def judged(coder: Codec, data: bytes, at: int = 0) -> tuple[str, bool] | None:
    """Return the fault in ``data`` and whether it closes the connection; None if it is valid."""
    try:
        coder.decode(data, at)
    except RheosError as error:
        return error.fault.name, error.end is None
    return None


class VectorTests(SynchronousTestCase):
    """The seeds' vectors"""

    def test_there_are_vectors_of_every_kind_and_option(self) -> None:
        assert {v["type"] for v in VECTORS["frames"]} == {"Request", "Ack", "Response"}
        faults = {"CORRUPTED_DATA", "INVALID_OPERATION", "CORRUPTED_TOPIC"}
        assert {v["error"] for v in VECTORS["refused"]} == faults
        for kind in ("frames", "refused", "incomplete"):
            used = {
                (v["options"].get("layout"), v["options"].get("checksum")) for v in VECTORS[kind]
            }
            assert len(used) == 4, kind

    def test_packets_decode_and_encode_back(self) -> None:
        for vector in VECTORS["frames"]:
            coder, data = codec_of(vector), bytes.fromhex(vector["hex"])
            packet = expected_packet(vector)
            assert decoded(coder, vector, data) == (packet, len(data)), vector["name"]
            assert coder.encode(packet) == data, vector["name"]

    def test_packets_decode_within_other_bytes(self) -> None:
        for vector in VECTORS["frames"]:
            coder, data = codec_of(vector), bytes.fromhex(vector["hex"])
            wanted = (expected_packet(vector), 3 + len(data))
            for tail in (b"\xfa", b"\xac", b"garbage", data):
                found = decoded(coder, vector, b"\xfa\xac\x15" + data + tail, 3)
                assert found == wanted, vector["name"]

    def test_packets_are_incomplete_before_their_last_byte(self) -> None:
        for vector in VECTORS["frames"]:
            coder, data = codec_of(vector), bytes.fromhex(vector["hex"])
            for end in range(len(data)):
                assert decoded(coder, vector, data[:end]) is None, (vector["name"], end)
                if vector["from"] == "client":
                    assert coder.needed(data[:end], 0) == (22 if end < 22 else len(data))

    def test_refused_requests_give_their_fault(self) -> None:
        for vector in VECTORS["refused"]:
            coder, data = codec_of(vector), bytes.fromhex(vector["hex"])
            for before, after in ((b"", b""), (b"\xfa\0", data), (b"\xac", b"garbage")):
                found = judged(coder, before + data + after, len(before))
                assert found == (vector["error"], vector["closes"]), vector["name"]

    def test_refused_requests_are_refused_as_early_byte_by_byte(self) -> None:
        for vector in VECTORS["refused"]:
            coder, data = codec_of(vector), bytes.fromhex(vector["hex"])
            verdicts = [judged(coder, data[:end]) for end in range(len(data) + 1)]
            first = next(end for end, verdict in enumerate(verdicts) if verdict is not None)
            if "magic" in vector["name"]:
                assert first == 1, vector["name"]
            elif "length-" in vector["name"] and vector["closes"]:
                assert first == 22, vector["name"]
            else:
                assert first == len(data), vector["name"]

    def test_the_request_after_one_that_does_not_close_is_found(self) -> None:
        followed = 0
        for vector in VECTORS["refused"]:
            coder, data = codec_of(vector), bytes.fromhex(vector["hex"])
            if vector["closes"]:
                continue
            with pytest.raises(RheosError) as caught:
                coder.decode(b"?" + data + b"!", 1)
            assert caught.value.end == 1 + len(data), vector["name"]
            followed += 1
        assert followed

    def test_an_incomplete_request_needs_more(self) -> None:
        for vector in VECTORS["incomplete"]:
            coder, data = codec_of(vector), bytes.fromhex(vector["hex"])
            assert coder.decode(data) is None, vector["name"]
            assert coder.needed(data, 0) > len(data), vector["name"]


class LimitTests(SynchronousTestCase):
    """Packets that are too large for the vectors"""

    def test_a_body_of_1_mib_is_read(self) -> None:
        data = b"x" * (MAX_PAYLOAD - 10)
        for checksum in (False, True):
            coder = Codec("original", checksum)
            packet = coder.encode(Request(2, ALICE, b"news", data))
            assert coder.decode(packet) == (Request(2, ALICE, b"news", data), len(packet))

    def test_data_of_at_most_65535_bytes_fits_the_specified_layout(self) -> None:
        coder = Codec()
        packet = coder.encode(Request(2, ALICE, b"news", b"x" * 65_535))
        assert packet == wire.raw(2, ALICE, wire.body(b"news", b"x" * 65_535))
        with pytest.raises(OverflowError):
            coder.encode(Request(2, ALICE, b"news", b"x" * 65_536))

    def test_a_client_id_has_16_bytes(self) -> None:
        for coder in CODECS:
            for size in (0, 15, 17):
                with pytest.raises(OverflowError):
                    coder.encode(Request(2, bytes(size), b"news"))

    def test_a_response_over_1_mib_is_refused_before_it_is_read(self) -> None:
        header = b"\x15" + (MAX_PAYLOAD + 1).to_bytes(4, "little") + ALICE
        with pytest.raises(RheosError) as caught:
            Codec().decode_answer(header)
        assert caught.value.fault is Fault.TRANSLATION_ERROR
        assert caught.value.end is None
        whole = wire.response(ALICE, b"x" * MAX_PAYLOAD)
        assert Codec().decode_answer(whole) == (Response(ALICE, whole[21:]), len(whole))


class AnswerTests(SynchronousTestCase):
    """Replies that clients refuse"""

    def faults(self, coder: Codec, data: bytes) -> tuple[Fault, int | None]:
        with pytest.raises(RheosError) as caught:
            coder.decode_answer(data)
        return caught.value.fault, caught.value.end

    def test_another_first_byte(self) -> None:
        for first in (0x00, 0x14, 0x16, 0xAB, 0xFA):
            found = self.faults(Codec(), bytes([first]))
            assert found == (Fault.TRANSLATION_ERROR, None)

    def test_an_unknown_code(self) -> None:
        assert self.faults(Codec(), b"\xac" + ALICE + b"\2") == (Fault.CORRUPTED_DATA, 18)

    def test_a_wrong_checksum(self) -> None:
        packet = bytearray(wire.sealed(b"\xac" + ALICE + b"\0"))
        assert Codec(checksum=True).decode_answer(bytes(packet)) == (Ack(ALICE, 0), 22)
        packet[3] ^= 1
        found = self.faults(Codec(checksum=True), bytes(packet))
        assert found == (Fault.CORRUPTED_DATA, None)

    def test_a_failure_is_the_nil_id(self) -> None:
        assert Codec().failed == b"\xac" + NIL + b"\1"
        assert Codec(checksum=True).failed == wire.sealed(b"\xac" + NIL + b"\1")


class PropertyTests(SynchronousTestCase):
    """Properties of all packets and all bytes"""

    @given(ANY_CODEC, REQUESTS, st.binary(max_size=5))
    def test_requests_round_trip(self, coder: Codec, request: Request, tail: bytes) -> None:
        packet = coder.encode(request)
        assert coder.decode(packet + tail) == (request, len(packet))
        assert coder.needed(packet, 0) == len(packet)

    @given(ANY_CODEC, ANSWERS, st.binary(max_size=5))
    def test_answers_round_trip(self, coder: Codec, answer: Ack | Response, tail: bytes) -> None:
        packet = coder.encode(answer)
        assert coder.decode_answer(packet + tail) == (answer, len(packet))

    @given(ANY_CODEC, st.binary(max_size=60), st.booleans(), st.integers(0, 3))
    @example(Codec("spec", False), b"", False, 0)
    @example(Codec("spec", False), bytes(17) + b"\xff" * 4, True, 0)
    @example(Codec("original", True), bytes(17) + b"\xff" * 6, True, 0)
    @example(Codec("spec", False), b"\xfa" + b"\xff" * 21, False, 0)
    def test_any_bytes_are_a_request_an_error_or_unfinished(
        self, coder: Codec, data: bytes, likely: bool, at: int
    ) -> None:
        if likely:
            data = data[:at] + b"\xfa" + bytes([len(data) % 40, 0, 0, 0]) + data[at:]
        if judged(coder, data, at) is not None:
            return
        found = coder.decode(data, at)
        if found is None:
            assert coder.needed(data, at) > len(data) - at or len(data) - at < 22
        else:
            assert coder.encode(found[0]) == data[at : found[1]]

    @given(ANY_CODEC, st.binary(max_size=60), st.booleans())
    @example(Codec("spec", False), b"", False)
    @example(Codec("spec", True), b"\xac" + bytes(17), False)
    @example(Codec("spec", False), b"\x15" + b"\xff" * 20, False)
    def test_any_bytes_are_an_answer_an_error_or_unfinished(
        self, coder: Codec, data: bytes, likely: bool
    ) -> None:
        if likely:
            data = b"\x15" + bytes([len(data) % 30, 0, 0, 0]) + data
        try:
            found = coder.decode_answer(data)
        except RheosError:
            return
        if found is not None:
            assert coder.encode(found[0]) == data[: found[1]]

    @given(st.sampled_from(list(LAYOUTS)), REQUESTS, st.data())
    def test_a_checksum_finds_every_changed_bit(
        self, layout: str, request: Request, data: st.DataObject
    ) -> None:
        coder = Codec(layout, checksum=True)
        packet = bytearray(coder.encode(request))
        # Changed lengths make it a longer or shorter request; these are not the checksum's.
        at = data.draw(st.sampled_from([0, *range(5, len(packet))]))
        packet[at] ^= 1 << data.draw(st.integers(0, 7))
        assert judged(coder, bytes(packet)) == ("CORRUPTED_DATA", True)
