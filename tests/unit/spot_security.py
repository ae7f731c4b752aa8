"""Clients of spot that log in with PLAIN or CURVE, in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pubsub.broker.credentials.curve_keys import KeyPair, encode_key, new_key_pair
from pubsub.protocols.spot.curve import CurveTraffic
from pubsub.protocols.spot.mechanisms import (
    CurveClientMechanism,
    Login,
    Mechanism,
    PlainClient,
)
from pubsub.protocols.spot.zmtp import FrameLimits, encode_metadata
from pubsub.protocols.spot.zmtp_handshake import Handshake
from tests.unit.streams import Client, House
from tests.unit.user_files import user_file

SERVER, CAROL, EVE = (new_key_pair() for _ in range(3))
GREETING_BYTES = 64


def secure_house(directory: Path, mechanism: str, **settings: object) -> House:
    """Return a broker with a spot listener, the user bob (sesame) and the key of carol."""
    secret = directory / "key"
    secret.write_text(encode_key(SERVER.secret) + "\n")
    secret.chmod(0o600)
    given: dict[str, Any] = {
        "mechanism": mechanism,
        "curve-secret-file": str(secret),
        "curve-clients": {encode_key(CAROL.public): "carol"},
        **{name.replace("_", "-"): value for name, value in settings.items()},
    }
    top = {"password-file": user_file(directory), **given.pop("top", {})}
    return House({"spot": given}, top=top)


class SecureClient:
    """A client whose handshake has begun; ``done`` when it has the broker's READY."""

    def __init__(self, house: House, mechanism: Mechanism) -> None:
        self.house = house
        self.client: Client = house.connect("spot")
        self.handshake = Handshake({mechanism.name: lambda: mechanism})
        self.traffic: CurveTraffic | None = None
        self._received = b""
        self.client.send(self.handshake.greet())
        self.shake()

    @property
    def done(self) -> bool:
        return self.handshake.done

    @property
    def closed(self) -> bool:
        return self.client.closed

    def shake(self, turns: int = 6) -> None:
        """Exchange commands until nothing more comes."""
        for _ in range(turns):
            self._received += self.client.take()
            while not self.handshake.done:
                at, need = self.handshake.consume(self._received, 0)
                self._received = self._received[at:]
                if output := self.handshake.take_output():
                    self.client.send(output)
                if need and (not at or need > len(self._received)):
                    break
            self.house.turn()
        if self.handshake.done and self.traffic is None:
            assert self.handshake.mechanism is not None
            self.traffic = self.handshake.mechanism.traffic()

    def sealed(self, data: bytes) -> bytes:
        """Return frames as they are sent."""
        boxes, at = b"", 0
        while self.traffic is not None and at < len(data):
            some, at = self.traffic.encrypt(data, at)
            boxes += some
        return data if self.traffic is None else boxes

    def send(self, data: bytes) -> None:
        self.client.send(self.sealed(data))

    def take(self) -> bytes:
        """Return the frames that were received since the last call."""
        self._received += self.client.take()
        if self.traffic is None:
            data, self._received = self._received, b""
            return data
        frames, at, need = b"", 0, 0
        while not need:
            some, at, need = self.traffic.decrypt(self._received, at, FrameLimits().frame * 64)
            frames += some
        self._received = self._received[at:]
        return frames


def metadata(kind: bytes, identity: bytes = b"") -> bytes:
    return encode_metadata(kind, {b"Identity": identity} if identity else None)


def plain(
    house: House,
    user: bytes = b"bob",
    password: bytes = b"sesame",
    kind: bytes = b"DEALER",
    identity: bytes = b"",
) -> SecureClient:
    return SecureClient(house, PlainClient(Login(user, password), metadata(kind, identity)))


def curve(
    house: House,
    pair: KeyPair = CAROL,
    server: bytes = SERVER.public,
    kind: bytes = b"DEALER",
    identity: bytes = b"",
) -> SecureClient:
    return SecureClient(house, CurveClientMechanism(pair, server, metadata(kind, identity)))
