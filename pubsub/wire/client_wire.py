"""A protocol on the side of its clients, sans-IO: the traits of a wire, and its connections.

Each protocol's ``client.py`` has a subclass of ``ClientWire``, one object for each client, and one
of ``WireConnection``, one object for each connection:

    wire = CafeWire(WireOptions(client_id=b"bob"))
    connection = wire.connect(Role.SUBSCRIBER)
    connection.open()
    send(connection.take_output())
    for event in connection.receive(read()):
        ...

Requests and input append to the output. After each call the caller sends the bytes of
``take_output``, and calls ``wake`` after ``delay`` seconds if that is not None.

A connection publishes or subscribes, never both: a publisher that the broker holds back does not
delay its own deliveries, and all wires behave alike. A client that does both has two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar

from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.errors import InvalidTopicName
from pubsub.kernel import Columns
from pubsub.wire.client_events import ENDS, Interest, Level, Malformed, WireEvent

Headers = Mapping[str, bytes]
Sender = bytes | None
"""The sender that is sent with messages; None unless the wire takes one."""
_ENDS = frozenset(ENDS)
# A read of this many bytes and more is not copied. The copy of a smaller one takes less than a
# batch of its own for the frame that began before it.
_LARGE_READ = 128 * 1024


class Role(Enum):
    """The purpose of a connection."""

    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"


@dataclass(frozen=True, slots=True)
class Traits:
    """The abilities of a wire on which ``pubsub.client`` relies.

    ``level`` is the level that ``confirm`` reaches. ``survives`` if ``WireConnection.session`` lets
    the next connection continue without loss of the messages published in between, also after a
    restart of the broker. ``history`` if a subscription can begin at an offset. ``senders`` and
    ``headers`` can be given to a message that is published. ``unsubscribes`` and ``prefixes`` are
    requests that it has.
    """

    level: Level
    survives: bool = False
    history: bool = False
    senders: bool = False
    headers: bool = False
    unsubscribes: bool = True
    prefixes: bool = False


@dataclass(frozen=True, slots=True)
class UserLogin:
    """A user and a password; ``repr`` does not show the password."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class WireOptions:
    """The options of a client.

    ``values`` has the parsed value of each of the protocol's parameters, by name. ``client_id`` is
    empty if none was given. ``host``, ``port`` and ``secure`` (over TLS) are for protocols that
    name them.
    """

    client_id: bytes = b""
    token: str | None = field(default=None, repr=False)
    values: Mapping[str, Any] = field(default_factory=dict)
    host: str = "localhost"
    port: int = 0
    secure: bool = False
    login: UserLogin | None = None


