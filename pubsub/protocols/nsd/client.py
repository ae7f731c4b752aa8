"""A blocking publisher for nsd, where every request has a response.

On a sync channel the response is sent when the message is on disk. A message is published on the
channel of an identity. The identity of each topic has its name and is opened first.
"""

from __future__ import annotations

import json

from pubsub.protocols.nsd.codec import MAX_LINE
from pubsub.wire.blocking_publisher import Address, BlockingPublisher
from pubsub.wire.client_side import ClientSide, PublisherOptions

_SUCCESS = "SuccessResponse"
_SHOWN = 200


class NsdPublisher(BlockingPublisher):
    """Publishes text: payloads that are not UTF-8 are an error."""

    protocol = "nsd"

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._opened: set[str] = set()
        self._requests = 0

    def encode(self, topic: str, payload: bytes, sender: bytes | None) -> bytes:
        try:
            body = payload.decode()
        except UnicodeDecodeError:
            raise self.impossible("the value is not UTF-8") from None
        before = b""
        if topic not in self._opened:
            self._opened.add(topic)
            before = _line({"_class": "OpenRequest", "identity": topic})
            self._requests += 1
        name = "" if sender is None else sender.decode(errors="replace")
        message = {"_class": "Message", "from": name, "when": 0, "body": body}
        line = _line({"_class": "PublishRequest", "identity": topic, "message": message})
        if len(line) > MAX_LINE:
            raise self.impossible(f"{len(payload)} bytes; the limit of a line is {MAX_LINE}")
        self._requests += 1
        return before + line

    def confirm(self, count: int, last: bool) -> None:
        requests, self._requests = self._requests, 0
        errors = [error for _ in range(requests) if (error := self._error()) is not None]
        if errors:
            raise self.refused(errors[0], len(errors))

    def _error(self) -> str | None:
        """Return the error in the next response, if any."""
        line = self.stream.receive(_next_line)
        try:
            answer = json.loads(line)
            if answer["_class"] == _SUCCESS:
                return None
            return str(answer["error"])[:_SHOWN]
        except (ValueError, KeyError, TypeError):
            return "the broker does not speak nsd"


def _line(request: dict[str, object]) -> bytes:
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _next_line(data: bytes, at: int) -> tuple[bytes, int] | None:
    end = data.find(b"\n", at)
    return None if end < 0 else (data[at:end], end + 1)


def make_publisher(options: PublisherOptions) -> NsdPublisher:
    """See ``ClientSide``."""
    return NsdPublisher(options.address)


CLIENT = ClientSide(make_publisher, columns=("key",))
