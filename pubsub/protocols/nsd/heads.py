"""nsd: publishes that differ in their bodies alone, and encoded batches for responses. Sans-IO.

A client writes all its publishes alike. Once two in a row have the same text around the body, that
text is a template. Lines that fit it are not parsed: their bodies are cut out. A body with a
character that JSON escapes does not fit, so that the bytes between the quotes are the text.
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

# Bytes around the body. Longer text, mostly attachments, is not worth keeping.
MAX_TEMPLATE = 1024
# Batches that are noted as plain. Clients read a batch soon after it was published, or rarely.
_NOTED = 1000
_BODY = re.compile(rb'"body"[ ]?:[ ]?"')
_ESCAPED = bytes(range(0x20)) + b'"\\'


@dataclass(frozen=True, slots=True)
class Template:
    """A publish without its body; ``after`` ends with the end of the line."""

    before: bytes
    after: bytes
    request: Publish

    def cut(self, data: bytes, at: int, max_body: int) -> tuple[list[bytes], int]:
        """Return the bodies of the lines from ``at`` on that fit, and where they end.

        A body of more than ``max_body`` bytes does not fit. One that fits has no more characters
        either, which is what the limit counts.
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
        if bodies and (max(map(len, bodies)) > limit or not is_plain(bodies)):
            bodies = list(takewhile(lambda body: len(body) <= limit and is_plain([body]), bodies))
            at = start + sum(map(len, bodies)) + len(bodies) * (skip + step)
        return bodies, at


def text_around_body(line: bytes, request: Publish) -> tuple[bytes, bytes] | None:
    """Return the text before and after the body in ``line``, which includes its line end.

    None if the body is not there as plain text, or the text is longer than MAX_TEMPLATE.
    """
    body = request.message.body.encode()
    starts = [found.end() for found in _BODY.finditer(line)]
    if not starts or len(line) - len(body) > MAX_TEMPLATE or not line.startswith(b"{"):
        return None
    start, end = starts[-1], starts[-1] + len(body)
    if line[start:end] != body or line[end : end + 1] != b'"':
        return None
    return line[:start], line[end:]


def make_template(before: bytes, after: bytes, request: Publish) -> Template | None:
    """Return the template, if the text around another body gives ``request`` with that body."""
    message = request.message
    other_body = message.body + "x"
    line = before + other_body.encode() + after
    try:
        parsed = parse(line, line)
    except InvalidRequest:
        return None
    if not isinstance(parsed, Publish) or parsed.identity != request.identity:
        return None
    if (parsed.message.sender, parsed.message.body) != (message.sender, other_body):
        return None
    if parsed.message.extra != message.extra:
        return None
    return Template(before, after, request)


def is_plain(payloads: Sequence[bytes]) -> bool:
    """Return whether all are UTF-8 without characters that JSON escapes."""
    # No character spans a space, so that all parts of the joined text are UTF-8 if it is.
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


def encode_batch(batch: Batch, known_plain: bool = False) -> bytes:
    """Return the batch's messages as JSON objects with commas between them (nsd §4).

    With ``known_plain`` the payloads are not examined.
    """
    has_extra = batch.protocol == NAME and batch.headers is not None
    if has_extra or not (known_plain or is_plain(batch.payloads())):
        return b",".join(messages(batch))
    head = b'{"_class":"Message","from":%b,"when":' % text(batch.sender.decode(errors="replace"))
    between = b'"},' + head
    pieces: list[bytes] = []
    for when, body in enumerate(batch.payloads(), batch.offset + 1):
        pieces += (b'%b%d,"body":"' % (between, when), body)
    pieces[0] = pieces[0].removeprefix(b'"},')
    pieces.append(b'"}')
    return b"".join(pieces)


# The first offset of a batch, its number of messages, and their timestamp.
_Key: TypeAlias = tuple[int, int, int]


def _key(batch: Batch) -> _Key:
    return batch.offset, batch.count, batch.timestamp


class EncodedBatches:
    """The encoded batches that were read last, within ``nbytes``: many clients read the same."""

    def __init__(self, nbytes: int) -> None:
        self._free = nbytes
        self._encoded: OrderedDict[_Key, bytes] = OrderedDict()
        self._plain: OrderedDict[_Key, None] = OrderedDict()

    def note_plain(self, batch: Batch) -> None:
        """Note that all payloads of ``batch``, which was just published, are plain."""
        if batch.offset >= 0:
            self._plain[_key(batch)] = None
            if len(self._plain) > _NOTED:
                self._plain.popitem(last=False)

    def encode(self, batch: Batch) -> bytes:
        """As ``encode_batch``, for a batch that was read from the history."""
        key = _key(batch)
        found = self._encoded.get(key)
        if found is None:
            found = self._encoded[key] = encode_batch(batch, key in self._plain)
            self._free -= len(found)
            while self._free < 0:
                self._free += len(self._encoded.popitem(last=False)[1])
        return found
