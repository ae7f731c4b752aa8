"""A blocking publisher for fast.

PUBLISH is not acknowledged, but what is refused is answered, and packets take effect in order: a
request that is sure to be refused, an UNSUBSCRIBE from a topic that cannot be, is answered when
all before it has been done. A listener with ``errors=off`` answers nothing, which ends in an error.
"""

from __future__ import annotations

from struct import Struct

from pubsub.broker.topics import fnv1a32
from pubsub.protocols.fast.codec import (
    PUBLISH,
    TYPES,
    Create,
    Error,
    ErrorCode,
    FastError,
    Unsubscribe,
    decode,
    encode,
)
from pubsub.wire.blocking_publisher import Address, BlockingPublisher, ConnectionBroken
from pubsub.wire.client_side import ClientSide, PublisherOptions, TokenUse

_TAIL = Struct(">II")
_UNSUBSCRIBE = TYPES[Unsubscribe]
_CREATE = TYPES[Create]
# No topic has this id.
_NOWHERE = 0
MAX_TOKEN = 255


class FastPublisher(BlockingPublisher):
    """Every topic needs the queue key that the token holds; what is not there is created.

    The sender is the token's ``sub``.
    """

    protocol = "fast"

    def __init__(self, address: Address, token: str) -> None:
        super().__init__(address)
        self._token = token.encode()
        if not 0 < len(self._token) <= MAX_TOKEN:
            raise self.impossible(f"a token has 1 to {MAX_TOKEN} bytes")
        self._head = bytes((PUBLISH, len(self._token))) + self._token
        self._topics: dict[str, int] = {}

    def encode(self, topic: str, payload: bytes, sender: bytes | None) -> bytes:
        number = self._topics.get(topic)
        if number is None:
            number = self._topics[topic] = fnv1a32(topic.encode())
            self._make_sure(topic, number)
        return self._head + _TAIL.pack(number, len(payload)) + payload

    def _make_sure(self, topic: str, number: int) -> None:
        """Is the topic there? CREATE of one that is would change its flags."""
        self.stream.send(encode(Unsubscribe(self._token, number)))
        if Error(_UNSUBSCRIBE, ErrorCode.NO_SUCH_TOPIC, number) in self._errors():
            self.stream.send(encode(Create(self._token, topic.encode(), 0)))
            for error in self._errors():
                if error.offending == _CREATE:
                    raise self.refused(f"topic {topic!r}: {_name(error.code)}")

    def confirm(self, count: int, last: bool) -> None:
        errors = [error for error in self._errors() if error.offending == PUBLISH]
        if errors:
            raise self.refused(_name(errors[0].code), len(errors))

    def _errors(self) -> list[Error]:
        """What was refused of all that was sent."""
        errors: list[Error] = []
        try:
            self.stream.send(encode(Unsubscribe(self._token, _NOWHERE)))
            while True:
                packet = self.stream.receive(decode)
                if not isinstance(packet, Error):
                    continue
                if (packet.offending, packet.topic_id) == (_UNSUBSCRIBE, _NOWHERE):
                    break
                errors.append(packet)
        except FastError:
            raise self.refused("the broker does not speak fast") from None
        except ConnectionBroken:
            # Said before it hung up.
            if errors:
                raise self.refused(_name(errors[-1].code), len(errors)) from None
            raise
        if packet.code != ErrorCode.NO_SUCH_TOPIC:
            raise self.refused(_name(packet.code))
        return errors


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"code {code}"


def make_publisher(options: PublisherOptions) -> FastPublisher:
    """See ``ClientSide``."""
    return FastPublisher(options.address, options.token or "")


CLIENT = ClientSide(make_publisher, token=TokenUse.NEEDED)
