"""Refusals of spot (§5): the texts of ERROR in a handshake, after which no peer connects again.

A connection that is refused for another reason is closed without an ERROR; see
``ZmtpConnection.refusal``.
"""

from __future__ import annotations

READY_EXPECTED = b"READY expected"
UNEXPECTED_COMMAND = b"unexpected command"
MALFORMED_HELLO = b"malformed HELLO"
MALFORMED_METADATA = b"malformed metadata"
INVALID_SOCKET_TYPE = b"Invalid socket type"
NOT_ADMITTED = b"400"
"""The status of ZAP (RFC 27) for a client whose key or password is wrong."""
