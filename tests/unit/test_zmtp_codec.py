"""The ZMTP codec (spot §2, RFC 37): greeting, READY, frames, commands."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.protocols.spot import zmtp
from pubsub.protocols.spot.zmtp_handshake import Handshake
from tests.vectors import load_vectors

GREETING_BYTES = bytes.fromhex(
    "ff 00 00 00 00 00 00 00 00 7f 03 01 4e 55 4c 4c" + " 00" * 48
)  # fmt: skip
READY_DEALER = bytes.fromhex(
    "04 1c 05 52 45 41 44 59 0b 53 6f 63 6b 65 74 2d 54 79 70 65 00 00 00 06 44 45 41 4c 45 52"
)
WIDE = zmtp.FrameLimits(frame=2**20, frames=100)
commands = st.builds(
    zmtp.Command, st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=1).map(str.encode), st.binary()
)
messages = st.lists(
    st.one_of(st.binary(max_size=20), st.binary(min_size=250, max_size=260)), min_size=1
)


def units(data: bytes, limits: zmtp.FrameLimits = WIDE) -> list[zmtp.Unit]:
    """Return all units of ``data``, which must be complete."""
    found = []
    at = 0
    while at < len(data):
        unit = zmtp.decode(data, at, limits)
        assert isinstance(unit, zmtp.Unit), unit
        found.append(unit)
        at = unit.end
    return found


class FrameTests(SynchronousTestCase):
    """Frames and the messages they make"""

    def test_a_short_frame(self) -> None:
        assert zmtp.encode_message([b"a", b"", b"bc"]) == b"\x01\x01a\x01\x00\x00\x02bc"

    def test_the_longest_short_and_the_shortest_long(self) -> None:
        assert zmtp.frame_head(255) == b"\x00\xff"
        assert zmtp.frame_head(256) == b"\x02\x00\x00\x00\x00\x00\x00\x01\x00"
        assert zmtp.frame_head(256, 1) == b"\x03\x00\x00\x00\x00\x00\x00\x01\x00"

    def test_short_data_may_be_in_a_long_frame(self) -> None:
        (unit,) = units(b"\x03\0\0\0\0\0\0\0\x01a\x02\0\0\0\0\0\0\0\x00")
        assert unit.frames == [b"a", b""]

    @given(st.lists(messages))
    @example([])
    @example([[b""]])
    @example([[b"x" * 255], [b"x" * 256]])
    def test_encoded_units_are_decoded(self, listed: list[list[bytes]]) -> None:
        data = b"".join(map(zmtp.encode_message, listed))
        assert [unit.frames for unit in units(data)] == listed

    @given(messages)
    def test_the_offset_of_the_last_frame(self, frames: list[bytes]) -> None:
        data = zmtp.encode_message(frames)
        (unit,) = units(data)
        rest = zmtp.frame_head(len(frames[-1])) + frames[-1]
        assert data[unit.last :] == rest

    @given(messages, st.binary(max_size=3))
    @example([b""], b"")
    @example([b"x" * 255, b"x" * 256], b"")
    def test_an_incomplete_message_reports_the_bytes_it_needs(
        self, frames: list[bytes], before: bytes
    ) -> None:
        data = before + zmtp.encode_message(frames)
        start = len(before)
        begun: zmtp.Partial | None = None
        for end in range(start, len(data)):
            fresh = zmtp.decode(data[:end], start, WIDE)
            assert isinstance(fresh, zmtp.Partial)
            assert end - start < fresh.need <= len(data) - start
            assert frames[: len(fresh.frames)] == fresh.frames
            resumed = zmtp.decode(data[:end], start, WIDE, begun)
            assert resumed == fresh
            begun = resumed
        assert zmtp.decode(data, start, WIDE, begun) == zmtp.decode(data, start, WIDE)

    @given(messages, commands)
    def test_commands_may_stand_between_frames(
        self, frames: list[bytes], command: zmtp.Command
    ) -> None:
        heads = [zmtp.encode_message([frame, b""])[:-2] for frame in frames]
        data = zmtp.encode_command(command).join([b"", *heads]) + zmtp.encode_message([b"end"])
        first, *rest = units(data, zmtp.FrameLimits(2**20, 1000))
        assert (first.frames, first.commands) == ([], [command])
        ((frames_, between),) = [(unit.frames, unit.commands) for unit in rest]
        assert frames_ == [*frames, b"end"]
        assert between == [command] * (len(frames) - 1)

    @given(st.binary())
    @example(b"")
    @example(b"\x02" + b"\xff" * 8)
    @example(b"\x06" + b"\xff" * 8)
    @example(b"\x04\0")
    @example(b"\x05\x01a")
    @example(b"\x08\0")
    @example(b"\0\x41" + bytes(65))
    @example(b"\x01\0" * 5)
    def test_any_bytes_are_decoded_or_refused(self, data: bytes) -> None:
        try:
            unit = zmtp.decode(data, 0, zmtp.FrameLimits(64, 4))
        except zmtp.ZmtpError:
            return
        if isinstance(unit, zmtp.Unit):
            assert 0 < unit.end <= len(data)
        else:
            assert unit.length <= len(data) < unit.need

    def test_the_bytes_needed_are_counted_from_its_beginning(self) -> None:
        for part, need in ((b"\x00", 2), (b"\x02" + bytes(7), 9), (b"\x00\x03ab", 5)):
            for before in (b"", b"before"):
                found = zmtp.decode(before + part, len(before), WIDE)
                assert isinstance(found, zmtp.Partial)
                assert found.need == need

    def test_limits(self) -> None:
        limits = zmtp.FrameLimits(frame=3, frames=2)
        assert zmtp.decode(b"\x01\x00\x00\x03abc", 0, limits) == zmtp.Unit([b"", b"abc"], [], 2, 7)
        for data, reason in (
            (b"\x00\x04", "too-large"),
            (b"\x02" + b"\xff" * 8, "too-large"),
            (b"\x02\x80" + bytes(6) + b"\x01a", "too-large"),
            (b"\x04\x02\x02P", "malformed-command"),
            (b"\x01\x00\x01\x00\x00\x00", "too-many-frames"),
            (b"\x01\x00\x04\x02\x01A\x00\x00", "too-many-frames"),
        ):
            with pytest.raises(zmtp.ZmtpError) as problem:
                zmtp.decode(data, 0, limits)
            assert problem.value.reason == reason

    def test_malformed_vectors(self) -> None:
        for vector in load_vectors("spot-frames")["malformed"]:
            with pytest.raises(zmtp.ZmtpError) as problem:
                zmtp.decode(bytes.fromhex(vector["hex"]), 0, zmtp.FrameLimits())
            assert problem.value.reason == vector["error"], vector["name"]


class CommandTests(SynchronousTestCase):
    """READY, ERROR, PING and PONG"""

    def test_ready(self) -> None:
        assert zmtp.ready(b"DEALER") == READY_DEALER

    def test_error(self) -> None:
        assert zmtp.error(b"no") == b"\x04\t\x05ERROR\x02no"

    @given(commands)
    def test_encoded_units_are_decoded(self, command: zmtp.Command) -> None:
        (unit,) = units(zmtp.encode_command(command))
        assert (unit.frames, unit.commands) == ([], [command])

    def test_a_pong_has_the_context_of_the_ping(self) -> None:
        data = zmtp.ping(b"context", 10)
        assert data == b"\x04\x0e\x04PING\x00dcontext"
        (unit,) = units(data)
        assert zmtp.pong(unit.commands[0]) == b"\x04\x0c\x04PONGcontext"
        assert zmtp.ping_seconds(unit.commands[0]) == 10

    def test_a_context_has_at_most_sixteen_bytes(self) -> None:
        zmtp.pong(zmtp.Command(b"PING", bytes(18)))
        with pytest.raises(zmtp.ZmtpError):
            zmtp.pong(zmtp.Command(b"PING", bytes(19)))
        with pytest.raises(zmtp.ZmtpError):
            zmtp.pong(zmtp.Command(b"PING", b"\0"))

    @given(st.dictionaries(st.text("abc-", min_size=1).map(str.encode), st.binary()))
    def test_metadata(self, properties: dict[bytes, bytes]) -> None:
        (unit,) = units(zmtp.ready(b"SUB", properties))
        found = zmtp.parse_metadata(unit.commands[0].data)
        assert found == {b"socket-type": b"SUB", **properties}

    def test_a_property_has_one_value(self) -> None:
        dealer = b"\x0bSocket-Type\0\0\0\x06DEALER"
        assert zmtp.parse_metadata(dealer * 2) == {b"socket-type": b"DEALER"}
        for other in (b"\x0bSocket-Type\0\0\0\x03SUB", b"\x0bsocket-type\0\0\0\0"):
            with pytest.raises(zmtp.ZmtpError) as problem:
                zmtp.parse_metadata(dealer + other)
            assert problem.value.reason == "malformed-metadata"

    @given(st.binary())
    def test_any_metadata_is_parsed_or_refused(self, data: bytes) -> None:
        try:
            found = zmtp.parse_metadata(data)
        except zmtp.ZmtpError:
            return
        assert all(found) or not data

    def test_metadata_cut_anywhere_is_refused(self) -> None:
        data = b"\x0bSocket-Type\0\0\0\x06DEALER"
        for end in range(1, len(data)):
            with pytest.raises(zmtp.ZmtpError):
                zmtp.parse_metadata(data[:end])


class HandshakeTests(SynchronousTestCase):
    """The start of a connection, in pieces of any size"""

    def test_greeting(self) -> None:
        assert zmtp.GREETING == GREETING_BYTES

    def complete(self, data: bytes, step: int) -> Handshake:
        """Return a handshake that has consumed all of ``data``."""
        handshake = Handshake()
        at = 0
        for end in range(step, len(data) + step, step):
            need = 0
            while not handshake.done and need <= end - at:
                at, need = handshake.consume(data[:end], at)
                if not need:
                    break
        assert at == len(data)
        assert handshake.done
        return handshake

    def test_a_greeting_may_arrive_in_pieces(self) -> None:
        for step in (1, 7, 64, 65, 1000):
            handshake = self.complete(GREETING_BYTES + READY_DEALER, step)
            assert handshake.socket_type == b"DEALER"
            assert handshake.has_commands

    def test_version_3_0_has_no_commands(self) -> None:
        greeting = GREETING_BYTES[:11] + b"\0" + GREETING_BYTES[12:]
        assert not self.complete(greeting + READY_DEALER, 1000).has_commands

    def test_a_later_minor_version_is_treated_as_3_1(self) -> None:
        greeting = GREETING_BYTES[:10] + b"\x04\0" + GREETING_BYTES[12:]
        assert self.complete(greeting + READY_DEALER, 1000).has_commands

    def test_an_identity_has_at_most_255_bytes(self) -> None:
        for size in (255, 256):
            properties = {b"Identity": bytes(size)}
            ready = zmtp.Command(b"READY", zmtp.encode_metadata(b"DEALER", properties))
            data = GREETING_BYTES + zmtp.encode_command(ready)
            if size == 255:
                assert len(self.complete(data, 1000).metadata[b"identity"]) == 255
                continue
            with pytest.raises(zmtp.ZmtpError) as problem:
                self.complete(data, 1000)
            assert problem.value.reason == "malformed-metadata"
            assert problem.value.answer == b"\x04\x19\x05ERROR\x12malformed metadata"

    def test_unsupported_greetings_are_refused(self) -> None:
        for data, reason in (
            (b"\x01", "not-zmtp"),
            (b"\xff" + bytes(9) + b"\x03", "not-zmtp"),
            (b"\xff" + bytes(8) + b"\x7e\x03", "not-zmtp"),
            (GREETING_BYTES[:10] + b"\x02", "version"),
            (GREETING_BYTES[:12] + b"CURVE" + bytes(47), "mechanism"),
            (GREETING_BYTES + b"\x00\x00", "no-handshake"),
            (GREETING_BYTES + b"\x04\x02\x01X", "no-handshake"),
            (GREETING_BYTES + b"\x04\x07\x05ERROR\0", "refused-by-peer"),
            (GREETING_BYTES + b"\x06\0\0\0\0\0\0\x10\x01", "too-large"),
            (GREETING_BYTES + b"\x01\x00\x01\x00", "too-many-frames"),
        ):
            with pytest.raises(zmtp.ZmtpError) as problem:
                self.complete(data, 1)
            assert problem.value.reason == reason
