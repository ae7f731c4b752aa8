"""The replies of nsd to refusals: the text of each (nsd §6.1)."""

from __future__ import annotations

from pubsub.errors import (
    BackplaneAway,
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
    SenderTooLong,
    TopicNotFound,
    TopicUnreachable,
    UnexpectedProxyHeader,
    WrongPassword,
)
from pubsub.protocols.nsd.codec import error

TEXTS: dict[type[Refused], str] = {
    TopicNotFound: "NO SUCH CHANNEL: {0}",
    TopicUnreachable: "NO SUCH CHANNEL: {0}",
    NotAuthorized: "NOT AUTHORIZED: {0}",
    WrongPassword: "WRONG PASSWORD",
    PasswordsBusy: "BROKER BUSY",
    MessageTooLarge: "MESSAGE TOO BIG: {0} characters",
    SenderTooLong: "SENDER TOO LONG: {0} bytes",
    LimitReached: "LIMIT REACHED: {0}",
    RateLimited: "RATE LIMIT EXCEEDED",
    MemoryExhausted: "BROKER BUSY",
    BackplaneAway: "BROKER BUSY",
    HistoryUnavailable: "HISTORY UNAVAILABLE",
    FrameTimeout: "REQUEST TIMEOUT",
    HandshakeTimeout: "REQUEST TIMEOUT",
    UnexpectedProxyHeader: "INVALID REQUEST: [PROXY]",
}
"""The text of the ErrorResponse for each refusal of the broker."""

NOT_STORED = error(TEXTS[HistoryUnavailable])
"""The response to a change that could not be committed."""
UNCONFIRMED = error("UNCONFIRMED")
"""The response to a message that could not be committed, or that its host has not confirmed: it may
be published nevertheless."""
NOT_SHARED = error(TEXTS[BackplaneAway])
"""The response to a change of an identity that could not be shared with the other brokers."""


def refusal_of(refused: Refused) -> bytes:
    """Return the response to a request that the broker refuses."""
    return error(TEXTS[type(refused)].format(*refused.args))


def connection_refusal_of(refused: Refused) -> bytes:
    """Return the line that is sent to a connection before it is closed because of a limit."""
    full = isinstance(refused, LimitReached)
    return error("TOO MANY CONNECTIONS" if full else TEXTS[type(refused)])
