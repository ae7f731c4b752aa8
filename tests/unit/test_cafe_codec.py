"""cafe's codec: every frame of ``seeds/vectors/cafe-frames.json``, and properties of all frames."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.protocols.cafe import codec
from pubsub.protocols.cafe.codec import (
    FRAMES,
    FROM_BROKER,
    HEADER,
    MAX_MESSAGE,
    MAX_PAYLOAD,
    OPCODES,
    CafeError,
    ErrorCode,
    Frame,
    decode,
    encode,
    needed,
    split_frames,
)
from tests.vectors import load_vectors

VECTORS: dict[str, Any] = load_vectors("cafe-frames")
PING = bytes.fromhex("feca2000000000")

U8S = st.integers(0, 255)
U64S = st.integers(0, 2**64 - 1)
NAMES = st.binary(max_size=255)
ANY_FRAME: st.SearchStrategy[Frame] = st.one_of(
    st.builds(codec.HandshakePub, U8S, NAMES),
    st.builds(codec.HandshakeSub, NAMES, NAMES),
    st.builds(codec.HandshakeAck, U8S, U64S),
    st.builds(codec.Disconnect),
    st.builds(codec.Publish, U8S, st.binary()),
    st.builds(codec.Subscribe, U8S),
    st.builds(codec.Unsubscribe, U8S),
    st.builds(codec.Message, U8S, U64S, st.binary()),
    st.builds(codec.Ping),
    st.builds(codec.Pong),
    st.builds(codec.Error, U8S),
)


def expected_frame(vector: dict[str, Any]) -> Frame:
    """Return the frame of a vector of ``frames``."""
    fields: dict[str, Any] = {}
    for name, value in vector["fields"].items():
        if isinstance(value, str):
            value = bytes.fromhex(value)
        elif isinstance(value, list):
            value = bytes(value)
        fields[name] = value
    frame: Frame = getattr(codec, vector["type"])(**fields)
    return frame


def judged(data: bytes, at: int = 0) -> ErrorCode | None:
    """Return the error code of ``data``, as far as the codec can judge, or None."""
    try:
        decoded = decode(data, at)
    except CafeError as error:
        return error.code
    if decoded is not None and type(decoded[0]) in FROM_BROKER:
        return ErrorCode.INVALID_OPCODE
    return None


class VectorTests(SynchronousTestCase):
    """The seeds' vectors"""

    def test_there_are_vectors_of_every_kind(self) -> None:
        assert {v["type"] for v in VECTORS["frames"]} == {f.__name__ for f in FRAMES.values()}
        assert {v["error"] for v in VECTORS["refused"]} >= {1, 3, 5, 6, 7}
        assert VECTORS["incomplete"]

    def test_frames_decode_and_encode_back(self) -> None:
        for vector in VECTORS["frames"]:
            data, frame = bytes.fromhex(vector["hex"]), expected_frame(vector)
            assert decode(data) == (frame, len(data)), vector["name"]
            assert encode(frame) == data, vector["name"]

    def test_frames_decode_within_other_bytes(self) -> None:
        for vector in VECTORS["frames"]:
            data, frame = bytes.fromhex(vector["hex"]), expected_frame(vector)
            end = 3 + len(data)
            for tail in (PING, b"\xfe", b"garbage", b"\xca\xfe\0\0\0\0\0"):
                assert decode(b"\xfe\xca\x20" + data + tail, 3) == (frame, end), vector["name"]

    def test_frames_are_incomplete_before_their_last_byte(self) -> None:
        for vector in VECTORS["frames"]:
            data = bytes.fromhex(vector["hex"])
            for end in range(len(data)):
                assert decode(data[:end]) is None, (vector["name"], end)
                assert needed(data[:end], 0) == (7 if end < 7 else len(data))

    def test_refused_frames_give_their_code(self) -> None:
        for vector in VECTORS["refused"]:
            data = bytes.fromhex(vector["hex"])
            for tail in (b"", PING):
                if data[2] in {OPCODES[frame] for frame in FROM_BROKER} and not data[3]:
                    # Only the server knows that a client sent this; the codec sees no frame.
                    assert judged(data + tail) is not None, vector["name"]
                else:
                    assert judged(data + tail) == vector["error"], vector["name"]

    def test_refused_frames_are_refused_as_early_byte_by_byte(self) -> None:
        for vector in VECTORS["refused"]:
            data = bytes.fromhex(vector["hex"])
            verdicts = [judged(data[:end]) for end in range(len(data) + 1)]
            first = next(end for end, code in enumerate(verdicts) if code is not None)
            assert verdicts[first:] == [verdicts[-1]] * (len(verdicts) - first), vector["name"]
            whole = vector["error"] in (1, 6) or "byte" in vector["name"]
            assert first >= HEADER.size, vector["name"]
            assert whole or first == HEADER.size or vector["error"] == 7, vector["name"]

    def test_the_frame_after_an_unknown_opcode_is_found(self) -> None:
        followed = 0
        for vector in VECTORS["refused"]:
            data = bytes.fromhex(vector["hex"])
            if vector["closes"] or data[2] in FRAMES:
                continue
            with pytest.raises(CafeError) as caught:
                decode(b"\xfe" + data + PING, 1)
            assert caught.value.end == 1 + len(data), vector["name"]
            assert decode(b"\xfe" + data + PING, caught.value.end) == (
                codec.Ping(),
                1 + len(data) + len(PING),
            )
            followed += 1
        assert followed

    def test_an_incomplete_frame_needs_more(self) -> None:
        for vector in VECTORS["incomplete"]:
            data = bytes.fromhex(vector["hex"])
            assert decode(data) is None, vector["name"]
            assert needed(data, 0) > len(data), vector["name"]


