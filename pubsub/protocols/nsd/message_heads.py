"""nsd: publishes that differ in their bodies alone. Sans-IO.

A client writes all its publishes to a channel in the same way. Once the same text around a body has
been seen twice, the kernel finds such lines without parsing them. A body with a character that JSON
escapes does not fit, so that the bytes between the quotes are the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pubsub.kernel import TextHead
from pubsub.protocols.nsd.codec import MAX_LINE, InvalidLine, Publish, parse

# Bytes around the body. Longer text, mostly attachments, is not worth keeping.
MAX_TEXT = 600
# Texts that were seen once.
_MAX_SEEN = 10_000
_BODY = re.compile(rb'"body"[ ]?:[ ]?"')


class Source(NamedTuple):
    """The fields of publishes besides their bodies; ``extra`` is that of ``Message``."""

    identity: str
    sender: bytes
    extra: tuple[tuple[str, bytes], ...] = ()


def source_of(request: Publish) -> Source:
    """Return the source of a publish."""
    message = request.message
    return Source(request.identity, message.sender.encode(), tuple(message.extra.items()))


class PublishLearner:
    """Learns the heads of publishes; ``max_body`` is the limit of their bodies."""

    def __init__(self) -> None:
        self.max_body = 0
        # By text, whether it may be the head of publishes.
        self._seen: dict[int, bool] = {}

    def learn(self, data: bytes, at: int) -> tuple[TextHead, Source] | None:
        """Return the head and the source of the publish at ``at``.

        None for another request, and for a text around a body that is new. A body of more bytes
        than ``max_body`` does not fit. One that fits has at most as many characters, which
        the limit counts.
        """
        end = data.find(b"\n", at) + 1
        around = text_around_body(data[at:end], self.max_body) if end else None
        if around is None:
            return None
        key = hash(around)
        if key not in self._seen:
            if len(self._seen) >= _MAX_SEEN:
                self._seen.clear()
            self._seen[key] = True
            return None
        before, after = around
        source = source_around(before, after) if self._seen[key] else None
        if source is None:
            self._seen[key] = False
            return None
        limit = min(self.max_body, MAX_LINE - len(before) - len(after))
        return TextHead(before, after, limit), source


def text_around_body(line: bytes, max_body: int) -> tuple[bytes, bytes] | None:
    """Return the text before and after the body in ``line``, which includes its line end.

    None if there is no body, if it has escapes or more than ``max_body`` bytes, if the text is
    longer than MAX_TEXT, or if it may have a password.
    """
    found = line.rfind(b'"body"', 0, MAX_TEXT) if line.startswith(b"{") else -1
    body = None if found < 0 else _BODY.match(line, found)
    if body is None or b'"password"' in line:
        return None
    start = body.end()
    end = line.find(b'"', start)
    if not 0 <= end - start <= max_body or b"\\" in line[start:end]:
        return None
    if len(line) - (end - start) > MAX_TEXT:
        return None
    return line[:start], line[end:]


def source_around(before: bytes, after: bytes) -> Source | None:
    """Return the source of all publishes with this text around their bodies.

    None if the text between the two is not the body of a publish.
    """
    requests = []
    for body in ("", "x"):
        line = before + body.encode() + after
        try:
            request = parse(line, line)
        except InvalidLine:
            return None
        if not isinstance(request, Publish) or request.message.body != body:
            return None
        requests.append(source_of(request))
    return requests[0] if requests[0] == requests[1] else None
