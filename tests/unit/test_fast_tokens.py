"""The tokens in fast's vectors have the stated claims and signatures."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64decode
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.vectors import load_vectors

DOCUMENT: dict[str, Any] = load_vectors("fast-conversations")


def part(text: str) -> bytes:
    """Return a part of a token."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


class TokenVectorTests(SynchronousTestCase):
    """seeds/vectors/fast-conversations.json"""

    def test_claims_match_their_description(self) -> None:
        for name, token in DOCUMENT["tokens"].items():
            assert len(token["text"]) <= 255
            if "claims" in token:
                header, claims, _ = token["text"].split(".")
                assert json.loads(part(header)) == token["header"], name
                assert json.loads(part(claims)) == token["claims"], name

    def test_signatures_match_the_secret(self) -> None:
        for name, token in DOCUMENT["tokens"].items():
            if token.get("bad"):
                continue
            signed, _, signature = token["text"].rpartition(".")
            key = DOCUMENT["secret"].encode()
            wanted = hmac.new(key, signed.encode(), hashlib.sha256).digest()
            assert part(signature) == wanted, name

    def test_each_token_is_used(self) -> None:
        sent = json.dumps(DOCUMENT["conversations"])
        for name in DOCUMENT["tokens"]:
            assert f"{{token:{name}}}" in sent
