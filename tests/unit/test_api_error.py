"""ApiError: the problem document of a refusal."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import (
    BackplaneAway,
    LimitReached,
    NotAuthorized,
    RateLimited,
    Refused,
    SenderTooLong,
    TopicUnreachable,
)
from pubsub.http_api.requests.api_error import ApiError

DETAILS: list[tuple[Refused, int, str]] = [
    (
        TopicUnreachable("a{}"),
        503,
        "the broker that hosts topic 'a{}' cannot be reached; try again later",
    ),
    (LimitReached("topics"), 507, "the broker has no room for more topics"),
    (NotAuthorized("a"), 403, "permission denied: topic 'a'"),
    (SenderTooLong(300), 400, "a sender has at most 255 bytes, not 300"),
    (RateLimited("too fast {}"), 429, "too fast {}"),
    (BackplaneAway(), 503, "backplane-away"),
]


class DetailTests(SynchronousTestCase):
    """The detail of a refusal"""

    def test_it_is_a_sentence(self) -> None:
        for refused, status, detail in DETAILS:
            error = ApiError.from_refusal(refused)
            body = json.loads(error.body())
            assert (body["status"], body["error"]) == (status, refused.reason)
            assert body["detail"] == body["message"] == detail
