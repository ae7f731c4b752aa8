"""spot's commands (spot §3), without a connection."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.protocols.spot import commands
from pubsub.protocols.spot.commands import SpotError, decode_request, encode_request
from pubsub.protocols.spot.zmtp import FrameLimits, Unit, decode
from tests.vectors import load_vectors

VECTORS = load_vectors("spot-frames")


def frames_of(vector: dict[str, Any]) -> list[bytes]:
    """Return the frames of a vector's message."""
    data = bytes.fromhex(vector["hex"])
    unit = decode(data, 0, FrameLimits(2**20, 100))
    assert isinstance(unit, Unit)
    assert unit.end == len(data)
    return unit.frames


def from_fields(vector: dict[str, Any]) -> commands.Request:
    """Return the request that a vector's fields describe."""

    def value(field: object) -> object:
        if isinstance(field, list):
            return [bytes.fromhex(each) for each in field]
        return bytes.fromhex(field) if isinstance(field, str) else field

    made: commands.Request = getattr(commands, vector["type"])(
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

    def test_other_forms_are_accepted(self) -> None:
        for vector in VECTORS["taken"]:
            assert decode_request(frames_of(vector)) == from_fields(vector)

    def test_invalid_commands(self) -> None:
        for vector in VECTORS["eproto"]:
            with pytest.raises(SpotError):
                decode_request(frames_of(vector))

    @given(st.lists(st.binary(max_size=5), min_size=1))
    def test_any_frames_are_a_command_or_none(self, frames: list[bytes]) -> None:
        try:
            decode_request(frames)
        except SpotError:
            return
        assert (frames[0] or frames[1]) in [b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"]