class ClientWire(ABC):
    """A protocol as one client uses it: checks, and connections that follow one another.

    The constructor raises ConfigurationError for options that the protocol cannot express.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]
    limit: int
    """Bytes of the largest payload."""
    single_topic: str = ""
    """If not empty, a connection subscribes to one topic; the text names the remedy."""

    def __init__(self, options: WireOptions) -> None:
        self.options = options

    def use_address(self, host: str, port: int) -> None:
        """Have the next connection lead to this broker."""
        if (host, port) != (self.options.host, self.options.port):
            self.options = replace(self.options, host=host, port=port)

    def use_token(self, token: str) -> None:
        """Use another token from the next connection on; a wire without one stays without.

        Raises ConfigurationError.
        """
        if self.options.token is not None:
            self.options = replace(self.options, token=token)

    def topic_problem(self, topic: str) -> str:
        """Return why the wire cannot address ``topic``, or an empty text."""
        try:
            topic_name(topic)
        except InvalidTopicName as error:
            return str(error)
        return ""

    def payload_problem(self, columns: Columns) -> str:
        """Return why the wire cannot carry one of these payloads, or an empty text."""
        size, limit = columns.largest, self.limit
        return "" if size <= limit else f"{size} bytes are more than {limit}"

    def envelope_problem(
        self, columns: Columns, sender: bytes | None, headers: Headers | None
    ) -> str:
        """Return why the wire cannot carry this sender or these headers, or an empty text.

        ``columns`` are the payloads that they accompany.
        """
        if sender is not None and not self.traits.senders:
            return "a message's own sender"
        return "headers" if headers and not self.traits.headers else ""

    @abstractmethod
    def connect(self, role: Role, session: object = None) -> WireConnection:
        """Return the client's next connection in this role.

        ``session`` is that of the connection before it, to be resumed, or None.
        """


def text_problem(sender: bytes | None) -> str:
    """Return why a wire with senders in UTF-8 cannot carry ``sender``, or an empty text."""
    try:
        (sender or b"").decode()
    except UnicodeDecodeError:
        return "the sender is not UTF-8"
    return ""


class WireConnection(ABC):
    """One connection. No method fails because of the broker's bytes.

    Topics and payloads given to it have passed the checks of the ``ClientWire``. A publisher has
    ``publish`` and ``confirm``, a subscriber ``subscribe`` and ``unsubscribe``.
    """

    session: object = None
    """The session with which the next connection resumes this one; None if that is not possible."""
    delay: float | None = None
    """Seconds after which ``wake`` should be called, from the last call on."""

    def __init__(self) -> None:
        self.ended = False
        """True after an event of ``ENDS``."""
        self.replies = 0
        """Replies to messages so far, on a wire whose broker replies before the ``Confirmed``."""
        self._output: list[bytes] = []
        self._reported: list[WireEvent] = []
        self._chunks: list[bytes] = []
        self._nbytes = 0
        self._need = 1

    # Output

    def send(self, data: bytes) -> None:
        """Append ``data`` to the output; for subclasses."""
        if data:
            self._output.append(data)

    def take_output(self) -> bytes:
        """Return and remove the bytes to send now."""
        output = self._output
        if not output:
            return b""
        self._output = []
        return output[0] if len(output) == 1 else b"".join(output)

    # Requests

    @abstractmethod
    def open(self, topic: str | None = None) -> list[WireEvent]:
        """Begin, and return ``Opened`` if the wire has no handshake.

        Nothing else is requested before ``Opened``. ``topic`` is the first topic that will be
        published or subscribed to, if one is known.
        """

    def publish(
        self, topic: str, columns: Columns, sender: Sender = None, headers: Headers | None = None
    ) -> None:
        """Publish the payloads of ``columns``, in order; all have ``sender`` and ``headers``.

        Both are None unless the wire takes them. A topic that does not exist is created, if the
        wire has a request for that. ``confirm`` is called sooner or later.
        """
        raise NotImplementedError

    def publish_alike(self, topic: str, payloads: list[bytes]) -> bool:
        """Publish payloads of one size; return False, and do nothing, if there is no short way.

        As ``publish``, but payloads that the wire cannot carry are allowed, and have no short way.
        """
        return False

    def confirm(self) -> None:
        """Have one ``Confirmed`` reported for the messages since the last call."""
        raise NotImplementedError

    def subscribe(self, interest: Interest) -> None:
        """Subscribe; ``Subscribed`` or ``NotSubscribed`` follows, with the same object."""
        raise NotImplementedError

    def unsubscribe(self, interest: Interest) -> bool:
        """End a subscription; return whether ``Unsubscribed`` follows.

        Until then, messages that were on their way may still arrive. A wire without that reply
        drops them itself, or cannot tell them from those of a later subscription.
        """
        raise NotImplementedError

    @abstractmethod
    def ping(self) -> None:
        """Have ``Alive`` reported. A wire without such a request sends one that has a reply."""

    def use_token(self, token: str) -> None:
        """Present another token. A wire without a request for that goes on with the former one."""
        return

    @abstractmethod
    def close(self) -> None:
        """Say goodbye, so that the broker keeps no session. The caller then closes."""

    def wake(self) -> list[WireEvent]:
        """``delay`` seconds have passed."""
        self.delay = None
        events, self._reported = self._reported, []
        return events

    def report(self, event: WireEvent) -> None:
        """Have ``wake`` return ``event`` at once; for subclasses, outside of ``consume``."""
        self._reported.append(event)
        self.delay = 0.0

    # Input

    def receive(self, data: bytes) -> list[WireEvent]:
        """Return the events of ``data``, which follows the earlier input."""
        if self.ended:
            return []
        events: list[WireEvent] = []
        whole, at = data, 0
        if self._chunks or len(data) < self._need:
            self._chunks.append(data)
            self._nbytes += len(data)
            if self._nbytes < self._need:
                return []
        try:
            if self._chunks:
                whole, at = self._join(events)
            if events and _is_over(events):
                end, self._need = 0, 1
            else:
                end, self._need = self.consume(whole, at, events)
        except WireError as error:
            events.append(Malformed(str(error)))
            end = len(whole)
        rest = whole[end:]
        if rest or self._chunks:
            self._chunks, self._nbytes = ([rest] if rest else []), len(rest)
        if _is_over(events):
            self.ended = True
            self._chunks = []
        return events

    def _join(self, events: list[WireEvent]) -> tuple[bytes, int]:
        """Return the input, and the position of its unhandled rest.

        A large read is not copied because of the frame that began before it: that is handled here.
        """
        *before, data = self._chunks
        kept = self._nbytes - len(data)
        # A header, then the frame that it announces.
        for _ in range(2 if kept < _LARGE_READ <= len(data) else 0):
            frame = b"".join((*before, data[: self._need - kept]))
            end, need = self.consume(frame, 0, events)
            if end == len(frame) or _is_over(events):
                return data, end - kept
            if end or not len(frame) < need <= self._nbytes:
                before, data = [frame[end:]], data[len(frame) - kept :]
                break
            self._need = need
        return b"".join((*before, data)), 0

    @abstractmethod
    def consume(self, data: bytes, at: int, events: list[WireEvent]) -> tuple[int, int]:
        """Handle the whole frames of ``data`` from ``at`` on and append their events.

        Returns where the rest begins, and how many bytes of it there must be before it is worth
        another call. Raises WireError for bytes that are not the protocol. Nothing is appended
        after an event of ``ENDS``.
        """


def _is_over(events: list[WireEvent]) -> bool:
    return bool(events) and type(events[-1]) in _ENDS


class WireError(Exception):
    """Bytes that are not the protocol; the text says why, without showing them."""
