"""The mechanisms of ZMTP (spot §2.6): NULL, PLAIN (RFC 24), CURVE (RFC 26); both sides, sans-IO.

A ``Mechanism`` is one side of one handshake, from the end of the greetings on. The commands:

    NULL      READY in both directions
    PLAIN     client HELLO (user, password), server WELCOME, client INITIATE, server READY
    CURVE     the same names, with other contents (``curve.py``)

INITIATE and READY have the metadata of their side. The server answers ERROR instead if it refuses
the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from pubsub.broker.credentials.curve_keys import KeyPair
from pubsub.protocols.spot.curve import CurveClient, CurveServer
from pubsub.protocols.spot.refusals import MALFORMED_HELLO, READY_EXPECTED, UNEXPECTED_COMMAND
from pubsub.protocols.spot.zmtp import Command, ZmtpError, encode_command, error

if TYPE_CHECKING:
    from pubsub.protocols.spot.curve import CurveTraffic

NULL, PLAIN, CURVE = b"NULL", b"PLAIN", b"CURVE"


@dataclass(frozen=True, slots=True)
class Login:
    """A user and a password that a client has sent; ``repr`` shows neither."""

    user: bytes = field(repr=False)
    password: bytes = field(repr=False)


class Mechanism:
    """One side of a handshake; this one is NULL.

    ``metadata`` is that of this side, encoded, if it connects; None for the server, whose metadata
    depends on the client's.
    """

    name: ClassVar[bytes] = NULL
    login: Login | None = None
    """The user and password of the client, until they are answered (PLAIN)."""
    client_key: bytes = b""
    """The client's permanent public key, when it has proved it (CURVE)."""

    def __init__(self, metadata: bytes | None = None) -> None:
        self.metadata = metadata

    @property
    def is_server(self) -> bool:
        """Whether this side is the server; NULL has none."""
        return False

    def begin(self) -> bytes:
        """Return the bytes that this side sends after the greetings."""
        if self.metadata is None:
            return b""
        return encode_command(Command(b"READY", self.metadata))

    def take(self, command: Command) -> tuple[bytes, bytes | None]:
        """Handle a command; return the reply, and the other side's metadata if it has it.

        Raises ZmtpError.
        """
        if command.name != b"READY":
            raise ZmtpError("no-handshake", error(READY_EXPECTED))
        return b"", command.data

    def ready(self, metadata: bytes) -> bytes:
        """Return the server's last command."""
        return encode_command(Command(b"READY", metadata))

    def traffic(self) -> CurveTraffic | None:
        """Return the encryption of later frames, None if they are not encrypted."""
        return None


class PlainServer(Mechanism):
    """The server's side of PLAIN. ``login`` is to be checked when it is set."""

    name = PLAIN

    def __init__(self) -> None:
        super().__init__()
        self._welcomed = False

    @property
    def is_server(self) -> bool:
        """See ``Mechanism``."""
        return True

    def take(self, command: Command) -> tuple[bytes, bytes | None]:
        """See ``Mechanism``."""
        if self._welcomed and command.name == b"INITIATE":
            return b"", command.data
        if self._welcomed or self.login is not None or command.name != b"HELLO":
            raise ZmtpError("no-handshake", error(UNEXPECTED_COMMAND))
        self.login = _login_of(command.data)
        return b"", None

    def welcome(self) -> bytes:
        """The login is right: return the reply."""
        self.login, self._welcomed = None, True
        return encode_command(Command(b"WELCOME"))


class PlainClient(Mechanism):
    """The client's side of PLAIN."""

    name = PLAIN

    def __init__(self, login: Login, metadata: bytes) -> None:
        super().__init__(metadata)
        self._login = login
        self._welcomed = False

    def begin(self) -> bytes:
        """See ``Mechanism``."""
        user, password = self._login.user, self._login.password
        data = bytes((len(user),)) + user + bytes((len(password),)) + password
        return encode_command(Command(b"HELLO", data))

    def take(self, command: Command) -> tuple[bytes, bytes | None]:
        """See ``Mechanism``."""
        assert self.metadata is not None
        if self._welcomed and command.name == b"READY":
            return b"", command.data
        if self._welcomed or command != Command(b"WELCOME"):
            raise ZmtpError("no-handshake")
        self._welcomed = True
        return encode_command(Command(b"INITIATE", self.metadata)), None


class CurveServerMechanism(Mechanism):
    """The server's side of CURVE, with the permanent key pair ``pair``."""

    name = CURVE

    def __init__(self, pair: KeyPair) -> None:
        super().__init__()
        self._handshake = CurveServer(pair)
        self._welcomed = False

    @property
    def is_server(self) -> bool:
        """See ``Mechanism``."""
        return True

    def take(self, command: Command) -> tuple[bytes, bytes | None]:
        """See ``Mechanism``."""
        if not self._welcomed:
            self._welcomed = True
            return encode_command(self._handshake.welcome(command)), None
        metadata = self._handshake.initiated(command)
        self.client_key = self._handshake.client_key
        return b"", metadata

    def ready(self, metadata: bytes) -> bytes:
        """See ``Mechanism``."""
        return encode_command(self._handshake.ready(metadata))

    def traffic(self) -> CurveTraffic:
        """See ``Mechanism``."""
        return self._handshake.traffic()


class CurveClientMechanism(Mechanism):
    """The client's side of CURVE; ``server`` is the server's permanent public key."""

    name = CURVE

    def __init__(self, pair: KeyPair, server: bytes, metadata: bytes) -> None:
        super().__init__(metadata)
        self._handshake = CurveClient(pair, server)
        self._welcomed = False

    def begin(self) -> bytes:
        """See ``Mechanism``."""
        return encode_command(self._handshake.hello())

    def take(self, command: Command) -> tuple[bytes, bytes | None]:
        """See ``Mechanism``."""
        assert self.metadata is not None
        if self._welcomed:
            return b"", self._handshake.accepted(command)
        self._welcomed = True
        return encode_command(self._handshake.initiate(command, self.metadata)), None

    def traffic(self) -> CurveTraffic:
        """See ``Mechanism``."""
        return self._handshake.traffic()


Mechanisms = Mapping[bytes, Callable[[], Mechanism]]
"""The mechanisms that a side accepts: the name of each, and the maker of its handshake."""
# Without a state, one serves all.
_NULL_SERVER = Mechanism()


def null_server() -> Mechanism:
    """Return the server's side of NULL."""
    return _NULL_SERVER


ONLY_NULL: Mechanisms = {NULL: null_server}


def _login_of(data: bytes) -> Login:
    """Return the user and password in HELLO; raises ZmtpError."""
    found: list[bytes] = []
    for _ in range(2):
        size = data[0] if data else 256
        if len(data) <= size:
            raise ZmtpError("malformed-login", error(MALFORMED_HELLO))
        found.append(data[1 : 1 + size])
        data = data[1 + size :]
    if data:
        raise ZmtpError("malformed-login", error(MALFORMED_HELLO))
    return Login(*found)
