"""Lists of URLs in a text: of brokers that stand for one another."""

from __future__ import annotations

import re

# Parameters of a URL have commas too.
_BETWEEN = re.compile(r"\s*,\s*(?=[A-Za-z][A-Za-z0-9+.-]*://|$)")


def split_urls(text: str) -> list[str]:
    """Return the URLs of a text in which commas separate them."""
    return _BETWEEN.split(text)
