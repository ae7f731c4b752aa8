"""The mechanisms of a listener and of its peers, as the settings say (spot §2.6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from pubsub.broker.credentials.curve_keys import (
    KEY_DIGITS,
    KeyPair,
    check_installed,
    decode_key,
    encode_key,
    key_pair_of,
)
from pubsub.broker.credentials.identity import CURVE as CURVE_PROOF
from pubsub.broker.credentials.identity import Identity
from pubsub.broker.credentials.setting_files import warn_if_readable
from pubsub.errors import ConfigurationError
from pubsub.protocols.spot.mechanisms import (
    CURVE,
    NULL,
    PLAIN,
    CurveClientMechanism,
    CurveServerMechanism,
    Mechanism,
    Mechanisms,
    PlainServer,
    null_server,
)
from pubsub.protocols.spot.peer_url import parse_peer
from pubsub.protocols.spot.zmtp import ZmtpError
from pubsub.settings import FILE, Kind, Setting
from pubsub.small_file import read_regular
from pubsub.wire.peer_address import host_of, is_local, network_of

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener

_NAMES = {"null": NULL, "plain": PLAIN, "curve": CURVE}
ANY_KEY = "*"


class CurveSecret:
    """A secret key that was read from a file; ``repr`` does not show it."""

    __slots__ = ("key",)

    def __init__(self, key: bytes) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CurveSecret) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return "CurveSecret(...)"


def _mechanisms(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    known = ", ".join(_NAMES)
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise ValueError(f"expected one or more of {known}, not {value!r}")
    found = tuple(dict.fromkeys(name.strip() for name in names))
    for name in found:
        if name not in _NAMES:
            raise ValueError(f"expected one or more of {known}, not {name!r}")
    return found


def _secret(value: object) -> CurveSecret | None:
    if isinstance(value, CurveSecret):
        return value
    if not isinstance(value, str):
        raise ValueError("expected the path of a file")
    if not value:
        return None
    path = FILE.parse(value)
    try:
        text = read_regular(path).decode("ascii").strip()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    try:
        secret = CurveSecret(decode_key(text))
    except ValueError:
        raise ValueError(
            f"{path} is not a secret key; make one with `pubsub curve-key FILE`"
        ) from None
    warn_if_readable("curve-secret-file", path)
    return secret


def _pairs(value: object, size: int) -> list[tuple[str, object]]:
    """Return pairs from a table or from texts ``KEY=VALUE``; a KEY of ``size`` may contain =."""
    if isinstance(value, Mapping):
        return list(value.items())
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("expected a table, or a list of KEY=NAME")
    found: list[tuple[str, object]] = []
    for text in texts:
        text = text.strip()
        at = size if text[size : size + 1] == "=" else text.find("=")
        if text:
            found.append((text[:at], text[at + 1 :]) if at >= 0 else (text, ""))
    return found


def _clients(value: object) -> dict[str, str]:
    """Return identities by public key in Z85; ``*`` is any other key."""
    found: dict[str, str] = {}
    for key, name in _pairs(value, KEY_DIGITS):
        if not isinstance(name, str) or not (name or key == ANY_KEY):
            raise ValueError(f"expected the name of an identity for key {key!r}")
        if key != ANY_KEY:
            decode_key(key)
        found[key] = name
    return found


def _peer_keys(value: object) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for peer, key in _pairs(value, 0):
        parse_peer(peer)
        if not isinstance(key, str):
            raise ValueError(f"expected a CURVE key for {peer}")
        found[peer] = decode_key(key)
    return found


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "mechanism",
        Kind("null|plain|curve,...", _mechanisms),
        "null",
        "the mechanisms that clients may use: none, a user and a password, or CURVE keys",
    ),
    Setting(
        "curve-secret-file",
        Kind("FILE", _secret),
        "",
        "a file with the secret key of this broker, written by `pubsub curve-key`",
    ),
    Setting(
        "curve-clients",
        Kind("KEY=IDENTITY,...", _clients),
        "",
        "the identity of each client's public key; *: of any other key, which is its own name "
        "if the identity is empty",
    ),
    Setting(
        "peer-curve-keys",
        Kind("PEER=KEY,...", _peer_keys),
        "",
        "the public key of each peer with which this broker uses CURVE",
    ),
)
"""The settings of this module."""


@lru_cache(maxsize=16)
def _pair(secret: CurveSecret) -> KeyPair:
    return key_pair_of(secret.key)


def server_mechanisms(
    settings: Mapping[str, Any], accept_passwords: Callable[[str], None]
) -> Mechanisms:
    """Return the mechanisms of a listener; ``accept_passwords`` is called if it takes them.

    Raises ConfigurationError.
    """
    found: dict[bytes, Any] = {}
    for name in settings["mechanism"]:
        if name == "null":
            found[NULL] = null_server
        elif name == "plain":
            accept_passwords("mechanism plain")
            found[PLAIN] = PlainServer
        else:
            found[CURVE] = partial(CurveServerMechanism, _own_pair(settings, "mechanism curve"))
    return found


def client_mechanisms(settings: Mapping[str, Any], peer: str, metadata: bytes) -> Mechanisms:
    """Return the mechanism of this broker for ``peer``; raises ConfigurationError."""
    key = settings["peer-curve-keys"].get(peer)
    if key is None:
        return {NULL: partial(Mechanism, metadata)}
    pair = _own_pair(settings, "peer-curve-keys")
    return {CURVE: partial(CurveClientMechanism, pair, key, metadata)}


def _own_pair(settings: Mapping[str, Any], user: str) -> KeyPair:
    secret = settings["curve-secret-file"]
    if secret is None:
        raise ConfigurationError(f"{user} needs curve-secret-file; see `pubsub curve-key`")
    try:
        check_installed()
    except ImportError:
        raise ConfigurationError(
            f"{user} needs PyNaCl; install it with pip install 'pubsub-broker[curve]'"
        ) from None
    return _pair(secret)


def check_peers(settings: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for keys of peers that are not configured, or cannot be used."""
    for peer in settings["peer-curve-keys"]:
        if peer not in settings["peers"]:
            raise ConfigurationError(f"peer-curve-keys: {peer} is not one of the peers")
        client_mechanisms(settings, peer, b"")


def identity_of_key(clients: Mapping[str, str], key: bytes, host: str) -> Identity | None:
    """Return the identity of the client with this public key; None if it is not admitted."""
    text = encode_key(key)
    name = clients.get(text, clients.get(ANY_KEY))
    return None if name is None else Identity(name or text, CURVE_PROOF, host=host)


def check_rate(listener: Listener, mechanism: Mechanism | None, peer: object) -> None:
    """Raise ZmtpError if the address of ``peer`` has done too many handshakes of CURVE."""
    if mechanism is None or mechanism.name != CURVE or not mechanism.is_server:
        return
    if not is_local(peer) and not listener.admit_handshake(network_of(host_of(peer))):
        raise ZmtpError("handshake-rate")


def shown_frame(listener: Listener, frame: bytes) -> bytes:
    """Return the bytes of a malformed frame for events: none if it may have a password.

    A listener that takes passwords may get one before, after and in place of a handshake,
    under any mechanism that the peer has named.
    """
    return b"" if PLAIN.decode().lower() in listener.settings["mechanism"] else frame
