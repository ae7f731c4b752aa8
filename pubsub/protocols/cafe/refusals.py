"""The replies of cafe to refusals: the error code of each, and the last frames (cafe §6)."""

from __future__ import annotations

from pubsub.errors import (
    FrameTimeout,
    HandshakeTimeout,
    HistoryUnavailable,
    LimitReached,
    MemoryExhausted,
    MessageTooLarge,
    NotAuthorized,
    PasswordsBusy,
    RateLimited,
    Refused,
    SessionUnknown,
    TopicNotFound,
    TopicUnreachable,
    UnexpectedProxyHeader,
    WrongPassword,
)
from pubsub.protocols.cafe.codec import Disconnect, Error, ErrorCode, encode

CODES: dict[type[Refused], ErrorCode] = {
    SessionUnknown: ErrorCode.INVALID_HANDSHAKE,
    TopicNotFound: ErrorCode.CHANNEL_NOT_FOUND,
    TopicUnreachable: ErrorCode.CHANNEL_NOT_FOUND,
    MessageTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    RateLimited: ErrorCode.RATE_LIMIT_EXCEEDED,
    LimitReached: ErrorCode.RATE_LIMIT_EXCEEDED,
    MemoryExhausted: ErrorCode.RATE_LIMIT_EXCEEDED,
    HistoryUnavailable: ErrorCode.RATE_LIMIT_EXCEEDED,
    NotAuthorized: ErrorCode.UNAUTHORIZED,
    WrongPassword: ErrorCode.UNAUTHORIZED,
    PasswordsBusy: ErrorCode.RATE_LIMIT_EXCEEDED,
    FrameTimeout: ErrorCode.MALFORMED_MESSAGE,
    HandshakeTimeout: ErrorCode.INVALID_HANDSHAKE,
    UnexpectedProxyHeader: ErrorCode.MALFORMED_MESSAGE,
}
"""The protocol's code for each refusal of the broker."""

GOODBYE = encode(Disconnect())
"""Sent to clients when the broker stops."""


def error(code: ErrorCode) -> bytes:
    """Return an ERROR frame."""
    return encode(Error(code))


def code_of(refused: Refused) -> ErrorCode:
    """Return the protocol's code for a refusal of the broker."""
    return CODES[type(refused)]
