"""The target of a request in absolute form, as clients of a proxy send it."""

from __future__ import annotations

import re

_ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)


def origin_form(target: bytes) -> tuple[bytes, bytes | None]:
    """Return the path and query of ``target``, and the host that it names.

    That host replaces the header Host (RFC 9112, section 3.2.2). It is None in a target that is in
    origin form already.
    """
    found = _ABSOLUTE.match(target)
    if found is None:
        return target, None
    path = found[2] if found[2].startswith(b"/") else b"/" + found[2]
    return path, found[1]
