"""The WebSocket of the HTTP API, sans-IO: frames, requests and their replies."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from itertools import count
from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from pubsub.client.http_batches import MALFORMED
from pubsub.errors import PASSING
from pubsub.wire.client_events import Alive, Closing, Opened, Rejected, WireEvent
from pubsub.wire.client_wire import WireConnection, WireError, WireOptions

_PATH, _SUBPROTOCOL = "/v1/ws", "pubsub.v1.json"
# The same handshake would fail again with these.
_PERMANENT = (400, 401, 403, 404, 426)
# Characters of a server's text that are shown.
_MAX_DETAIL = 300
# The frames have the token and the messages.
_QUIET = logging.getLogger("pubsub.client.websocket")
_QUIET.disabled = True
TEMPORARY = PASSING | {"internal"}
"""The codes of requests that may succeed later."""
encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class HttpConnection(WireConnection):
    """The base of the connections of publishers and subscribers."""

    resumed = False

    def __init__(self, options: WireOptions) -> None:
        super().__init__()
        self._options = options
        host = f"[{options.host}]" if ":" in options.host else options.host
        uri = WebSocketURI(options.secure, host, options.port, _PATH, "")
        self._frames = ClientProtocol(
            uri, subprotocols=[Subprotocol(_SUBPROTOCOL)], max_size=None, logger=_QUIET
        )
        self._numbers = count(1)
        self._hello = 0
        self.waiting: dict[int, Any] = {}
        self._opcode = Opcode.TEXT
        self._parts: list[bytes] = []
        self._response: Response | None = None
        self.epoch = ""
        self.max_messages = 1
        """The number of messages that the broker takes, or sends, at once."""
        self.mixes = False
        """Whether it sends messages of several topics at once."""

    # Requests

    def open(self, topic: str | None = None) -> list[WireEvent]:
        """See ``WireConnection``."""
        self._frames.send_request(self._frames.connect())
        self.push()
        return []

    def request(self, waiting: object, op: str, **members: object) -> int:
        """Send a request, whose reply is for ``waiting``; return its number."""
        number = next(self._numbers)
        self.waiting[number] = waiting
        self._frames.send_text(encode({"id": number, "op": op, **members}).encode())
        return number

    def request_binary(self, waiting: object, payload: bytes, members: dict[str, object]) -> None:
        """Send a request that carries a payload."""
        number = next(self._numbers)
        self.waiting[number] = waiting
        head = encode({"id": number, **members}).encode()
        self._frames.send_binary(len(head).to_bytes(4, "big") + head + payload)

    def push(self) -> None:
        """Append the bytes that the frames have to send to the output."""
        for data in self._frames.data_to_send():
            self.send(data)

    def ping(self) -> None:
        """See ``WireConnection``."""
        self.request(None, "ping")
        self.push()

    def use_token(self, token: str) -> None:
        """See ``WireConnection``. If the broker refuses the token, the former one stays in use."""
        self._connect(token)
        self.push()

    def close(self) -> None:
        """See ``WireConnection``."""
        if self._frames.state is State.OPEN:
            self._frames.send_close(1000)
            self.push()

    # Input

    def consume(self, data: bytes, at: int, events: list[WireEvent]) -> tuple[int, int]:
        """See ``WireConnection``. The frames keep incomplete input."""
        self._frames.receive_data(data[at:])
        try:
            self._take_all(events)
        finally:
            self.flush(events)
            self.push()
        return len(data), 1

    def _take_all(self, events: list[WireEvent]) -> None:
        for event in self._frames.events_received():
            if isinstance(event, Response):
                self._welcome(event)
            elif isinstance(event, Frame):
                self._take(event, events)
            if self.ended:
                return
        if self._frames.handshake_exc is not None:
            self._refused(events)
        elif self._frames.parser_exc is not None:
            raise WireError("not a WebSocket")

    def _welcome(self, response: Response) -> None:
        self._response = response
        if self._frames.handshake_exc is not None:
            return
        if self._frames.subprotocol is None:
            raise WireError("not the HTTP API of a broker")
        self._hello = self._connect(self._options.token)

    def _connect(self, token: str | None) -> int:
        """Request the rights of ``token``, or those of a client without one."""
        members: dict[str, object] = {}
        if token is not None:
            members["token"] = token
        if self._options.client_id:
            members["sender"] = self._options.client_id.decode(errors="replace")
        return self.request(None, "connect", **members)

    def _refused(self, events: list[WireEvent]) -> None:
        response = self._response
        if response is None or response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            raise WireError("not the HTTP API of a broker")
        permanent = response.status_code in _PERMANENT
        self._end(Rejected(f"HTTP {response.status_code}{_detail(response)}", permanent), events)

    def _end(self, event: WireEvent, events: list[WireEvent]) -> None:
        self.flush(events)
        events.append(event)
        self.ended = True

    def _take(self, frame: Frame, events: list[WireEvent]) -> None:
        if frame.opcode is Opcode.CLOSE:
            self._closed(events)
            return
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.opcode is not Opcode.CONT:
            self._opcode = frame.opcode
        self._parts.append(bytes(frame.data))
        if not frame.fin:
            return
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        payload = None
        if self._opcode is Opcode.BINARY:
            start = 4 + int.from_bytes(data[:4], "big")
            data, payload = data[4:start], data[start:]
        try:
            self._handle(json.loads(data), payload, events)
        except MALFORMED:
            raise WireError(f"a frame is not one of {_SUBPROTOCOL}") from None

    def _closed(self, events: list[WireEvent]) -> None:
        received = self._frames.close_rcvd
        code, reason = (0, "") if received is None else (received.code, received.reason)
        why = reason or f"close code {code}"
        if code == 1009:
            # The same message would end the next connection too.
            why = "a message is larger than the max-message of the broker"
        if code == 1001:
            self._end(Closing(reason or "the broker stops"), events)
        else:
            self._end(Rejected(why, permanent=code in (1008, 1009, 4001)), events)

    def _handle(self, found: Any, payload: bytes | None, events: list[WireEvent]) -> None:
        if found.get("id") is not None:
            # Messages before a reply are reported before it, however both arrive.
            self.flush(events)
            self._reply(int(found["id"]), found.get("ok"), found.get("error"), events)
        elif "error" in found:
            raise WireError(str(found["error"]["code"]))
        else:
            self.pushed(found, payload, events)

    def _reply(self, number: int, ok: Any, error: Any, events: list[WireEvent]) -> None:
        waiting = self.waiting.pop(number)
        if number == self._hello:
            if error is not None:
                code = str(error["code"])
                # The message says which of several causes it is, such as a token that has expired.
                why = str(error.get("message") or code)
                self._end(Rejected(why, permanent=code not in TEMPORARY), events)
                return
            self.welcomed(ok)
            events.append(Opened(self.resumed))
        elif waiting is None:
            events.append(Alive())
        else:
            self.answered(waiting, ok, error, events)

    def welcomed(self, ok: Any) -> None:
        """Take the members of the reply to ``connect``."""
        self.epoch = str(ok["epoch"])
        # A broker of an earlier version has one message in each frame.
        self.max_messages = int(ok.get("max_messages", 1))
        self.mixes = ok.get("mixed") is True

    def answered(self, waiting: Any, ok: Any, error: Any, events: list[WireEvent]) -> None:
        """Handle the reply to ``waiting``: ``ok``, unless there is an ``error``."""
        raise NotImplementedError

    def pushed(self, found: Any, payload: bytes | None, events: list[WireEvent]) -> None:
        """Handle a notice, which is not a reply."""

    def flush(self, events: list[WireEvent]) -> None:
        """Append the events of the collected messages."""


def _detail(response: Response) -> str:
    """Return the text of a problem document (RFC 9457) after a colon; empty for other bodies."""
    try:
        detail = json.loads(response.body or b"")["detail"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    is_shown = isinstance(detail, str) and detail.isprintable() and len(detail) <= _MAX_DETAIL
    return f": {detail}" if is_shown else ""
