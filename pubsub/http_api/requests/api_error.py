"""Errors of the HTTP API: their status, their problem document (RFC 9457) and their headers."""

from __future__ import annotations

import json
from http import HTTPStatus

from pubsub.errors import (
    AuthenticationRequired,
    BackplaneAway,
    BadToken,
    HistoryUnavailable,
    InvalidTopicName,
    LimitReached,
    MemoryExhausted,
    NotAuthorized,
    RateLimited,
    Refused,
    SenderTooLong,
    TopicExists,
    TopicUnreachable,
    WrongKey,
)

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, NOT_ALLOWED = 400, 401, 403, 404, 405
TIMEOUT, CONFLICT, GONE, TOO_LARGE, UNSUPPORTED, NOT_SATISFIABLE = 408, 409, 410, 413, 415, 416
UPGRADE_REQUIRED, HEAD_TOO_LARGE = 426, 431
TOO_MANY, INTERNAL, NOT_IMPLEMENTED, UNAVAILABLE, VERSION, FULL = 429, 500, 501, 503, 505, 507
STATUS: dict[type[Refused], int] = {
    AuthenticationRequired: UNAUTHORIZED,
    BadToken: UNAUTHORIZED,
    NotAuthorized: FORBIDDEN,
    InvalidTopicName: BAD_REQUEST,
    LimitReached: FULL,
    RateLimited: TOO_MANY,
    MemoryExhausted: UNAVAILABLE,
    HistoryUnavailable: UNAVAILABLE,
    TopicUnreachable: UNAVAILABLE,
    TopicExists: CONFLICT,
    WrongKey: CONFLICT,
    BackplaneAway: UNAVAILABLE,
}
"""The statuses of refusals of the broker; of others it is 400."""
# What a refusal of these classes is about, in a sentence; others have one.
_SENTENCES: dict[type[Refused], str] = {
    # The reason, which may name a path, is for operators: in the log, and in /v1/store.
    HistoryUnavailable: "the history cannot be written at present; try again later",
    LimitReached: "the broker has no room for more {}",
    NotAuthorized: "permission denied: topic {!r}",
    SenderTooLong: "a sender has at most 255 bytes, not {}",
    TopicUnreachable: "the broker that hosts topic {!r} cannot be reached; try again later",
}
PROBLEM = "application/problem+json"
"""The content type of error responses."""
# Seconds after which a client may repeat a request that was refused temporarily.
_RETRY_AFTER = "1"


def phrase(status: int) -> bytes:
    """Return the text of the status line; twisted.web lacks those of newer statuses."""
    return HTTPStatus(status).phrase.encode()


class ApiError(Exception):
    """An error response: HTTP status, a code for programs, a message, and further members.

    ``code`` is stable; ``more`` has the further members of the JSON object. ``allow`` has the
    methods of the resource if another one was used, ``upgrade`` the protocol that it is for.
    """

    allow = ""
    upgrade = ""

    def __init__(self, status: int, code: str, message: str, **more: object) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.more = more

    @classmethod
    def of_method(cls, allowed: str, remedy: str = "") -> ApiError:
        """Return the response to a request with another method than ``allowed``."""
        error = cls(NOT_ALLOWED, "method", f"method not allowed; expected {allowed}{remedy}")
        error.allow = allowed
        return error

    @classmethod
    def of_defect(cls) -> ApiError:
        """Return the response to a request that failed by a defect, which is in the log."""
        return cls(INTERNAL, "internal", "internal error; the broker's log has details")

    @classmethod
    def from_refusal(cls, refused: Refused, status: int = 0) -> ApiError:
        """Return the response to a refusal of the broker; ``status`` replaces that of its class."""
        status = status or STATUS.get(type(refused), BAD_REQUEST)
        sentence = _SENTENCES.get(type(refused), "{}").format(*refused.args or [""])
        return cls(status, refused.reason, sentence or refused.reason)

    def members(self) -> dict[str, object]:
        """Return the error as an object of the WebSocket."""
        return {"code": self.code, "message": str(self), **self.more}

    @property
    def topic(self) -> str | None:
        """The topic that was refused, if known."""
        topic = self.more.get("topic")
        return topic if isinstance(topic, str) else None

    def body(self) -> bytes:
        """Return the JSON body: a problem document.

        Its type is ``about:blank``, because ``error`` has the reason for programs; ``message`` is
        the same as ``detail``.
        """
        message = str(self)
        problem = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": message,
            "error": self.code,
            "message": message,
            **self.more,
        }
        return json.dumps(problem).encode() + b"\n"

    def headers(self) -> dict[str, str]:
        """Return additional headers."""
        if self.allow:
            return {"Allow": self.allow}
        if self.upgrade:
            return {"Upgrade": self.upgrade, "Connection": "Upgrade"}
        if self.status == UNAUTHORIZED:
            return {"WWW-Authenticate": "Bearer"}
        if self.status in (TOO_MANY, UNAVAILABLE):
            return {"Retry-After": _RETRY_AFTER}
        return {}

    def response(self) -> bytes:
        """Return the whole response, for a connection that is closed after it."""
        body = self.body()
        headers = {**self.headers(), "Content-Length": str(len(body)), "Content-Type": PROBLEM}
        lines = [b"HTTP/1.1 %d %s" % (self.status, phrase(self.status))]
        lines += [f"{name}: {value}".encode() for name, value in headers.items()]
        return b"\r\n".join([*lines, b"Connection: close", b"", body])


class Absent(ApiError):
    """Answers the question whether something exists that does not: no refusal, so not counted."""
