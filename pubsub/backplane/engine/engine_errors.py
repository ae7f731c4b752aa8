"""Texts for errors of the engine and of its client library."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nats.aio.client import Client


_DENIED = "permissions violation"
# The status of a request that nobody receives.
_NOBODY = "503"


def is_denial(text: str) -> bool:
    """Return whether the engine reports in ``text`` that the account lacks a permission."""
    return _DENIED in text.lower()


def text_of_error(error: BaseException | None) -> str:
    """Return a reason for the log; a time-out of asyncio has no text of its own."""
    described = getattr(error, "description", "") or str(error)
    if not described and isinstance(error, TimeoutError):
        return "it does not answer in time"
    return described or type(error).__name__


def text_of_status(status: str, description: str) -> str:
    """Return a reason for the log, of a message of the engine that has only a status.

    nats-py takes the first header for the description if the message has none.
    """
    described = description.partition("\n")[0].strip()
    if not described and status == _NOBODY:
        return "no server takes requests for the stream"
    return described or f"status {status}"


def reason_of_end(problem: Exception | None, client: Client) -> str:
    """Return why the connection of ``client`` has ended: a server says so before it closes it."""
    if (error := problem or client.last_error) is not None:
        return text_of_error(error)
    return "the engine closed the connection"
