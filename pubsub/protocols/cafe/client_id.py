"""The client id of cafe: the client's name, and the session to resume."""

from __future__ import annotations

import re

from pubsub.errors import SessionUnknown

RESUME = b";resume="
PASSWORD = b":"
"""Between the user and the password, where a listener takes them (cafe §3.9)."""
_SESSION_ID = re.compile(rb"[0-9a-fA-F]{16}")


def split_client_id(client_id: bytes) -> tuple[bytes, int | None]:
    """Return the client's name, and the id of the session to resume (cafe §4.6).

    Raises SessionUnknown if the text after ``;resume=`` is not a session id.
    """
    name, marker, number = client_id.rpartition(RESUME)
    if not marker:
        return client_id, None
    if not _SESSION_ID.fullmatch(number):
        raise SessionUnknown("not a session id")
    return name, int(number, 16)


def split_login(name: bytes) -> tuple[bytes, bytes | None]:
    """Return the user and the password in a client's name; None if it has none (cafe §3.9)."""
    user, colon, password = name.partition(PASSWORD)
    return user, password if colon else None
