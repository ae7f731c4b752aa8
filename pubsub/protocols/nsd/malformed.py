"""Malformed nsd lines (nsd §6.2), decoded as far as possible."""

from __future__ import annotations

import json
from typing import Any

from pubsub.protocols.nsd.codec import InvalidLine, parse, unwrap
from pubsub.wire.dissection import SHOWN, Dissection

# A password follows this.
# In any spelling of a line that is no JSON, such as Python's.
REDACTED = (rb"(?i:password)",)


def dissect(frame: bytes) -> Dissection:
    """See ``IWireProtocol``."""
    line = frame.rstrip(b"\r\n")
    text, _in_base64 = unwrap(line)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Dissection(understood=getattr(error, "pos", 0), fault=f"not JSON: {error}")
    if not isinstance(value, dict):
        return Dissection(understood=len(frame), fault="JSON, but not an object")
    fields = {name: _shortened(value[name]) for name in value}
    found = Dissection(str(value.get("_class", "")), fields, len(frame))
    try:
        parse(text, line)
    except InvalidLine:
        found.fault = "an object, but not a request"
    return found


def _shortened(value: Any) -> Any:
    text = json.dumps(value)
    return value if len(text) <= SHOWN else text[:SHOWN] + "..."
