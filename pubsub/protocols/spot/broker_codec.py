"""spot: the commands that only brokers of this kind exchange. Sans-IO; ``seeds/spot.md`` §7.7.

They follow an empty delimiter frame, like all commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pubsub.protocols.spot.codec import SpotError
from pubsub.protocols.spot.zmtp import encode_message

CONFIRM, CONFIRMED = b"\x06", b"\x07"
_NUMBER = 8


@dataclass(frozen=True, slots=True)
class Confirm:
    """Confirm the messages published so far, which the sender has counted up to ``number``."""

    number: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The messages after number ``since`` and up to ``number``: ``accepted`` were published."""

    since: int
    number: int
    accepted: int


BrokerCommand: TypeAlias = Confirm | Confirmed


def decode_broker_command(frames: Sequence[bytes]) -> BrokerCommand | None:
    """Return the command in a message, or None if it is another one; raises SpotError."""
    if len(frames) < 2 or frames[0] or frames[1] not in (CONFIRM, CONFIRMED):
        return None
    match frames[1:]:
        case [b"\x06", number] if len(number) == _NUMBER:
            return Confirm(*_numbers(number))
        case [b"\x07", numbers] if len(numbers) == 3 * _NUMBER:
            return Confirmed(*_numbers(numbers))
    raise SpotError


def encode_broker_command(command: BrokerCommand) -> bytes:
    """Return the message."""
    match command:
        case Confirm(number):
            return encode_message([b"", CONFIRM, _encode(number)])
        case Confirmed(since, number, accepted):
            return encode_message([b"", CONFIRMED, _encode(since, number, accepted)])


def _numbers(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + _NUMBER], "big") for at in range(0, len(data), _NUMBER)]


def _encode(*numbers: int) -> bytes:
    return b"".join([number.to_bytes(_NUMBER, "big") for number in numbers])
