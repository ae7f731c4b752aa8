"""What a request is answered that cannot be carried out."""

from __future__ import annotations

import json

from pubsub.errors import (
    BadToken,
    HistoryUnavailable,
    InvalidTopicName,
    LimitReached,
    MemoryExhausted,
    NotAuthorized,
    RateLimited,
    Refused,
    TopicUnreachable,
)

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, NOT_ALLOWED = 400, 401, 403, 404, 405
TIMEOUT, CONFLICT, GONE, TOO_LARGE, UNSUPPORTED, NOT_SATISFIABLE = 408, 409, 410, 413, 415, 416
TOO_MANY, INTERNAL, NOT_IMPLEMENTED, UNAVAILABLE, VERSION, FULL = 429, 500, 501, 503, 505, 507
_STATUS: dict[type[Refused], int] = {
    BadToken: UNAUTHORIZED,
    NotAuthorized: FORBIDDEN,
    InvalidTopicName: BAD_REQUEST,
    LimitReached: FULL,
    RateLimited: TOO_MANY,
    MemoryExhausted: UNAVAILABLE,
    HistoryUnavailable: UNAVAILABLE,
    TopicUnreachable: UNAVAILABLE,
}
# Seconds after which a client may try again what was too much now.
_RETRY_AFTER = "1"


class ApiError(Exception):
    """An answer: a status of HTTP, a word for programs, a sentence for people, and what helps."""

    def __init__(self, status: int, word: str, message: str, **more: object) -> None:
        super().__init__(message)
        self.status = status
        self.word = word
        self.more = more

    @classmethod
    def of(cls, refused: Refused) -> ApiError:
        """What a refusal of the broker is here."""
        status = _STATUS.get(type(refused), BAD_REQUEST)
        return cls(status, refused.reason, str(refused) or refused.reason)

    @property
    def topic(self) -> str | None:
        """The topic that it is about, if it is about one."""
        topic = self.more.get("topic")
        return topic if isinstance(topic, str) else None

    def body(self) -> bytes:
        """The answer's JSON."""
        return json.dumps({"error": self.word, "message": str(self), **self.more}).encode() + b"\n"

    def headers(self) -> dict[str, str]:
        """What the answer says beside it."""
        if self.status == UNAUTHORIZED:
            return {"WWW-Authenticate": "Bearer"}
        if self.status in (TOO_MANY, UNAVAILABLE):
            return {"Retry-After": _RETRY_AFTER}
        return {}
