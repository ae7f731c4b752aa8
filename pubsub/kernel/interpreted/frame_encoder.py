"""``FrameEncoder``: writes messages as frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import cast

from pubsub.kernel.interpreted.columns import MAX_DATA, Columns
from pubsub.kernel.interpreted.head_checks import MAX_LENGTHS, check_head
from pubsub.kernel.layout import Head


class FrameEncoder:
    """Writes columns as frames. ``heads[index]`` has the heads of the messages of an index.

    Of several, the first is used whose bounds the payload is within; a message that none fits, or
    whose index has no heads, is left out. ``variable_size`` bytes at ``variable_at`` of each head
    are given for each call.
    """

    def __init__(
        self, heads: list[tuple[Head, ...]], variable_at: int = 0, variable_size: int = 0
    ) -> None:
        for own in heads:
            for head in own:
                check_head(head)
                if variable_at < 0 or variable_at + variable_size > len(head.data):
                    raise ValueError("the variable bytes are outside a head")
        self._heads = heads
        self._at, self._size = variable_at, variable_size
        # The parts of a head around the variable bytes, by index and payload size.
        self._made: dict[tuple[int, int], tuple[bytes, bytes] | None] = {}

    def encode(self, columns: Columns, variable: bytes = b"") -> tuple[bytes, int]:
        """Return the frames, and the number of messages that they hold."""
        if columns.count == 1:
            frame = self.frame(columns.indexes()[0], columns.payloads()[0], variable)
            return (b"", 0) if frame is None else (frame, 1)
        if len(variable) != self._size:
            raise ValueError("the variable bytes have another length")
        payloads, index = columns.payloads(), columns.only_index()
        if index >= 0 and columns.smallest == columns.largest:
            around = self._around((index, columns.largest))
            if around is None:
                return b"", 0
            return variable.join(around).join((b"", *payloads)), len(payloads)
        keys = zip(columns.indexes(), columns.sizes(), strict=True)
        heads = list(map(_Heads(self._made, self._around, variable).__getitem__, keys))
        if None in heads:
            payloads = [p for p, head in zip(payloads, heads, strict=True) if head is not None]
            heads = [head for head in heads if head is not None]
        parts: list[bytes] = [b""] * (2 * len(payloads))
        parts[0::2], parts[1::2] = cast("list[bytes]", heads), payloads
        return b"".join(parts), len(payloads)

    def frame(self, index: int, payload: bytes, variable: bytes) -> bytes | None:
        """Return the frame of a message of ``index``; None if nothing fits."""
        if len(variable) != self._size:
            raise ValueError("the variable bytes have another length")
        key = index, len(payload)
        around = self._made.get(key) or self._around(key)
        return None if around is None else around[0] + variable + around[1] + payload

    def encode_each(
        self, columns: Columns, variable: bytes, wanted: list[bytes]
    ) -> list[tuple[bytes, int]]:
        """Return as ``encode`` the frames of some indexes, for each of ``wanted``.

        These have a byte for each index with heads: not 0 if its messages are wanted.
        """
        if len(variable) != self._size:
            raise ValueError("the variable bytes have another length")
        if any(len(one) != len(self._heads) for one in wanted):
            raise ValueError("the wanted indexes and the heads differ in number")
        found = [
            (index, frame)
            for index, payload in zip(columns.indexes(), columns.payloads(), strict=True)
            if (frame := self.frame(index, payload, variable)) is not None
        ]
        indexes, frames = [index for index, _ in found], [frame for _, frame in found]
        chosen = [list(compress(frames, map(one.__getitem__, indexes))) for one in wanted]
        return [(b"".join(some), len(some)) for some in chosen]

    def encode_alike(self, payloads: list[bytes]) -> bytes:
        """Return the frames of payloads of index 0, if all are ``bytes`` of one size.

        Empty if they are not, or if nothing fits, and for heads of fewer than 8 or more than 16
        bytes or with variable ones: ``encode`` is for those.
        """
        if self._size or not payloads or set(map(type, payloads)) != {bytes}:
            return b""
        size = len(payloads[0])
        if set(map(len, payloads)) != {size} or size * len(payloads) > MAX_DATA:
            return b""
        head = b"".join(self._around((0, size)) or ())
        return head.join((b"", *payloads)) if 8 <= len(head) <= 16 else b""

    def _around(self, key: tuple[int, int]) -> tuple[bytes, bytes] | None:
        """Return the bytes around the variable ones before a payload; None if nothing fits."""
        if len(self._made) >= MAX_LENGTHS:
            self._made.clear()
        index, size = key
        around = None
        for head in self._heads[index] if index < len(self._heads) else ():
            if head.least <= size <= min(head.limit, MAX_DATA):
                data = head.encode(size)
                around = data[: self._at], data[self._at + self._size :]
                break
        self._made[key] = around
        return around


def encode_groups(
    groups: Sequence[tuple[Mapping[int, FrameEncoder], bytes]], columns: Columns
) -> list[tuple[bytes, int]]:
    """Return the frames, and the number of messages that they hold, for each of ``groups``.

    A group has an encoder for each index of which it gets the messages, which writes them as those
    of index 0, and the variable bytes. Messages of other indexes are left out.
    """
    written: list[list[bytes]] = [[] for _ in groups]
    links: dict[int, list[tuple[list[bytes], FrameEncoder, bytes]]] = {}
    for frames, (encoders, variable) in zip(written, groups, strict=True):
        for index, one in encoders.items():
            links.setdefault(index, []).append((frames, one, variable))
    for index, payload in zip(columns.indexes(), columns.payloads(), strict=True):
        for frames, one, variable in links.get(index, ()):
            frame = one.frame(0, payload, variable)
            if frame is not None:
                frames.append(frame)
    return [(b"".join(frames), len(frames)) for frames in written]


class _Heads(dict[tuple[int, int], "bytes | None"]):
    """Heads with their variable bytes, by index and size, made when first used."""

    def __init__(
        self,
        made: dict[tuple[int, int], tuple[bytes, bytes] | None],
        make: Callable[[tuple[int, int]], tuple[bytes, bytes] | None],
        variable: bytes,
    ) -> None:
        super().__init__()
        self._made = made
        self._make = make
        self._variable = variable

    def __missing__(self, key: tuple[int, int]) -> bytes | None:
        around = self._made.get(key) or self._make(key)
        head = None if around is None else self._variable.join(around)
        self[key] = head
        return head
