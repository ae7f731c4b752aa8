"""The values of identities in the shared state, and the points of a log."""

from __future__ import annotations

import json
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.identities.identity_entry import (
    IdentityEntry,
    KnownNumber,
    PointsEntry,
    WantedIdentity,
    claim_key,
    decode_claim,
    decode_identity,
    decode_limit,
    decode_points,
    encode_claim,
    encode_identity,
    encode_limit,
    encode_points,
    identity_key,
    is_claim,
    limit_key,
)
from pubsub.backplane.positions.number_points import NumberPoint, NumberPoints, position_at
from pubsub.backplane.positions.shared_position import SharedPosition
from pubsub.backplane.state.entry_format import MalformedEntry
from pubsub.backplane.state.state_format import is_followed
from pubsub.broker.clients.identity_sharing import FormerNumbers, IdentityContent, channel_bytes

AT = SharedPosition(3, {"x": {1: 7}})
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


class EntryTests(SynchronousTestCase):
    """Values"""

    @given(NAMES, st.lists(NAMES, max_size=5, unique=True), st.booleans(), st.integers(-9, 9))
    def test_identities(self, owner: str, channels: list[str], flag: bool, shift: int) -> None:
        former = (FormerNumbers(8, "log", shift),) if flag else ()
        content = IdentityContent(flag, owner, tuple(sorted(channels)), shift, former)
        top, known = (9, KnownNumber(4, AT)) if flag else (None, None)
        entry = IdentityEntry("log", content, top, known, not flag)
        assert decode_identity(encode_identity(entry)) == entry

    @given(NAMES)
    def test_the_bytes_of_a_channel(self, name: str) -> None:
        one = encode_identity(IdentityEntry("log", IdentityContent(channels=("a",))))
        two = encode_identity(IdentityEntry("log", IdentityContent(channels=("a", name))))
        assert len(two) - len(one) <= channel_bytes(name)

    def test_other_values(self) -> None:
        points = PointsEntry((NumberPoint(4, AT),), True)
        assert decode_points(encode_points(points)) == points
        assert decode_limit(encode_limit(9)) == 9
        wanted = WantedIdentity("ada", 12)
        assert decode_claim(encode_claim(wanted)) == wanted

    def test_malformed_values(self) -> None:
        good = json.loads(encode_identity(IdentityEntry("log", IdentityContent(), 3)))
        for change in (
            {"v": 2}, {"log": 1}, {"owner": 1}, {"channels": "a"}, {"channels": [1]},
            {"shift": "1"},
            {"former": [[1, 2]]}, {"former": [[1, 2, 3]]}, {"former": 1}, {"top": -1},
            {"known": [1]}, {"known": [1, {}]},
        ):  # fmt: skip
            with pytest.raises(MalformedEntry):
                decode_identity(json.dumps({**good, **change}).encode())
        for value in (b"", b"[]", b"{", b"[" * 100_000, b'{"v":1}', b'{"v":1,"limit":true}'):
            with pytest.raises(MalformedEntry):
                decode_limit(value)
            with pytest.raises(MalformedEntry):
                decode_points(value)
            with pytest.raises(MalformedEntry):
                decode_claim(value)

    def test_keys_show_no_names_and_requests_are_followed(self) -> None:
        assert "ada" not in identity_key("ada")
        assert is_claim(claim_key("log", "ada"), "log")
        assert not is_claim(limit_key("log"), "log")
        assert is_followed(claim_key("log", "ada"))
        assert is_followed(limit_key("log"))
        assert not is_followed(identity_key("ada"))


def position(counts: dict[int, int]) -> SharedPosition:
    return SharedPosition(0, {f"origin-{run}": {run: count} for run, count in counts.items()})


class PointTests(SynchronousTestCase):
    """Points"""

    def test_they_are_few_and_dense_at_the_end(self) -> None:
        points = NumberPoints()
        for offset in range(0, 100_000, 10):
            points.add(NumberPoint(offset, AT))
            points.add(NumberPoint(offset, AT))
        offsets = [one.offset for one in points.points]
        assert len(offsets) == 40
        assert offsets[0] == 0
        assert offsets[-16:] == list(range(99_990 - 150, 100_000, 10))
        # No gap is longer than the distance from its end to the newest.
        assert all(
            later - earlier <= max(99_990 - later, 10) for earlier, later in pairwise(offsets)
        )

    def test_those_of_the_last_run_are_restored(self) -> None:
        points = NumberPoints()
        points.add(NumberPoint(30, AT))
        points.restore([NumberPoint(10, AT), NumberPoint(40, AT)], 30)
        assert [one.offset for one in points.points] == [10, 30]

    def test_an_offset_before_the_first(self) -> None:
        assert position_at([NumberPoint(10, AT)], 9) is None
        assert position_at([NumberPoint(10, AT)], 10) is AT
        assert position_at([NumberPoint(10, AT)], 99) is AT

    @given(st.lists(st.integers(1, 3), min_size=1, max_size=60), st.data())
    def test_no_message_behind_an_offset_is_before_its_position(
        self, runs: list[int], data: st.DataObject
    ) -> None:
        def add(counts: dict[int, int], run: int) -> dict[int, int]:
            return {**counts, run: counts[run] + 1}

        counts = list(accumulate(runs, add, initial={1: 5, 2: 0, 3: 9}))
        places = data.draw(st.sets(st.integers(1, len(runs))))
        points = [NumberPoint(at, position(counts[at])) for at in sorted({0, *places})]
        offset = data.draw(st.integers(0, len(runs)))
        found = position_at(points, offset)
        assert found is not None
        for run, count in counts[offset].items():
            assert found.origins[f"origin-{run}"][run] <= count
        if len(set(runs)) == 1 and offset <= points[-1].offset:
            assert found == position(counts[offset])

    def test_messages_that_are_not_in_the_log(self) -> None:
        points = [NumberPoint(0, position({1: 0, 2: 0})), NumberPoint(4, position({1: 4, 2: 3}))]
        assert position_at(points, 3) == points[0].position
        begun = [points[0], NumberPoint(4, position({1: 1, 2: 0, 3: 3}))]
        assert position_at(begun, 3) == points[0].position
