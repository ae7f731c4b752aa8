"""The cost of a request depends on its changes: its longest tick is the same in a larger broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from pubsub.broker import slices
from tests.bench.requests.catalogue import Catalogue
from tests.bench.requests.counted import CountedSite
from tests.bench.requests.management import Management
from tests.bench.requests.site import Result, Scale
from tests.unit.tokens import KEY

_SAME = {
    "commit_topics": 50, "commit_senders": 500, "exclusive_topics": 50, "subscribers": 20,
    "small_messages": 50, "rounds": 1,
}  # fmt: skip
SMALL = Scale(400, 200, 2, 2, 2, **_SAME)
LARGE = Scale(1600, 800, 2, 2, 2, **_SAME)

OWN_SIZE = {
    "spot: return by identity, all topics",
}
"""Requests whose longest tick grows with their size. ``python -m tests.bench requests``
shows how long they take."""


def counts(scale: Scale, directory: Path) -> dict[str, float]:
    """Return the work of the longest tick of each request."""
    secret = directory / "secret"
    secret.touch(mode=0o600)
    secret.write_bytes(KEY)
    found: dict[str, float] = {}

    def report(result: Result) -> None:
        found[f"{result.wire}: {result.request}"] = result.median.held

    Catalogue(CountedSite({"main": {"secret-file": str(secret)}}), scale, report).run()
    return found


def test_the_longest_tick_does_not_grow_with_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shorter slices, so that fewer topics are many.
    monkeypatch.setattr(slices, "STEPS", 10)
    small, large = counts(SMALL, tmp_path), counts(LARGE, tmp_path)
    assert small.keys() == large.keys()
    assert len(small) > 50
    grown = {
        request: (small[request], large[request])
        for request in small.keys() - OWN_SIZE
        if large[request] > 1.3 * small[request] + 100
    }
    assert grown == {}


def test_the_management_endpoints_are_measured() -> None:
    found: dict[str, float] = {}
    Management(60, 30, 3, found.__setitem__).run()
    assert len(found) > 35
    assert found["one second, 3 followers of /v1/status"] > 0
