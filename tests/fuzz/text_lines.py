"""Random lines of JSON with payloads of text, for both forms of the kernel."""

from __future__ import annotations

from random import Random

from pubsub.kernel.layout import TextHead

_TAGS = 12
_BODIES = (b"", b"abc", b"0123456789abcdef", b"x" * 40, "ä€😀".encode())
_ODD_BODIES = (
    b"x" * 41, b"a\\b", b"\x1f", b"a\x7fb", b"\0", b"\xc3", b"\xe2\x82", b"\xff", b"\xc0\x80",
    b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"1234567\n", b'"',
)  # fmt: skip


class TextLines:
    """Heads, none of which is the beginning of another, and lines that have them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.heads: dict[int, tuple[TextHead, int]] = {}
        for tag in range(random.choice((1, 2, _TAGS))):
            before = bytes([97 + tag]) + random.choice((b"", b"y" * 20, b"{y:")) + b'"'
            after = b'"' + random.choice((b"\n", b"}\r\n", b""))
            limit = random.choice((-1, 0, 8, 40, 2**40))
            self.heads[before[0]] = TextHead(before, after, limit), random.randrange(5)

    def learn(self, data: bytes, at: int) -> tuple[TextHead, int] | None:
        """See ``TextTable``."""
        found = self.heads.get(data[at])
        return found if found is not None and data.startswith(found[0].before, at) else None

    def body(self) -> bytes:
        """Return a payload, most of the time a plain one."""
        random = self._random
        if random.random() < 0.9:
            return random.choice(_BODIES)
        return random.choice((*_ODD_BODIES, random.randbytes(random.randrange(12))))

    def read(self) -> bytes:
        """Return lines, perhaps with errors, perhaps not to the end of the last one."""
        random = self._random
        parts: list[bytes] = []
        for _ in range(random.choice((0, 1, 2, 10, 50))):
            head, _address = random.choice(tuple(self.heads.values()))
            line = head.before + self.body() + head.after
            parts.append(line * random.choice((1, 1, 1, 3)))
        data = b"".join(parts)
        return data[: random.randrange(len(data) + 1)] if random.random() < 0.5 else data
