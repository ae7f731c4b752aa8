"""The conversations of ``seeds/vectors`` as the segments of TCP streams, without a broker."""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeAlias

from tests.vectors import load_vectors

Segment: TypeAlias = tuple[bool, bytes]
"""Whether the client sends it, and its bytes."""
# Placeholders of a byte that may have any value, a session's id and a token.
_ANY = "30"
_SESSION = re.compile(r"\{session:\w+\}")
_TOKEN = re.compile(r"\{token:([\w-]+)\}")


def play(protocol: str) -> list[tuple[Mapping[str, str], list[Segment]]]:
    """Return the options of a listener and the segments, for each client of each conversation."""
    document = load_vectors(f"{protocol}-conversations")
    found = []
    for conversation in document["conversations"]:
        streams: dict[str, list[Segment]] = defaultdict(list)
        for step in conversation["steps"]:
            segment = _segment(step, protocol == "nsd", document.get("tokens", {}))
            if segment is not None and segment[1]:
                streams[step["client"]].append(segment)
        found += [(conversation["options"], segments) for segments in streams.values()]
    return found


def _segment(step: Mapping[str, Any], lines: bool, tokens: Mapping[str, Any]) -> Segment | None:
    (kind,) = step.keys() - {"client", "dialect"}
    value = step[kind]
    match kind:
        case "send" | "expect_text" if lines:
            return kind == "send", _line(value, step)
        case "expect_json":
            return False, _line(json.dumps(value, ensure_ascii=False, separators=(",", ":")), step)
        case "send" | "expect" | "send_raw":
            return kind != "expect", _bytes(value, tokens)
        case "send_repeat" | "expect_repeat":
            data = _bytes(value["prefix"], tokens) + bytes.fromhex(value["byte"]) * value["count"]
            return kind == "send_repeat", data
    return None


def _line(text: str, step: Mapping[str, Any]) -> bytes:
    line = text.encode()
    return (base64.b64encode(line) if step.get("dialect") == "base64" else line) + b"\n"


def _bytes(text: str, tokens: Mapping[str, Any]) -> bytes:
    def token(match: re.Match[str]) -> str:
        raw: bytes = tokens[match[1]]["text"].encode()
        return (bytes([len(raw)]) + raw).hex()

    text = _SESSION.sub(16 * _ANY, text).replace("??", _ANY)
    return bytes.fromhex(_TOKEN.sub(token, text))
