"""Both forms give the same results for any input, in pieces of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pubsub.build_info import build_kind
from pubsub.protocols.cafe.codec import Ping, Publish, encode
from pubsub.protocols.rheos.codec import Codec
from tests.bench.wires import WIRES
from tests.compiled.twins import NAMES, compiled, interpreted
from tests.profiles import examples

COMPILED, INTERPRETED = compiled(), interpreted()
_MESSAGE_RUN, RUNS, CAFE, FAST, RHEOS, SPOT = NAMES
FORMS = (COMPILED, INTERPRETED)
LIMIT = 300
STEM = b"\1\0\1\1\1\1\7bench/0"
OTHER = b"\1\0\1\1\1\1\7bench/1"

Scan = Callable[[bytes, int], Any]

sizes = st.one_of(st.sampled_from([0, 1, 16, 64, 255, 256]), st.integers(0, LIMIT + 2))
# Runs and single messages: (kind, size of the payload, number).
steps = st.lists(
    st.tuples(st.integers(0, 3), sizes, st.sampled_from([1, 1, 2, 7, 9, 70])), max_size=8
)


def cafe_frame(what: int, size: int) -> bytes:
    return encode(Ping()) if what == 3 else encode(Publish(what, bytes(size)))


def fast_frame(what: int, size: int) -> bytes:
    token = (b"", b"token", b"token" * 44, b"other")[what]
    head = b"\3" + bytes([len(token)]) + token
    return head + (what % 2).to_bytes(4, "big") + size.to_bytes(4, "big") + b"p" * size


def rheos_frame(what: int, size: int) -> bytes:
    if what == 3:
        return WIRES["rheos"].publisher_hello(0, "somebody")
    return WIRES["rheos"].publication(what, max(size, 1)).before + bytes(max(size, 1))


def spot_frame(what: int, size: int) -> bytes:
    if what == 3:
        return b"\4\x05\x04PING"
    head = bytes([0, size]) if size < 256 else b"\2" + size.to_bytes(8, "big")
    return (STEM, STEM, OTHER)[what] + head + b"z" * size


def spot_scan(module: Any, data: bytes, at: int) -> Any:
    run = module.MessageRun([], -1)
    return module.scan(data, at, STEM, LIMIT, run), run


def scanners(name: str) -> list[Scan]:
    """Return a new scanner of the protocol in each form."""
    makers: dict[str, Callable[[Any], Scan]] = {
        CAFE: lambda module: module.scan,
        FAST: lambda module: module.Scanner(LIMIT).scan,
        RHEOS: lambda module: module.Scanner(Codec()).scan,
        SPOT: lambda module: partial(spot_scan, module),
    }
    return [makers[name](forms[name]) for forms in FORMS]


FRAMES = {CAFE: cafe_frame, FAST: fast_frame, RHEOS: rheos_frame, SPOT: spot_frame}


def plain(value: object) -> object:
    """Convert instances of the classes of both forms to comparable values."""
    if is_dataclass(value):
        return tuple(plain(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def pieces(data: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    """Yield the data that has arrived at each of the cuts."""
    for cut in sorted({min(cut, len(data)) for cut in cuts} | {len(data)}):
        yield data[:cut]


def test_modules_have_the_expected_form() -> None:
    assert build_kind() == "compiled"
    for name in NAMES:
        assert not str(COMPILED[name].__file__).endswith(".py")
        assert str(INTERPRETED[name].__file__).endswith(".py")


@pytest.mark.parametrize("name", FRAMES)
@examples(3)
@given(steps, st.binary(max_size=12), st.lists(st.integers(0, 9000), max_size=6), st.integers(0, 2))
@example([(0, 0, 1)], b"", [], 0)
@example([(0, 0, 70), (3, 0, 1)], b"", [], 0)
@example([(3, 0, 1)], b"", [3], 0)
def test_both_forms_find_the_same(
    name: str, steps: list[tuple[int, int, int]], tail: bytes, cuts: list[int], start: int
) -> None:
    data = bytes(start) + b"".join(FRAMES[name](what, size) * n for what, size, n in steps) + tail
    ours, theirs = scanners(name)
    for piece in pieces(data, cuts):
        if start <= len(piece):
            assert plain(ours(piece, start)) == plain(theirs(piece, start))


@pytest.mark.parametrize("name", FRAMES)
def test_every_split(name: str) -> None:
    frame = FRAMES[name]
    data = frame(0, 5) * 10 + frame(1, 0) + frame(0, 1) + frame(0, 5) + frame(3, 0)
    ours, theirs = scanners(name)
    for end in range(len(data) + 1):
        assert plain(ours(data[:end], 0)) == plain(theirs(data[:end], 0))


@pytest.mark.parametrize("name", FRAMES)
@examples(3)
@given(st.binary(max_size=200), st.integers(0, 10))
def test_random_bytes(name: str, data: bytes, at: int) -> None:
    ours, theirs = scanners(name)
    assert plain(ours(data, at)) == plain(theirs(data, at))


@examples(2)
@given(st.lists(st.binary(max_size=300), max_size=30), st.booleans(), st.integers(0, 255))
def test_both_forms_write_the_same(payloads: list[bytes], mixed: bool, number: int) -> None:
    if not mixed:
        payloads = [payload[:1].ljust(9) for payload in payloads]
    size = -1 if mixed else 9
    written: dict[str, Callable[[Any], bytes]] = {
        CAFE: lambda module: module.encode_messages(number, number << 40, payloads, size),
        FAST: lambda module: module.encode_messages(number << 20, payloads, size),
        SPOT: lambda module: module.encode_run(STEM, payloads, size),
    }
    for name, write in written.items():
        ours, theirs = (write(forms[name]) for forms in FORMS)
        assert ours == theirs


@examples(2)
@given(st.binary(min_size=16, max_size=16), st.integers(0, 600), st.booleans())
def test_both_forms_acknowledge_the_same(first: bytes, count: int, checksum: bool) -> None:
    first = b"\0" + first[1:]
    ours, theirs = (forms[RHEOS].encode_acks(first, count, checksum) for forms in FORMS)
    assert ours == theirs
