"""``SocketInput``: the messages of the client of a WebSocket, of its frames. Sans-IO."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from websockets.frames import Opcode
from websockets.protocol import OPEN, SERVER
from websockets.protocol import Protocol as Frames

from pubsub.http_api.websocket.websocket_frames import is_utf8

if TYPE_CHECKING:
    import logging


class SocketInput:
    """Takes the input of a client, whose messages may have up to ``limit`` bytes."""

    def __init__(self, limit: int, quiet: logging.Logger) -> None:
        self.frames = Frames(SERVER, state=OPEN, max_size=limit, logger=quiet)
        self.waiting: deque[tuple[bytes, bool]] = deque()
        """The messages that have arrived, and whether each is binary."""
        self.is_malformed = False
        """True after a text message that is not UTF-8; those behind it are discarded."""
        # The fragments of a message so far, joined: small ones would take more memory than bytes.
        self._fragments = bytearray()
        self._is_binary = False

    def add(self, data: bytes) -> bool:
        """Add input; return whether a message is complete with it."""
        self.frames.receive_data(data)
        is_complete = False
        for one in self.frames.events_received():
            is_complete |= self._take(one.opcode, bytes(one.data), one.fin)  # type: ignore[union-attr]
            # The parser keeps its last frame.
            one.data = b""  # type: ignore[union-attr]
        return is_complete

    def _take(self, opcode: Opcode, data: bytes, final: bool) -> bool:
        if self.is_malformed or opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return False
        if opcode is not Opcode.CONT:
            self._is_binary = opcode is Opcode.BINARY
        if self._fragments or not final:
            self._fragments += data
        if final:
            whole, self._fragments = bytes(self._fragments) or data, bytearray()
            if self._is_binary or is_utf8(whole):
                self.waiting.append((whole, self._is_binary))
            else:
                self.is_malformed = True
        return final

    @property
    def of_frame(self) -> int:
        """The bytes of a frame that has not arrived in full."""
        return len(self.frames.reader.buffer)

    @property
    def partial(self) -> int:
        """The bytes of a message that has not arrived in full."""
        return self.of_frame + len(self._fragments)

    @property
    def nbytes(self) -> int:
        """All bytes that are held."""
        return self.partial + sum([len(data) for data, _ in self.waiting])

    @property
    def is_closed(self) -> bool:
        """True if the client has closed, behind its messages; its close is to be answered."""
        return self.frames.close_rcvd is not None and self.frames.parser_exc is None

    def clear(self) -> None:
        """Discard everything."""
        for held in (self.waiting, self._fragments, self.frames.reader.buffer):
            held.clear()
