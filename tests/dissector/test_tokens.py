"""fast's tokens, as tshark shows them."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

import jwt

from tests.dissector.captures import Capture, address
from tests.dissector.tshark import Unit, dissect
from tests.vectors import load_vectors

KEY = "0123456789abcdef0123456789abcdef"


def shown(tokens: Sequence[bytes]) -> list[Unit]:
    """Return a SUBSCRIBE with each of the tokens."""
    capture = Capture()
    client = capture.stream(
        7074, [(True, b"\x02" + bytes([len(token)]) + token + bytes(4)) for token in tokens]
    )
    return dissect(capture, "fast")[address(client)]


def values(unit: Unit) -> dict[str, list[str]]:
    """Return the claims and the header's fields."""
    prefix = "token."
    return {
        name.removeprefix(prefix): each
        for name, each in unit.shown.items()
        if name.startswith(prefix) and name not in ("token.length", "token.signature")
    }


def test_tokens_of_the_vectors() -> None:
    vectors = load_vectors("fast-conversations")["tokens"].values()
    valid = [
        each
        for each in vectors
        if each["text"].count(".") == 2 and len(each["text"]) < 256 and not each.get("bad")
    ]
    units = shown([each["text"].encode() for each in valid])
    assert len(units) == len(valid) > 5
    for vector, unit in zip(valid, units, strict=True):
        found = values(unit)
        assert unit.experts == []
        assert found["alg"] == [vector["header"]["alg"]]
        for name, value in vector["claims"].items():
            if name in ("queue_key", "sub"):
                assert found[name] == [value]
            if name == "permissions":
                assert found.get(name, []) == ([value] if isinstance(value, str) else value)


def test_claims_signature_and_times() -> None:
    claims = {"queue_key": "schlüssel", "permissions": [], "exp": 1_700_000_000.5, "nbf": -1}
    token = jwt.encode(claims, KEY, "HS256", {"kid": "a"}).encode()
    (unit,) = shown([token])
    found = values(unit)
    assert found["queue_key"] == ["schlüssel"]
    assert "permissions" not in found
    assert found["exp"] == ["1700000000.5"]
    # The second is of newer releases of tshark.
    assert found["exp.time"][0] in (
        "Nov 14, 2023 22:13:20.500000000 UTC",
        "2023-11-14T22:13:20.500000000Z",
    )
    assert found["nbf"] == ["-1"]
    assert "nbf.time" not in found
    assert found["kid"] == ["a"]
    signature = urlsafe_b64decode(token.rpartition(b".")[2] + b"=")
    assert unit.fields["token.signature"] == [signature.hex()]


def test_invalid_tokens() -> None:
    def part(text: bytes) -> bytes:
        return urlsafe_b64encode(text).rstrip(b"=")

    bad = [
        b"",
        b"a",
        b"..",
        b"a.b",
        b"a.b.c.d",
        part(b"{}") + b".!." + part(b"x"),
        part(b"[]") + b"." + part(b"{}") + b".",
        part(b"\xff") + b"." + part(b"{") + b".",
        bytes(range(255)),
    ]
    units = shown(bad)
    assert len(units) == len(bad)
    assert all(set(unit.experts) == {"token"} for unit in units)
