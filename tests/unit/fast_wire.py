"""fast packets and tokens made by hand, and a broker with a fast listener."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.interfaces import IStore
from tests.unit.fakes import START, scratch
from tests.unit.streams import Client, ProtocolHouse
from tests.unit.tokens import KEY, OTHER_KEY, token, with_hmac

CREATE, SUBSCRIBE, PUBLISH, MESSAGE = 0x01, 0x02, 0x03, 0x04
UNSUBSCRIBE, KEY_UPDATE, ROTATE_KEY, ERROR = 0x05, 0x06, 0x07, 0x7F
DURABLE, EXCLUSIVE = 0x01, 0x02

BAD_TOKEN, WRONG_KEY, NO_PERMISSION, NO_TOPIC, EXISTS = 1, 2, 3, 4, 5
COLLISION, TOO_LARGE, RATE_LIMITED, ENDED, INVALID = 6, 7, 8, 9, 10

# FNV-1a 32 of b"news".
NEWS = 0x4BC7BC46
# Two names with the id 0x8eac10b3, found by hashing 400,000 names of the form
# place/thing/event/who-N, twenty words each and ten times N from 1 to 5, until two agreed.
ONE, TWIN = "rome/logs/stopped/till-4", "prague/trades/written/web-2"
TWINS = 0x8EAC10B3


def topic_id(name: str | bytes) -> int:
    """Return the FNV-1a 32 of the name; an independent implementation."""
    value = 2166136261
    for byte in name.encode() if isinstance(name, str) else name:
        value = (value ^ byte) * 16777619 % 2**32
    return value


def _short(data: bytes) -> bytes:
    return bytes([len(data)]) + data


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def create(raw: bytes, name: str | bytes = "news", flags: int = 0) -> bytes:
    topic = name.encode() if isinstance(name, str) else name
    return b"\x01" + _short(raw) + _short(topic) + bytes([flags])


def subscribe(raw: bytes, topic: int = NEWS) -> bytes:
    return b"\x02" + _short(raw) + _u32(topic)


def publish(raw: bytes, *payloads: bytes, topic: int = NEWS) -> bytes:
    head = b"\x03" + _short(raw) + _u32(topic)
    return b"".join(head + _u32(len(payload)) + payload for payload in payloads)


def message(*payloads: bytes, topic: int = NEWS) -> bytes:
    return b"".join(b"\x04" + _u32(topic) + _u32(len(p)) + p for p in payloads)


def unsubscribe(raw: bytes, topic: int = NEWS) -> bytes:
    return b"\x05" + _short(raw) + _u32(topic)


def key_update(key: bytes, topic: int = NEWS) -> bytes:
    return b"\x06" + _u32(topic) + _short(key)


def rotate(raw: bytes, key: bytes, topic: int = NEWS) -> bytes:
    return b"\x07" + _short(raw) + _u32(topic) + _short(key)


def error(offending: int, code: int, topic: int = NEWS) -> bytes:
    return b"\x7f" + bytes([offending, code]) + _u32(topic)


def grant(
    *permissions: str, key: str = "k1", sub: str = "ada", secret: bytes = KEY, **claims: object
) -> bytes:
    """Return a token of ``sub`` for ``key``; the default permission is ``*``."""
    permitted = list(permissions) or ["*"]
    whole = {"sub": sub, "queue_key": key, "permissions": permitted, **claims}
    made = token(whole, with_hmac(secret))
    assert len(made) <= 255
    return made


def for_seconds(seconds: float, *permissions: str, **claims: Any) -> bytes:
    """Return a token that expires this long after the clock's start."""
    return grant(*permissions, exp=START + seconds, **claims)


# For ``news`` once OWNER has created it.
OWNER = grant()
READER = grant("subscribe", sub="bob")
WRITER = grant("publish", sub="eve")
# After a rotation to the key k2.
NEW_OWNER = grant(key="k2")
NEW_READER = grant("subscribe", key="k2", sub="bob")
# Refused.
OTHER = grant(key="k2", sub="mal")
FORGED = grant(secret=OTHER_KEY)
KEYLESS = grant(key="")
# The end of a subscription to ``news``.
OVER = error(2, 9)


class Fast(ProtocolHouse):
    """A broker with one fast listener. ``secrets`` are written to files and named in ``[keys]``."""

    served = "fast"

    def __init__(
        self,
        case: SynchronousTestCase,
        also: Mapping[str, Mapping[str, object]] | None = None,
        top: Mapping[str, object] | None = None,
        secrets: Mapping[str, bytes] | None = None,
        store: IStore | None = None,
        **settings: Any,
    ) -> None:
        self._directory = scratch(case)
        keys = {id: self.secret_file(id, key) for id, key in (secrets or {"main": KEY}).items()}
        whole = {"keys": keys, **(top or {})}
        super().__init__(top=whole, also=also, store=store, **settings)

    def secret_file(self, id: str, key: bytes) -> dict[str, object]:
        """Return a table for ``[keys]`` with a secret, or a public key if it looks like one."""
        path = self._directory / id
        path.write_bytes(key)
        path.chmod(0o600)
        kind = "public-key-file" if key.startswith(b"-----") else "secret-file"
        return {kind: str(path)}

    def client(self, sends: bytes = b"", host: str = "192.0.2.1") -> Client:
        """Return a client that has sent ``sends``."""
        client = self.connect("fast", host)
        if sends:
            client.send(sends)
        return client

    def owner(self, flags: int = 0) -> Client:
        """Return a client that has created ``news``."""
        client = self.client(create(OWNER, flags=flags))
        assert client.take() == b""
        return client

    def reader(self, raw: bytes = READER) -> Client:
        """Return a client that has subscribed to ``news``."""
        client = self.client(subscribe(raw))
        assert client.take() == b""
        return client

    def refusals(self) -> dict[str, int]:
        """Return the refusals of the fast listener, by reason."""
        found = self.broker.counters.refusals.items()
        return {reason: count for (name, reason), count in found if name == "fast"}


class FastCase(SynchronousTestCase):
    """Tests with a broker of their own; ``settings`` are those of the fast listener."""

    def house(self, **settings: Any) -> Fast:
        return Fast(self, **settings)

    def answer(self, fast: Fast, sends: bytes) -> bytes:
        """Return the reply to a new client; its connection stays open."""
        client = fast.client(sends)
        answer = client.take()
        assert not client.closed
        return answer
