"""The address of a peer as the settings name it (spot §7.1)."""

from __future__ import annotations

import re

_PEER = re.compile(
    r"(?:tcp|tls)://(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^\[\]:/]+)):(?P<port>\d{1,5})"
)


def parse_peer(text: str) -> tuple[str, int]:
    """Return host and port of ``tcp://host:port`` or ``tls://host:port``; raises ValueError."""
    match = _PEER.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise ValueError(f"expected tcp://HOST:PORT or tls://HOST:PORT, not {text!r}")
    return match["v6"] or match["host"], int(match["port"])