class HeaderTests(SynchronousTestCase):
    """Limits of the header, which are too large for the vectors"""

    def test_the_longest_payload_is_accepted(self) -> None:
        frame = codec.Publish(1, b"x" * (MAX_PAYLOAD - 1))
        data = encode(frame)
        assert len(data) == HEADER.size + MAX_PAYLOAD
        assert decode(data) == (frame, len(data))

    def test_the_longest_message_fits_a_message_frame(self) -> None:
        data = encode(codec.Message(1, 2, b"x" * MAX_MESSAGE))
        assert HEADER.unpack_from(data)[2] == MAX_PAYLOAD
        assert decode(data) is not None

    def test_one_byte_more_is_refused_with_the_header(self) -> None:
        header = encode(codec.Publish(1, b"x" * MAX_PAYLOAD))[: HEADER.size]
        assert judged(header[:-1]) is None
        assert judged(header) == ErrorCode.MESSAGE_TOO_LARGE

    def test_magic_is_checked_before_length(self) -> None:
        assert judged(b"\xca\xfe\x20\xff\xff\xff\xff") == ErrorCode.PROTOCOL_VERSION_MISMATCH
        assert judged(b"\xfe\xfe\x20\xff\xff\xff\xff") == ErrorCode.MALFORMED_MESSAGE

    def test_a_value_too_large_for_its_field_overflows(self) -> None:
        for frame in (
            codec.Subscribe(256),
            codec.HandshakeAck(0, 2**64),
            codec.Message(0, -1, b""),
            codec.HandshakePub(0, b"x" * 256),
        ):
            with pytest.raises(OverflowError):
                encode(frame)


class PropertyTests(SynchronousTestCase):
    """All frames, and all bytes"""

    @given(ANY_FRAME, st.binary(max_size=20), st.binary(max_size=20))
    def test_every_frame_is_decoded_as_it_was_encoded(
        self, frame: Frame, before: bytes, after: bytes
    ) -> None:
        data = encode(frame)
        end = len(before) + len(data)
        assert decode(before + data + after, len(before)) == (frame, end)

    @given(st.lists(ANY_FRAME, max_size=8))
    def test_frames_follow_each_other(self, frames: list[Frame]) -> None:
        data = b"".join(map(encode, frames))
        found: list[Frame] = []
        at = 0
        while (decoded := decode(data, at)) is not None:
            frame, at = decoded
            found.append(frame)
        assert found == frames
        assert at == len(data)

    @given(
        st.one_of(
            st.binary(max_size=40),
            st.binary(max_size=40).map(b"\xfe\xca".__add__),
            st.builds(
                lambda opcode, payload: HEADER.pack(0xCAFE, opcode, len(payload)) + payload,
                U8S | st.sampled_from(sorted(FRAMES)),
                st.binary(max_size=30),
            ),
        ),
        st.integers(0, 3),
    )
    @example(b"", 0)
    @example(b"", 3)
    @example(b"\xca\xfe\x20\0\0\0\0", 0)
    @example(b"\xfe\xca\x10\0\0\0\0", 0)
    @example(HEADER.pack(0xCAFE, 0x10, MAX_PAYLOAD), 0)
    @example(HEADER.pack(0xCAFE, 0x10, MAX_PAYLOAD + 1), 0)
    @example(HEADER.pack(0xCAFE, 0xEE, 0), 0)
    def test_any_bytes_are_a_frame_an_error_or_not_enough(self, data: bytes, at: int) -> None:
        error: CafeError | None = None
        try:
            decoded = decode(data, at)
        except CafeError as caught:
            error = caught
        if error is not None:
            assert error.code in (1, 3, 5, 6, 7)
            assert error.end is None or at + HEADER.size <= error.end <= len(data)
            assert (error.end is None) == (
                data[at : at + 2] != b"\xfe\xca" or HEADER.unpack_from(data, at)[2] > MAX_PAYLOAD
            )
        elif decoded is None:
            assert len(data) - at < needed(data, at)
        else:
            frame, end = decoded
            assert encode(frame) == data[at:end]


class SplitTests(SynchronousTestCase):
    """split_frames"""

    @given(
        st.lists(st.builds(codec.Publish, U8S, st.binary(max_size=40)), max_size=20),
        st.integers(1, 100),
    )
    def test_pieces_are_whole_frames_within_the_limit(
        self, frames: list[codec.Publish], limit: int
    ) -> None:
        data = b"".join(map(encode, frames))
        pieces = split_frames(data, limit)
        assert b"".join(pieces) == data
        found: list[list[Frame]] = []
        for piece in pieces:
            found.append([])
            at = 0
            while (decoded := decode(piece, at)) is not None:
                found[-1].append(decoded[0])
                at = decoded[1]
            assert at == len(piece) > 0
            assert len(piece) <= limit or len(found[-1]) == 1
        assert [frame for piece in found for frame in piece] == frames
        for piece, following in zip(pieces, found[1:], strict=False):
            assert len(piece) + len(encode(following[0])) > limit

    def test_a_frame_that_fills_the_limit_exactly_is_not_split(self) -> None:
        data = b"".join(encode(codec.Publish(1, payload)) for payload in (b"ab", b"cd", b"ef"))
        assert split_frames(data, 20) == [data[:20], data[20:]]
        assert split_frames(data, 30) == [data]
        assert split_frames(data, 29) == [data[:20], data[20:]]
        assert split_frames(b"", 10) == []
