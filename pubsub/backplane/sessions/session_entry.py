"""Sessions in the shared state: the keys, and the values of sessions and of brokers. Sans-IO.

``s.`` and the hash of a client's credentials is a session. ``p.`` and the run of a broker says how
far its clients that are not behind have been given messages. ``x.``, such a run and a hash asks
that broker for a session. ``docs/scaling.md`` has the members of the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from pubsub.backplane.positions.shared_position import SharedPosition
from pubsub.backplane.state.entry_format import (
    MalformedEntry,
    decode_members,
    decode_position,
    encode_members,
)

_VERSION = 1
MAX_VALUE = 128 * 1024
"""Bytes of the largest value; a session with more subscriptions is not shared."""
_CONTEXT = b"pubsub session"


def hash_of(parts: Sequence[bytes]) -> str:
    """Return the hash of the fields that identify a session; some of them are secret."""
    found = sha256(_CONTEXT)
    for part in parts:
        found.update(len(part).to_bytes(4, "big") + part)
    return found.hexdigest()


def session_key(hashed: str) -> str:
    """Return the key of a session."""
    return f"s.{hashed}"


def broker_key(run: str) -> str:
    """Return the key of how far a broker is."""
    return f"p.{run}"


def request_key(run: str, hashed: str) -> str:
    """Return the key of a request for a session of the broker ``run``."""
    return f"x.{run}.{hashed}"


def requested(key: str, run: str) -> str | None:
    """Return the hash of the session that ``key`` requests from ``run``, if it does."""
    beginning = request_key(run, "")
    return key[len(beginning) :] if key.startswith(beginning) else None


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """A session. ``run`` is the broker that has it.

    ``live`` are topics that continue where the broker is; ``behind`` those that continue at one of
    ``positions``, by its number. ``lost`` is true while the client has no connection, ``ended``
    after the end of the session.
    """

    run: str
    live: tuple[str, ...] = ()
    behind: Mapping[str, int] = field(default_factory=dict)
    positions: tuple[SharedPosition, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    lost: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """The positions of the clients of a broker that are not behind; ``stopped`` if it has ended."""

    position: SharedPosition
    stopped: bool = False


def encode_session(entry: SessionEntry) -> bytes:
    """Return the value."""
    members: dict[str, object] = {"run": entry.run}
    if entry.live:
        members["live"] = list(entry.live)
    if entry.behind:
        members["behind"] = dict(entry.behind)
        members["at"] = [one.as_json() for one in entry.positions]
    if entry.notes:
        members["notes"] = dict(entry.notes)
    for name, is_set in (("lost", entry.lost), ("ended", entry.ended)):
        if is_set:
            members[name] = True
    return encode_members(_VERSION, members)


def decode_session(value: bytes) -> SessionEntry:
    """Return the entry; raises MalformedEntry."""
    found = decode_members(value, _VERSION, MAX_VALUE)
    live, behind, notes = found.get("live", []), found.get("behind", {}), found.get("notes", {})
    at = found.get("at", [])
    if not isinstance(live, list) or not isinstance(at, list):
        raise MalformedEntry
    if not isinstance(behind, dict) or not isinstance(notes, dict):
        raise MalformedEntry
    positions = tuple(map(decode_position, at))
    numbers = all(type(one) is int and 0 <= one < len(positions) for one in behind.values())
    if not numbers or not all(isinstance(one, str) for one in (*live, *notes.values())):
        raise MalformedEntry
    run = found.get("run")
    if not isinstance(run, str):
        raise MalformedEntry
    lost, ended = found.get("lost") is True, found.get("ended") is True
    return SessionEntry(run, tuple(live), behind, positions, notes, lost, ended)


def encode_broker(entry: BrokerEntry) -> bytes:
    """Return the value."""
    members: dict[str, object] = {"at": entry.position.as_json()}
    if entry.stopped:
        members["stopped"] = True
    return encode_members(_VERSION, members)


def decode_broker(value: bytes) -> BrokerEntry:
    """Return the entry; raises MalformedEntry."""
    found = decode_members(value, _VERSION, MAX_VALUE)
    return BrokerEntry(decode_position(found.get("at")), found.get("stopped") is True)
