"""Text in which every character can be seen."""

from __future__ import annotations

import json


def visible(text: str) -> str:
    """Return ``text`` with JSON's escapes for characters that a terminal obeys or does not show.

    JSON stays the same JSON.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)
