"""nsd: rows of publishes that differ in their bodies alone, and rows of messages in an answer.

Sans-IO. A client writes its publishes all alike. Once two began the same, what surrounds the body
is a template, and lines that fit it are not parsed: their bodies are cut out. A body with anything
in it that JSON would escape does not fit, so the bytes between the quotes are the text.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias

from pubsub.broker.batch import Batch
from pubsub.protocols.nsd.codec import (
    MAX_LINE,
    NAME,
    InvalidRequest,
    Publish,
    messages,
    parse,
    text,
)

# Longer surroundings, attachments mostly, are not worth keeping.
MAX_TEMPLATE = 1024
# Batches that are known to be plain; they are asked for at once or not for long.
_NOTED = 1000
_BODY = re.compile(rb'"body"[ ]?:[ ]?"')
_ESCAPED = bytes(range(0x20)) + b'"\\'


@dataclass(frozen=True, slots=True)
class Template:
    """A publish without its body; ``after`` ends with the end of the line."""

    before: bytes
    after: bytes
    request: Publish

    def scan(self, data: bytes, at: int, max_body: int) -> tuple[list[bytes], int]:
        """The bodies of the lines from ``at`` on that fit, and where the first other begins.

        None of them has more than ``max_body`` bytes, so neither more characters.
        """
        before, after = self.before, self.after
        skip, step = len(before), len(after)
        bodies: list[bytes] = []
        start = at
        while data.startswith(before, at):
            end = data.find(b'"', at + skip)
            if end < 0 or not data.startswith(after, end):
                break
            bodies.append(data[at + skip : end])
            at = end + step
        limit = min(max_body, MAX_LINE - skip - step)
        if bodies and (max(map(len, bodies)) > limit or not plain(bodies)):
            bodies = list(takewhile(lambda body: len(body) <= limit and plain([body]), bodies))
            at = start + sum(map(len, bodies)) + len(bodies) * (skip + step)
        return bodies, at


def surroundings(line: bytes, request: Publish) -> tuple[bytes, bytes] | None:
    """What may stand before and after the body in ``line``, which came with its end."""
    body = request.message.body.encode()
    starts = [found.end() for found in _BODY.finditer(line)]
    if not starts or len(line) - len(body) > MAX_TEMPLATE or not line.startswith(b"{"):
        return None
    start, end = starts[-1], starts[-1] + len(body)
    if line[start:end] != body or line[end : end + 1] != b'"':
        return None
    return line[:start], line[end:]


def template(before: bytes, after: bytes, request: Publish) -> Template | None:
    """The template, if another body there gives this very request but for the body."""
    message = request.message
    probe = message.body + "x"
    line = before + probe.encode() + after
    try:
        told = parse(line, line)
    except InvalidRequest:
        return None
    if not isinstance(told, Publish) or told.identity != request.identity:
        return None
    if (told.message.sender, told.message.body) != (message.sender, probe):
        return None
    if told.message.extra != message.extra:
        return None
    return Template(before, after, request)


def plain(payloads: Sequence[bytes]) -> bool:
    """Are all of them UTF-8 that JSON shows as it is?"""
    # Nothing is put together over a space, so what is UTF-8 joined is UTF-8 in its parts.
    joined = b" ".join(payloads)
    if len(joined.translate(None, _ESCAPED)) != len(joined):
        return False
    if joined.isascii():
        return True
    try:
        joined.decode()
    except UnicodeDecodeError:
        return False
    return True


def row(batch: Batch, known: bool = False) -> bytes:
    """The batch's messages as JSON objects with commas between them (nsd §4).

    ``known`` says that they are plain.
    """
    has_extra = batch.protocol == NAME and batch.headers is not None
    if has_extra or not (known or plain(batch.payloads)):
        return b",".join(messages(batch))
    head = b'{"_class":"Message","from":%b,"when":' % text(batch.sender.decode(errors="replace"))
    between = b'"},' + head
    pieces: list[bytes] = []
    for when, body in enumerate(batch.payloads, batch.offset + 1):
        pieces += (b'%b%d,"body":"' % (between, when), body)
    pieces[0] = pieces[0].removeprefix(b'"},')
    pieces.append(b'"}')
    return b"".join(pieces)


# Where a batch is in the history, how many messages it has, and when they came.
_Key: TypeAlias = tuple[int, int, int]


def _key(batch: Batch) -> _Key:
    return batch.offset, len(batch.payloads), batch.timestamp


class Rows:
    """The rows that were asked for last, within ``nbytes``: many clients ask for the same."""

    def __init__(self, nbytes: int) -> None:
        self._left = nbytes
        self._kept: OrderedDict[_Key, bytes] = OrderedDict()
        self._plain: OrderedDict[_Key, None] = OrderedDict()

    def note(self, batch: Batch) -> None:
        """All of ``batch``, just published, is plain: whoever asks for it need not look."""
        if batch.offset >= 0:
            self._plain[_key(batch)] = None
            if len(self._plain) > _NOTED:
                self._plain.popitem(last=False)

    def of(self, batch: Batch) -> bytes:
        """``row`` of a batch that was read from the history."""
        key = _key(batch)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = row(batch, key in self._plain)
            self._left -= len(found)
            while self._left < 0:
                self._left += len(self._kept.popitem(last=False)[1])
        return found
