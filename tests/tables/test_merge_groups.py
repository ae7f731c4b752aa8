"""The choice of small files that are merged: neighbours, as many as fill a file."""

from __future__ import annotations

from pubsub.pipeline.tables.merging import FULL_FILE_BYTES, merge_groups


def groups(*sizes: int) -> list[list[int]]:
    """Return the groups of files of these sizes."""
    return merge_groups(sizes, lambda size: size)


def test_a_group_ends_with_the_file_that_fills_it() -> None:
    quarter = FULL_FILE_BYTES // 4
    assert groups(*[quarter] * 8) == [[quarter] * 4] * 2
    less = quarter - 1
    assert groups(*[less] * 9) == [[less] * 5, [less] * 4]


def test_files_stay_in_order() -> None:
    half = FULL_FILE_BYTES // 2
    assert groups(1, 2, half, 3, half, 4, 5, 6, 7) == [[1, 2, half, 3, half], [4, 5, 6, 7]]


def test_a_few_files_are_not_worth_a_merge() -> None:
    assert groups() == []
    assert groups(1, 2, 3) == []
    assert groups(1, 2, 3, 4) == [[1, 2, 3, 4]]
    half = FULL_FILE_BYTES // 2
    assert groups(half, half, 1, 1, 1) == []
