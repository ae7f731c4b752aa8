"""Identities of nsd in the shared state: the keys, and the values. Sans-IO.

``i.`` and the hash of a name is an identity. ``o.`` and the id of a history has places of that
history. ``n.`` and such an id is the limit of the offsets that its broker gives to clients, and
with the hash of a name behind it a request for that identity. ``docs/scaling.md`` has the members
of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from pubsub.backplane.positions.number_points import NumberPoint
from pubsub.backplane.positions.shared_position import SharedPosition
from pubsub.backplane.state.entry_format import (
    MalformedEntry,
    decode_members,
    decode_position,
    encode_members,
)
from pubsub.broker.clients.identity_sharing import FormerNumbers, IdentityContent

_VERSION = 1
MAX_VALUE = 512 * 1024
"""Bytes of the largest value."""
_CONTEXT = b"pubsub identity"
_LIMIT = 2**62


def hash_of_name(name: str) -> str:
    """Return the part of the keys that stands for the identity ``name``."""
    return sha256(_CONTEXT + name.encode()).hexdigest()


def identity_key(name: str) -> str:
    """Return the key of an identity."""
    return f"i.{hash_of_name(name)}"


def points_key(log: str) -> str:
    """Return the key of the places of a history."""
    return f"o.{log}"


def limit_key(log: str) -> str:
    """Return the key of the limit of a history."""
    return f"n.{log}"


def claim_key(log: str, name: str) -> str:
    """Return the key of the request for an identity that the broker of ``log`` has."""
    return f"n.{log}.{hash_of_name(name)}"


def is_claim(key: str, log: str) -> bool:
    """Return whether ``key`` is that of a request to the broker of ``log``."""
    return key.startswith(f"n.{log}.")


class KnownNumber(NamedTuple):
    """The position at which a client with ``number`` continues."""

    number: int
    position: SharedPosition


@dataclass(frozen=True, slots=True)
class IdentityEntry:
    """An identity of the broker with the history ``log``.

    ``top`` is the largest number that its clients can have, if that broker has given it up; None
    while it may give more. ``known`` is the place of the number that was requested then. ``ended``
    is true after the end of the identity.
    """

    log: str
    content: IdentityContent
    top: int | None = None
    known: KnownNumber | None = None
    ended: bool = False


class PointsEntry(NamedTuple):
    """Places of a history; ``stopped`` if its broker has stopped in order."""

    points: tuple[NumberPoint, ...]
    stopped: bool = False


class WantedIdentity(NamedTuple):
    """A request for the identity ``name``, whose client continues with the number ``after``."""

    name: str
    after: int


def encode_identity(entry: IdentityEntry) -> bytes:
    """Return the value."""
    content = entry.content
    members: dict[str, object] = {"log": entry.log}
    optional: dict[str, object] = {
        "opened": content.opened,
        "owner": content.owner,
        "channels": sorted(content.channels),
        "shift": content.shift,
        "former": [list(one) for one in content.former],
        "ended": entry.ended,
    }
    members |= {name: value for name, value in optional.items() if value}
    if entry.top is not None:
        members["top"] = entry.top
    if entry.known is not None:
        members["known"] = [entry.known.number, entry.known.position.as_json()]
    return encode_members(_VERSION, members)


def decode_identity(value: bytes) -> IdentityEntry:
    """Return the entry; raises MalformedEntry."""
    found = decode_members(value, _VERSION, MAX_VALUE)
    log, owner, channels = found.get("log"), found.get("owner", ""), found.get("channels", [])
    if not isinstance(log, str) or not isinstance(owner, str) or not _are_texts(channels):
        raise MalformedEntry
    former = tuple(map(_former, _list(found.get("former", []))))
    opened, ended = found.get("opened") is True, found.get("ended") is True
    shift = _number(found.get("shift", 0), -_LIMIT)
    content = IdentityContent(opened, owner, tuple(channels), shift, former)
    top = None if "top" not in found else _number(found["top"])
    known = None
    if "known" in found:
        number, position = _list(found["known"], 2)
        known = KnownNumber(_number(number), decode_position(position))
    return IdentityEntry(log, content, top, known, ended)


def encode_points(entry: PointsEntry) -> bytes:
    """Return the value."""
    points = [[one.offset, one.position.as_json()] for one in entry.points]
    return encode_members(_VERSION, {"points": points, "stopped": entry.stopped})


def decode_points(value: bytes) -> PointsEntry:
    """Return the entry; raises MalformedEntry."""
    found = decode_members(value, _VERSION, MAX_VALUE)
    points = []
    for one in _list(found.get("points")):
        offset, position = _list(one, 2)
        points.append(NumberPoint(_number(offset), decode_position(position)))
    return PointsEntry(tuple(points), found.get("stopped") is True)


def encode_limit(offset: int) -> bytes:
    """Return the value of a limit."""
    return encode_members(_VERSION, {"limit": offset})


def decode_limit(value: bytes) -> int:
    """Return the limit; raises MalformedEntry."""
    return _number(decode_members(value, _VERSION, MAX_VALUE).get("limit"))


def encode_claim(wanted: WantedIdentity) -> bytes:
    """Return the value of a request."""
    return encode_members(_VERSION, wanted._asdict())


def decode_claim(value: bytes) -> WantedIdentity:
    """Return the request; raises MalformedEntry."""
    found = decode_members(value, _VERSION, MAX_VALUE)
    name = found.get("name")
    if not isinstance(name, str):
        raise MalformedEntry
    return WantedIdentity(name, _number(found.get("after"), -_LIMIT))


def _former(found: object) -> FormerNumbers:
    until, log, shift = _list(found, 3)
    if not isinstance(log, str):
        raise MalformedEntry
    return FormerNumbers(_number(until), log, _number(shift, -_LIMIT))


def _are_texts(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def _list(found: object, size: int | None = None) -> Sequence[Any]:
    if not isinstance(found, list) or size not in (None, len(found)):
        raise MalformedEntry
    return found


def _number(found: object, least: int = 0) -> int:
    if type(found) is not int or not least <= found < _LIMIT:
        raise MalformedEntry
    return found
