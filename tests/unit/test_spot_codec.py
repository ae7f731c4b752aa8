"""spot's commands and runs of publications (spot §3), without a connection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.message_run import MIXED, MessageRun
from pubsub.protocols.spot import codec
from pubsub.protocols.spot.codec import Publish, SpotError, decode_request, encode_request
from pubsub.protocols.spot.scan import (
    StemEncoding,
    encode_run,
    publish_stem,
    scan,
    topic_stem,
)
from pubsub.protocols.spot.zmtp import FrameLimits, Unit, decode, encode_message
from tests.unit.fakes import batch_of

VECTORS = json.loads(
    (Path(__file__).parents[2] / "seeds" / "vectors" / "spot-frames.json").read_text()
)
STEM = b"\x01\x00\x01\x01\x01\x01\x01t"
payloads = st.one_of(
    st.binary(max_size=4), st.sampled_from([b"", b"abc", b"x" * 255, b"y" * 256, b"z" * 300])
)


def frames_of(vector: dict[str, Any]) -> list[bytes]:
    """The frames of a vector's message."""
    data = bytes.fromhex(vector["hex"])
    unit = decode(data, 0, FrameLimits(2**20, 100))
    assert isinstance(unit, Unit)
    assert unit.end == len(data)
    return unit.frames


def from_fields(vector: dict[str, Any]) -> codec.Request:
    """The request that a vector's fields describe."""

    def value(field: object) -> object:
        if isinstance(field, list):
            return [bytes.fromhex(each) for each in field]
        return bytes.fromhex(field) if isinstance(field, str) else field

    made: codec.Request = getattr(codec, vector["type"])(
        **{name: value(field) for name, field in vector["fields"].items()}
    )
    return made


class VectorTests(SynchronousTestCase):
    """seeds/vectors/spot-frames.json"""

    def test_frames_are_decoded_and_encoded(self) -> None:
        for vector in VECTORS["frames"]:
            request = from_fields(vector)
            assert decode_request(frames_of(vector)) == request, vector["name"]
            assert encode_request(request).hex(" ") == vector["hex"], vector["name"]

    def test_other_forms_are_taken(self) -> None:
        for vector in VECTORS["taken"]:
            assert decode_request(frames_of(vector)) == from_fields(vector)

    def test_what_is_no_command(self) -> None:
        for vector in VECTORS["eproto"]:
            with pytest.raises(SpotError):
                decode_request(frames_of(vector))

    @given(st.lists(st.binary(max_size=5), min_size=1))
    @example([b""])
    @example([b"", b""])
    @example([b"\x01"])
    @example([b"\x05", bytes(4)])
    @example([b"\x05", b"\1\0\0\0"])
    @example([b"", b"\x05", b"\1\0\0"])
    def test_any_frames_are_a_command_or_none(self, frames: list[bytes]) -> None:
        try:
            decode_request(frames)
        except SpotError:
            return
        assert (frames[0] or frames[1]) in [b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"]


class ScanTests(SynchronousTestCase):
    """Runs of publications"""

    def test_stems(self) -> None:
        assert publish_stem(b"t") == STEM
        assert topic_stem(b"t") == b"\x01\x01t"

    def test_equal_messages_are_cut_at_once(self) -> None:
        data = (STEM + b"\x00\x02ab") * 5
        run = MessageRun([], MIXED)
        assert scan(b"??" + data, 2, STEM, 100, run) == len(data) + 2
        assert run == MessageRun([b"ab"] * 5, 2)

    def test_lengths_may_differ(self) -> None:
        data = STEM + b"\x00\x02ab" + STEM + b"\x00\x01c"
        run = MessageRun([], MIXED)
        scan(data, 0, STEM, 100, run)
        assert run == MessageRun([b"ab", b"c"], MIXED)

    def test_a_run_goes_on(self) -> None:
        run = MessageRun([b"xy"], 2)
        scan((STEM + b"\x00\x02ab") * 3, 0, STEM, 100, run)
        assert run == MessageRun([b"xy", b"ab", b"ab", b"ab"], 2)
        scan(STEM + b"\x00\x01c", 0, STEM, 100, run)
        assert run == MessageRun([b"xy", b"ab", b"ab", b"ab", b"c"], MIXED)

    def test_no_payload_at_all(self) -> None:
        run = MessageRun([], MIXED)
        scan((STEM + b"\x00\x00") * 4, 0, STEM, 100, run)
        assert (run, run.nbytes) == (MessageRun([b""] * 4, 0), 0)

    def test_it_ends_before_anything_else(self) -> None:
        first = STEM + b"\x00\x02ab"
        for other in (
            STEM,
            STEM + b"\x00",
            STEM + b"\x00\x03ab",
            STEM + b"\x01\x02ab\x00\x00",
            STEM + b"\x04\x02\x01A\x00\x00",
            STEM + b"\x00\x65" + b"x" * 101,
            STEM + b"\x02\0\0\0\0\0\0\x01",
            STEM[:-1] + b"u\x00\x02ab",
            b"\x00\x00",
        ):
            for count in (1, 2, 3, 10):
                run = MessageRun([], MIXED)
                end = scan(first * count + other, 0, STEM, 100, run)
                assert (len(run.payloads), end) == (count, len(first) * count), other

    def test_a_run_may_be_interrupted_in_any_byte(self) -> None:
        message = STEM + b"\x00\x04abcd"
        for index in range(len(message) - 4):
            broken = bytearray(message * 10)
            broken[7 * len(message) + index] ^= 0x40
            run = MessageRun([], MIXED)
            scan(bytes(broken), 0, STEM, 100, run)
            assert len(run.payloads) == 7

    @given(st.lists(payloads), st.integers(0, 20))
    @example([], 0)
    @example([b"", b""], 0)
    @example([b"x" * 255, b"x" * 256], 0)
    @example([b"x" * 256], 1)
    def test_it_finds_what_decoding_finds(self, listed: list[bytes], cut: int) -> None:
        data = b"".join(encode_message([b"", b"\x01", b"t", each]) for each in listed)
        data = data[: len(data) - cut]
        run = MessageRun([], MIXED)
        end = scan(data, 0, STEM, 2**20, run)
        found: list[bytes] = []
        at = 0
        while at < len(data) and isinstance(unit := decode(data, at, FrameLimits()), Unit):
            found.append(unit.frames[-1])
            at = unit.end
        assert (run.payloads, end) == (found, at)
        assert run.nbytes == sum(map(len, found))
        if found:
            sizes = {len(each) for each in found}
            assert run.size == (sizes.pop() if len(sizes) == 1 else MIXED)


class EncodingTests(SynchronousTestCase):
    """Deliveries"""

    @given(st.lists(payloads, min_size=1))
    def test_a_batch_is_encoded_as_its_messages(self, listed: list[bytes]) -> None:
        wanted = b"".join(encode_request(Publish(b"t", each)) for each in listed)
        assert StemEncoding(STEM).encode(batch_of(listed)) == wanted
        assert encode_run(STEM, listed, MIXED) == wanted

    def test_equal_encodings_are_one(self) -> None:
        assert len({StemEncoding(publish_stem(b"t")), StemEncoding(STEM)}) == 1
        assert StemEncoding(STEM) != StemEncoding(topic_stem(b"t"))
