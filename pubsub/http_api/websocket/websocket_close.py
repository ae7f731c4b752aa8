"""The codes and reasons with which a WebSocket is closed."""

from __future__ import annotations

from websockets.frames import CloseCode

from pubsub.errors import AuthenticationRequired, MemoryExhausted
from pubsub.http_api.requests.api_error import TOO_MANY, UNAVAILABLE, ApiError
from pubsub.http_api.requests.api_request import STOPPED, TOKEN_EXPIRED

BAD_TOKEN, TIMEOUT = 4001, 4008
"""Close codes: the token is not valid, or not any more; the client took too long."""
EXPIRED = "the token is not valid any more"
LATE = "timeout", TIMEOUT, "a message took too long to arrive"
"""The reason of a refusal, the code and the text for a message that does not arrive in time."""
ENDED = TOKEN_EXPIRED, BAD_TOKEN, EXPIRED
"""The same for the end of a token."""
NO_MEMORY = (
    MemoryExhausted.reason,
    int(CloseCode.TRY_AGAIN_LATER),
    "all of max-memory is in use; try again later",
)
"""The same for one for whose rest there is no memory in this time."""
# Bytes of the reason of a close (RFC 6455, 5.5).
_CLOSE_BYTES = 123


def close_reason(reason: str) -> str:
    """Return the text of a close for the reason of a connection's end."""
    if reason == STOPPED:
        return "the broker stops"
    return reason.encode()[:_CLOSE_BYTES].decode(errors="ignore")


def close_code(problem: ApiError) -> int:
    """Return the code with which a client is refused that has not connected."""
    if problem.code in ("bad-token", AuthenticationRequired.reason):
        return BAD_TOKEN
    if problem.status in (TOO_MANY, UNAVAILABLE):
        return CloseCode.TRY_AGAIN_LATER
    return CloseCode.POLICY_VIOLATION
