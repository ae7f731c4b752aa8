"""A blocking publisher for spot, as a DEALER.

PUBLISH is not answered, whatever happens. Messages take effect in order, so the PONG to a PING
shows that all before it have been handled; the list of topics that QUERY brings in the end shows
that they were not refused as a whole: a topic is listed once somebody could publish on it.
"""

from __future__ import annotations

from pubsub.protocols.spot.codec import (
    PUBLISH,
    Query,
    QueryResponse,
    SpotError,
    decode_request,
    encode_request,
)
from pubsub.protocols.spot.scan import publish_stem
from pubsub.protocols.spot.zmtp import (
    GREETING,
    Command,
    FrameLimits,
    Handshake,
    Partial,
    Unit,
    ZmtpError,
    decode,
    encode_message,
    frame_head,
    ping,
    pong,
    ready,
)
from pubsub.wire.blocking_publisher import Address, BlockingPublisher
from pubsub.wire.client_side import ClientSide, PublisherOptions

# A list of topics is one message, with a frame for each.
_LIMITS = FrameLimits(frames=1_000_000)
_MAX_FRAME = _LIMITS.frame
_SHOWN = 3


class SpotPublisher(BlockingPublisher):
    """The sender is the origin of a message, where one is given."""

    protocol = "spot"

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._published: set[bytes] = set()
        self._pings = 0

    def encode(self, topic: str, payload: bytes, sender: bytes | None) -> bytes:
        if len(payload) > _MAX_FRAME:
            raise self.impossible(f"{len(payload)} bytes; {_MAX_FRAME} are the most")
        if self._stream is None:
            self._shake()
        name = topic.encode()
        self._published.add(name)
        if sender is not None:
            return encode_message([b"", PUBLISH, sender, name, payload])
        return publish_stem(name) + frame_head(len(payload)) + payload

    def _shake(self) -> None:
        self.stream.send(GREETING + ready(b"DEALER"))
        handshake = Handshake()
        try:
            while not handshake.done:
                self.stream.receive(lambda data, at: _step(handshake, data, at))
        except ZmtpError as error:
            raise self.refused(f"no spot broker ({error.reason})") from None
        if handshake.socket_type != b"ROUTER":
            raise self.refused("it is no ROUTER")

    def confirm(self, count: int, last: bool) -> None:
        self._pings += 1
        context = self._pings.to_bytes(8, "big")
        self.stream.send(ping(context))
        while Command(b"PONG", context) not in self._unit().commands:
            pass
        if last:
            self._check_topics()

    def _check_topics(self) -> None:
        self.stream.send(encode_request(Query()))
        while True:
            frames = self._unit().frames
            try:
                answer = decode_request(frames) if frames else None
            except SpotError:
                raise self.refused("it answers what is no command") from None
            if isinstance(answer, QueryResponse):
                break
        missing = sorted(self._published - set(answer.topics))
        if missing:
            names = ", ".join(repr(name.decode()) for name in missing[:_SHOWN])
            raise self.refused(
                f"{len(missing)} topics are not listed there, among them {names}; they are not "
                "permitted, or hosted by another broker"
            )

    def _unit(self) -> Unit:
        try:
            unit = self.stream.receive(self._decode)
        except ZmtpError as error:
            raise self.refused(f"it speaks otherwise ({error.reason})") from None
        for command in unit.commands:
            if command.name == b"PING":
                self.stream.send(pong(command))
        return unit

    @staticmethod
    def _decode(data: bytes, at: int) -> tuple[Unit, int] | None:
        unit = decode(data, at, _LIMITS)
        return None if isinstance(unit, Partial) else (unit, unit.end)


def _step(handshake: Handshake, data: bytes, at: int) -> tuple[None, int] | None:
    after, _need = handshake.consume(data, at)
    return None if after == at else (None, after)


def make_publisher(options: PublisherOptions) -> SpotPublisher:
    """See ``ClientSide``."""
    return SpotPublisher(options.address)


CLIENT = ClientSide(make_publisher, columns=("key",))
