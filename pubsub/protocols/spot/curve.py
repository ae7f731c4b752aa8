"""CURVE: the handshake of CurveZMQ and the encryption after it (RFC 26; spot §2.6). Sans-IO.

A key pair is permanent (C, c of the client; S, s of the server) or of one connection (C', c'; S',
s'). The handshake has four commands, of which each side sends two:

    HELLO     client   C', and a box that needs c' and S to make
    WELCOME   server   S' and a cookie, in a box from S to C'
    INITIATE  client   the cookie; C, a vouch that it belongs to C', and the metadata, in a box
                       from C' to S'
    READY     server   the metadata, in a box from S' to C'

Then every frame is the body of a MESSAGE command: a nonce that increases, and a box with a byte of
flags (1 MORE, 2 COMMAND) and the body of the frame. A box is XSalsa20 with Poly1305, and its key
comes from Curve25519, by libsodium through PyNaCl, which is the extra ``curve``.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

from pubsub.broker.credentials.curve_keys import KeyPair, new_key_pair
from pubsub.protocols.spot.zmtp import COMMAND, LONG, MORE, Command, ZmtpError, frame_head

if TYPE_CHECKING:
    from collections.abc import Callable

_KEY, _NONCE, _MAC = 32, 24, 16
_COOKIE = 96
_VERSION = b"\x01\x00"
_HELLO_BYTES, _WELCOME_BYTES = 194, 160
# Before the metadata: C, the nonce of the vouch, the vouch.
_VOUCHED = _KEY + 16 + 64 + _MAC
_MESSAGE = b"\x07MESSAGE"
_HEAD = len(_MESSAGE) + 8
BOX_BYTES = _HEAD + 1 + _MAC
"""Bytes that a MESSAGE command has more than the body of its frame."""
_INNER_MORE, _INNER_COMMAND = 1, 2
# The limit of the boxes of one call: they cost 4 µs each and 1.4 ns a byte, so about 5 ms.
_BUDGET_BOXES, _BYTES_OF_A_BOX = 1000, 4096


class Box:
    """Boxes between two keys, with the key that both sides compute from them."""

    __slots__ = ("_failure", "_key", "_make", "_open")

    def __init__(self, public: bytes, secret: bytes) -> None:
        from nacl import bindings, exceptions

        self._failure: type[Exception] = exceptions.CryptoError
        self._make: Callable[[bytes, bytes, bytes], bytes] = bindings.crypto_box_easy_afternm
        self._open: Callable[[bytes, bytes, bytes], bytes] = bindings.crypto_box_open_easy_afternm
        try:
            self._key = bindings.crypto_box_beforenm(public, secret)
        except exceptions.CryptoError:
            # A public key of low order.
            raise ZmtpError("curve") from None

    def make(self, plain: bytes, nonce: bytes) -> bytes:
        """Return the box of ``plain``."""
        return self._make(plain, nonce, self._key)

    def open(self, box: bytes, nonce: bytes) -> bytes:
        """Return the content of ``box``; raises ZmtpError."""
        try:
            return self._open(box, nonce, self._key)
        except self._failure:
            raise ZmtpError("curve") from None


class CurveServer:
    """The server's side of the handshake; ``pair`` is its permanent key pair.

    ``client_key`` is the client's permanent public key once its INITIATE has been read.
    """

    def __init__(self, pair: KeyPair) -> None:
        self._pair = pair
        self._connection = new_key_pair()
        self._client = b""
        self._cookie = b""
        self._nonce = 0
        self._box: Box | None = None
        self.client_key = b""

    def welcome(self, hello: Command) -> Command:
        """Return the reply to HELLO; raises ZmtpError."""
        data = hello.data
        if hello.name != b"HELLO" or len(data) != _HELLO_BYTES or data[:2] != _VERSION:
            raise ZmtpError("curve")
        self._client, nonce = data[74:106], data[106:114]
        permanent = Box(self._client, self._pair.secret)
        permanent.open(data[114:], b"CurveZMQHELLO---" + nonce)
        self._nonce = int.from_bytes(nonce, "big")
        # Its content does not matter: the connection remembers the state that it would carry.
        self._cookie = secrets.token_bytes(_COOKIE)
        random = secrets.token_bytes(16)
        box = permanent.make(self._connection.public + self._cookie, b"WELCOME-" + random)
        return Command(b"WELCOME", random + box)

    def initiated(self, initiate: Command) -> bytes:
        """Return the metadata in INITIATE; raises ZmtpError."""
        data = initiate.data
        if initiate.name != b"INITIATE" or len(data) < _COOKIE + 8 + _VOUCHED + _MAC:
            raise ZmtpError("curve")
        cookie, nonce = data[:_COOKIE], data[_COOKIE : _COOKIE + 8]
        if not hmac.compare_digest(cookie, self._cookie):
            raise ZmtpError("curve")
        box = Box(self._client, self._connection.secret)
        plain = box.open(data[_COOKIE + 8 :], b"CurveZMQINITIATE" + nonce)
        key, vouch_nonce = plain[:_KEY], plain[_KEY : _KEY + 16]
        vouch = Box(key, self._connection.secret)
        vouched = vouch.open(plain[_KEY + 16 : _VOUCHED], b"VOUCH---" + vouch_nonce)
        if vouched != self._client + self._pair.public:
            raise ZmtpError("curve")
        self._nonce, self._box, self.client_key = _increased(self._nonce, nonce), box, key
        return plain[_VOUCHED:]

    def ready(self, metadata: bytes) -> Command:
        """Return READY."""
        assert self._box is not None
        nonce = (1).to_bytes(8, "big")
        return Command(b"READY", nonce + self._box.make(metadata, b"CurveZMQREADY---" + nonce))

    def traffic(self) -> CurveTraffic:
        """Return the cipher of the frames after the handshake."""
        assert self._box is not None
        return CurveTraffic(self._box, b"CurveZMQMESSAGES", b"CurveZMQMESSAGEC", 2, self._nonce)


class CurveClient:
    """The client's side; ``pair`` is its permanent key pair, ``server`` the server's public key."""

    def __init__(self, pair: KeyPair, server: bytes) -> None:
        self._pair = pair
        self._server = server
        self._connection = new_key_pair()
        self._permanent = Box(server, self._connection.secret)
        self._box: Box | None = None
        self._nonce = 0

    def hello(self) -> Command:
        """Return HELLO."""
        nonce = (1).to_bytes(8, "big")
        signature = self._permanent.make(bytes(64), b"CurveZMQHELLO---" + nonce)
        data = _VERSION + bytes(72) + self._connection.public + nonce + signature
        return Command(b"HELLO", data)

    def initiate(self, welcome: Command, metadata: bytes) -> Command:
        """Return the reply to WELCOME; raises ZmtpError."""
        data = welcome.data
        if welcome.name != b"WELCOME" or len(data) != _WELCOME_BYTES:
            raise ZmtpError("curve")
        plain = self._permanent.open(data[16:], b"WELCOME-" + data[:16])
        server, cookie = plain[:_KEY], plain[_KEY:]
        self._box = Box(server, self._connection.secret)
        random, nonce = secrets.token_bytes(16), (2).to_bytes(8, "big")
        vouch = Box(server, self._pair.secret).make(
            self._connection.public + self._server, b"VOUCH---" + random
        )
        inner = self._pair.public + random + vouch + metadata
        return Command(
            b"INITIATE", cookie + nonce + self._box.make(inner, b"CurveZMQINITIATE" + nonce)
        )

    def accepted(self, ready: Command) -> bytes:
        """Return the metadata in READY; raises ZmtpError."""
        if self._box is None or ready.name != b"READY" or len(ready.data) < 8 + _MAC:
            raise ZmtpError("curve")
        nonce = ready.data[:8]
        self._nonce = int.from_bytes(nonce, "big")
        return self._box.open(ready.data[8:], b"CurveZMQREADY---" + nonce)

    def traffic(self) -> CurveTraffic:
        """Return the cipher of the frames after the handshake."""
        assert self._box is not None
        return CurveTraffic(self._box, b"CurveZMQMESSAGEC", b"CurveZMQMESSAGES", 3, self._nonce)


def _increased(before: int, nonce: bytes) -> int:
    """Return the number of ``nonce``; raises ZmtpError unless it is over ``before``."""
    number = int.from_bytes(nonce, "big")
    if number <= before:
        raise ZmtpError("curve")
    return number


class CurveTraffic:
    """Encrypts the frames of one side and decrypts those of the other.

    ``sending`` and ``receiving`` are the prefixes of their nonces; ``first`` is the next nonce to
    send, ``last`` the last that was received.
    """

    __slots__ = ("_box", "_last", "_next", "_receiving", "_sending")

    def __init__(self, box: Box, sending: bytes, receiving: bytes, first: int, last: int) -> None:
        self._box = box
        self._sending = sending
        self._receiving = receiving
        self._next = first
        self._last = last

    def encrypt(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Encrypt whole frames of ``data`` from ``at`` on; return them and where they end.

        It ends early when this has taken some milliseconds.
        """
        box, prefix, number = self._box, self._sending, self._next
        made: list[bytes] = []
        budget = _BUDGET_BOXES
        while at < len(data) and budget > 0:
            flags, size, body = data[at], data[at + 1], at + 2
            if flags & LONG:
                body = at + 9
                size = int.from_bytes(data[at + 1 : body], "big")
            at = body + size
            inner = bytes((flags & MORE | (_INNER_COMMAND if flags & COMMAND else 0),))
            nonce = number.to_bytes(8, "big")
            number += 1
            made += (
                frame_head(size + BOX_BYTES),
                _MESSAGE,
                nonce,
                box.make(inner + data[body:at], prefix + nonce),
            )
            budget -= 1 + size // _BYTES_OF_A_BOX
        self._next = number
        return b"".join(made), at

    def decrypt(self, data: bytes, at: int, limit: int) -> tuple[bytes, int, int]:
        """Decrypt whole MESSAGE commands of ``data`` from ``at`` on.

        Returns their frames, where they end, and how many bytes from there on the next one needs;
        this is 0 if it ends early, because this has taken some milliseconds. ``limit`` is the
        number of bytes of the largest body. Raises ZmtpError.
        """
        box, prefix, end = self._box, self._receiving, len(data)
        frames: list[bytes] = []
        budget = _BUDGET_BOXES
        while budget > 0:
            if end - at < 2:
                return b"".join(frames), at, 2
            flags, size, body = data[at], data[at + 1], at + 2
            if flags & LONG:
                body = at + 9
                if end < body:
                    return b"".join(frames), at, 9
                size = int.from_bytes(data[at + 1 : body], "big")
            if flags & ~(LONG | COMMAND):
                raise ZmtpError("malformed-frame")
            if size > limit + BOX_BYTES:
                raise ZmtpError("too-large")
            stop = body + size
            if stop > end:
                return b"".join(frames), at, stop - at
            if size < BOX_BYTES or not data.startswith(_MESSAGE, body):
                raise ZmtpError("curve")
            nonce = data[body + len(_MESSAGE) : body + _HEAD]
            self._last = _increased(self._last, nonce)
            plain = box.open(data[body + _HEAD : stop], prefix + nonce)
            inner, length = plain[0], len(plain) - 1
            if inner & ~(_INNER_MORE | _INNER_COMMAND):
                raise ZmtpError("malformed-frame")
            outer = inner & MORE | (COMMAND if inner & _INNER_COMMAND else 0)
            frames += (frame_head(length, outer), plain[1:])
            at = stop
            budget -= 1 + size // _BYTES_OF_A_BOX
        return b"".join(frames), at, 0
