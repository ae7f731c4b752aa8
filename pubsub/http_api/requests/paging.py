"""Pages of lists over HTTP: their parameters, and their responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pubsub.http_api.requests.parameters import invalid
from pubsub.http_api.requests.request_access import METRICS, request_access
from pubsub.management.listing import (
    DEFAULT_ROWS,
    MAX_KEY,
    MAX_PATTERN,
    MAX_ROWS,
    ListPage,
    PageRequest,
)
from pubsub.settings import matcher

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.http_api.requests.parameters import Parameters

PAGING = ("limit", "after", "match")
"""The parameters of every list."""


def page_request(parameters: Parameters) -> PageRequest:
    """Return the page that the parameters request; raises ApiError."""
    limit = parameters.number("limit", DEFAULT_ROWS, low=1)
    if limit > MAX_ROWS:
        raise invalid(f"limit: expected at most {MAX_ROWS}")
    after = parameters.text("after", most=MAX_KEY) if "after" in parameters else ""
    return PageRequest(limit, after, pattern(parameters, "match") or (lambda name: True))


def pattern(parameters: Parameters, name: str) -> Callable[[str], bool] | None:
    """Return a function that matches the shell pattern of this parameter; None without it."""
    return matcher([parameters.text(name, most=MAX_PATTERN)]) if name in parameters else None


async def answer_page(
    request: ApiRequest,
    listener: Listener,
    asked: PageRequest,
    fill: Callable[[ListPage], Work],
) -> None:
    """Answer with the page that ``fill`` fills in slices; raises MemoryExhausted."""
    access = request_access(request, listener)
    operates = access.is_admin or access.may(METRICS)
    page = ListPage(asked, listener.memory, spared=operates)
    page.abandoned = lambda: request.client_left
    try:
        await listener.slices.finish(fill(page))
        request.answer(200, page.body())
    finally:
        page.close()
