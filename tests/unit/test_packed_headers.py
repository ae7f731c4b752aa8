"""PackedHeaders: the same mappings in few bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import all_headers_nbytes, headers_nbytes, messages_nbytes
from pubsub.broker.routing.packed_headers import PackedHeaders
from pubsub.kernel import Columns
from pubsub.store.records.block_columns import decode_headers, encode_headers

HEADERS = st.lists(st.dictionaries(st.text(max_size=3), st.binary(max_size=3), max_size=3))


def packed(headers: list[dict[str, bytes]]) -> PackedHeaders:
    """Return ``headers`` packed."""
    return PackedHeaders.of(
        [[(key.encode(), value) for key, value in own.items()] for own in headers]
    )


class PackedTests(SynchronousTestCase):
    """PackedHeaders"""

    @given(HEADERS, st.integers(0, 5), st.integers(0, 5))
    def test_it_has_the_mappings_it_was_made_of(
        self, headers: list[dict[str, bytes]], start: int, stop: int
    ) -> None:
        found = packed(headers)
        assert list(found) == headers
        assert len(found) == len(headers)
        part = found[start:stop]
        assert list(part) == headers[start:stop]
        assert list(part[1:]) == headers[start:stop][1:]
        assert part.nbytes == sum(map(headers_nbytes, headers[start:stop]))

    def test_places_are_counted_from_either_end(self) -> None:
        found = packed([{"a": b"1"}, {}, {"b": b""}])
        assert [found[-1], found[-2], found[-3]] == [{"b": b""}, {}, {"a": b"1"}]
        for place in (3, -4):
            with pytest.raises(IndexError):
                found[place]

    def test_of_equal_keys_the_last_one_counts(self) -> None:
        assert PackedHeaders.of([[(b"a", b"1"), (b"a", b"2")]])[0] == {"a": b"2"}

    def test_sizes(self) -> None:
        found = packed([{"ü": b"123"}, {}])
        assert (found.nbytes, all_headers_nbytes(found)) == (5, 5)
        assert messages_nbytes(Columns.of([b"x", b"y"]), b"me", found) == 2 + 4 + 5
        assert 5 < found.held < 40

    @given(HEADERS, st.integers(0, 100))
    def test_the_history_stores_the_same_bytes(
        self, headers: list[dict[str, bytes]], first: int
    ) -> None:
        column = b"".join(encode_headers(first, packed(headers)))
        assert column == b"".join(encode_headers(first, headers))
        assert dict(decode_headers(column)) == {
            first + at: own for at, own in enumerate(headers) if own
        }
