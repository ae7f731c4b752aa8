"""The commands between brokers (spot §7.7, §7.8)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.protocols.spot.broker_commands import (
    HistoryPage,
    Read,
    decode_broker_command,
    encode_broker_command,
)
from pubsub.protocols.spot.commands import SpotError
from pubsub.protocols.spot.zmtp import FrameLimits, Unit, decode
from tests.unit.brokers import World, message
from tests.unit.raising import raised


class BrokerCommandTests(SynchronousTestCase):
    """The commands"""

    @given(
        st.builds(Read, st.binary(min_size=1), st.binary(), st.integers(0, 2**64 - 1))
        | st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary())).map(
            lambda rows: HistoryPage(
                b"t", b"e", 1, 2, 3, [a for a, _ in rows], [p for _, p in rows]
            )
        )
    )
    def test_encoded_commands_are_decoded(self, command: Read | HistoryPage) -> None:
        unit = decode(encode_broker_command(command), 0, FrameLimits(frame=2**20, frames=10_000))
        assert isinstance(unit, Unit)
        assert decode_broker_command(unit.frames) == command

    def test_malformed_commands(self) -> None:
        for frames in (
            [b"\x08", b"t", b"e"],
            [b"\x08", b"t", b"e", bytes(7)],
            [b"\x09", b"t", b"e", bytes(24)],
            [b"\x09", b"t", b"e", bytes(24), bytes(8)],
            [b"\x09", b"t", b"e", bytes(23), b""],
        ):
            raised(SpotError, decode_broker_command, [b"", *frames])

    def test_they_are_for_brokers_only(self) -> None:
        world = World()
        house = world.house("b")
        read = message(b"", b"\x08", b"t", b"", bytes(8))
        assert world.client(house, b"DEALER", read).take() == b""
        assert house.broker.counters.refusals == {("spot", "eproto"): 1}
