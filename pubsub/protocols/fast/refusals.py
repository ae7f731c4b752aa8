"""The replies of fast to refusals: the error code of each (fast §6)."""

from __future__ import annotations

from pubsub.errors import (
    AuthenticationRequired,
    BackplaneAway,
    BadToken,
    FrameTimeout,
    HandshakeTimeout,
    HistoryUnavailable,
    IdCollision,
    InvalidRequest,
    InvalidTopicName,
    LimitReached,
    MemoryExhausted,
    MessageTooLarge,
    MissingPermission,
    NotAuthorized,
    RateLimited,
    Refused,
    SenderTooLong,
    TopicExists,
    TopicNotFound,
    TopicUnreachable,
    UnexpectedProxyHeader,
    WrongKey,
)
from pubsub.protocols.fast.codec import ErrorCode

CODES: dict[type[Refused], ErrorCode] = {
    BadToken: ErrorCode.BAD_TOKEN,
    AuthenticationRequired: ErrorCode.BAD_TOKEN,
    WrongKey: ErrorCode.WRONG_QUEUE_KEY,
    MissingPermission: ErrorCode.MISSING_PERMISSION,
    NotAuthorized: ErrorCode.MISSING_PERMISSION,
    TopicNotFound: ErrorCode.NO_SUCH_TOPIC,
    TopicUnreachable: ErrorCode.NO_SUCH_TOPIC,
    TopicExists: ErrorCode.TOPIC_EXISTS,
    IdCollision: ErrorCode.ID_COLLISION,
    MessageTooLarge: ErrorCode.TOO_LARGE,
    RateLimited: ErrorCode.RATE_LIMITED,
    LimitReached: ErrorCode.RATE_LIMITED,
    MemoryExhausted: ErrorCode.RATE_LIMITED,
    HistoryUnavailable: ErrorCode.RATE_LIMITED,
    BackplaneAway: ErrorCode.RATE_LIMITED,
    InvalidTopicName: ErrorCode.INVALID_REQUEST,
    InvalidRequest: ErrorCode.INVALID_REQUEST,
    FrameTimeout: ErrorCode.INVALID_REQUEST,
    HandshakeTimeout: ErrorCode.INVALID_REQUEST,
    UnexpectedProxyHeader: ErrorCode.INVALID_REQUEST,
    # No token is as long, so no sender is.
    SenderTooLong: ErrorCode.INVALID_REQUEST,
}
"""The code of ERROR for each refusal of the broker."""


def code_of(refused: Refused) -> ErrorCode:
    """Return the code for a refusal of the broker."""
    return CODES[type(refused)]
