"""spot: the commands that only brokers of this kind exchange. Sans-IO; ``seeds/spot.md`` §7.7.

They follow an empty delimiter frame, like all commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pubsub.protocols.spot.commands import SpotError
from pubsub.protocols.spot.zmtp import encode_message

NODE = b"X-Node"
"""The property of READY by which brokers of this kind recognize each other (spot §2.4)."""
EPOCH = b"X-Epoch"
"""The property with which a broker sends the epoch of its history to another (spot §7.7)."""

CONFIRM, CONFIRMED, READ, PAGE = b"\x06", b"\x07", b"\x08", b"\x09"
_COMMANDS = frozenset({CONFIRM, CONFIRMED, READ, PAGE})
_NUMBER = 8


@dataclass(frozen=True, slots=True)
class Confirm:
    """Confirm the messages published so far, which the sender has counted up to ``number``."""

    number: int


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The messages after number ``since`` and up to ``number``: ``accepted`` were published."""

    since: int
    number: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read ``topic`` from ``offset`` of ``epoch`` on. Without an epoch, report where to begin."""

    topic: bytes
    epoch: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """The messages from ``since`` to before ``next`` of a history that goes to ``end``.

    ``epoch`` is empty if the topic is not stored. ``offsets`` has the offset of each payload.
    """

    topic: bytes
    epoch: bytes
    since: int
    next: int
    end: int
    offsets: Sequence[int] = ()
    payloads: Sequence[bytes] = ()


BrokerCommand: TypeAlias = Confirm | Confirmation | Read | HistoryPage


def decode_broker_command(frames: Sequence[bytes]) -> BrokerCommand | None:
    """Return the command in a message, or None if it is another one; raises SpotError."""
    if len(frames) < 2 or frames[0] or frames[1] not in _COMMANDS:
        return None
    match frames[1:]:
        case [b"\x06", number] if len(number) == _NUMBER:
            return Confirm(*_numbers(number))
        case [b"\x07", numbers] if len(numbers) == 3 * _NUMBER:
            return Confirmation(*_numbers(numbers))
        case [b"\x08", topic, epoch, offset] if len(offset) == _NUMBER:
            return Read(topic, epoch, *_numbers(offset))
        case [b"\x09", topic, epoch, numbers, offsets, *payloads]:
            if len(numbers) == 3 * _NUMBER and len(offsets) == _NUMBER * len(payloads):
                since, after, end = _numbers(numbers)
                return HistoryPage(topic, epoch, since, after, end, _numbers(offsets), payloads)
    raise SpotError


def encode_broker_command(command: BrokerCommand) -> bytes:
    """Return the message."""
    match command:
        case Confirm(number):
            return encode_message([b"", CONFIRM, _encode(number)])
        case Confirmation(since, number, accepted):
            return encode_message([b"", CONFIRMED, _encode(since, number, accepted)])
        case Read(topic, epoch, offset):
            return encode_message([b"", READ, topic, epoch, _encode(offset)])
        case HistoryPage(topic, epoch, since, after, end, offsets, payloads):
            numbers = _encode(since, after, end)
            frames = [b"", PAGE, topic, epoch, numbers, _encode(*offsets), *payloads]
            return encode_message(frames)


def _numbers(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + _NUMBER], "big") for at in range(0, len(data), _NUMBER)]


def _encode(*numbers: int) -> bytes:
    return b"".join([number.to_bytes(_NUMBER, "big") for number in numbers])
