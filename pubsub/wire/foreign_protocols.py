"""Recognizes other protocols by the first bytes, so that errors name the likely mistake.

Each protocol has a port of its own, and a client that connects to the wrong one gets an answer that
says little in its own terms.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pubsub.errors import Refused, UnexpectedProxyHeader

FIRST_BYTES = 32
"""The bytes that are enough to recognize a protocol."""
PROXY_HEADERS = (b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n")
"""The first bytes of both versions of the PROXY header."""
_TLS = "TLS"
TLS_NOT_SERVED = "tls-not-served"
"""The reason of connections over TLS to a port that does not speak it."""
TLS_PROBLEM = "this port does not speak TLS"
_INVALID = "invalid-request"
# A record with the beginning of a ClientHello (RFC 8446 §4, §5.1): 64 KiB of it or less.
_CLIENT_HELLO = re.compile(rb"\x16\x03[\x00-\x04][\x00-\x40].\x01\x00", re.DOTALL)
# The first bytes of servers, by the name that the protocol has in URLs.
_REPLIES = (
    ("http", rb"HTTP/1\.[01] "),
    (_TLS, rb"\x15\x03[\x00-\x04]\x00\x02"),
    ("nsd", rb'\{"_class"|eyJfY2xhc3Mi'),
    ("cafe", rb"\xfe\xca"),
    ("rheos", rb"\xac\x00{16}\x01"),
    ("spot", rb"\xff.{8}\x7f"),
    ("fast", rb"\x7f.[\x00-\x20](\x00{4}|$)"),
    ("nats", rb"INFO \{"),
)
# A character of the name of a method (RFC 9110 §5.6.2).
_METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]")


def reply_problem(data: bytes, expected: str, is_tls: bool) -> str:
    """Return why a server does not speak ``expected``, by its first bytes; empty if it may.

    ``data`` is empty if the server has closed the connection without a reply.
    """
    if not data:
        return "" if is_tls else "closed without a reply, as by a port that expects TLS"
    for other, pattern in _REPLIES:
        if re.match(pattern, data, re.DOTALL):
            return "" if other == expected else f"the port speaks {other}, not {expected}"
    return ""


def status_problem(line: str, is_tls: bool) -> str:
    """Return why a server does not speak HTTP, by what it sent in the place of a status line.

    ``line`` is in Latin-1, as ``http.client`` has it; empty for a server that has sent nothing.
    """
    unknown = "the reply is not one of HTTP" if line else "the broker closed the connection"
    return reply_problem(line.encode("latin-1"), "http", is_tls) or unknown


def foreign_start(data: bytes, refusal: Callable[[Refused], bytes]) -> tuple[str, bytes] | None:
    """Return the reason and the answer for a client that begins with TLS, or a proxy's header.

    ``data`` are its first bytes, and ``refusal`` returns the answer of the port's protocol. None if
    they begin with something else.
    """
    if _CLIENT_HELLO.match(data) is not None:
        # Clients of TLS take anything but TLS for what it is.
        return TLS_NOT_SERVED, f"{TLS_PROBLEM}\r\n".encode()
    if data.startswith(PROXY_HEADERS):
        # The client behind the proxy speaks the protocol.
        return UnexpectedProxyHeader.reason, refusal(UnexpectedProxyHeader())
    return None


def http_problem(data: bytes) -> tuple[str, str] | None:
    """Return a code and a text of why ``data`` cannot begin a request of HTTP; None if it can.

    HTTP waits for the end of a line, and a client of another protocol for a reply.
    """
    if data.startswith(PROXY_HEADERS):
        return (
            UnexpectedProxyHeader.reason,
            "this port does not take the PROXY header; put haproxy: before its endpoint",
        )
    first = data.lstrip(b"\r\n")[:1]
    if not first or _METHOD.match(first):
        return None
    if data.startswith(b"\x16\x03"):
        return TLS_NOT_SERVED, TLS_PROBLEM
    return _INVALID, "this port speaks HTTP; each other protocol has a port of its own"
