"""Runs at rest and their rows, of both forms of the kernel."""

from __future__ import annotations

import gc
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub.kernel import interpreted
from pubsub.store.records.block_columns import RUN
from tests.unit.kernel_forms import both_forms, compiled, each_form

Messages = list[tuple[bytes, int]]
messages = st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 1)), min_size=1, max_size=4)
fields = st.tuples(
    st.integers(0, 2**40),
    st.integers(0, 2**62),
    st.sampled_from([("a",), ("bé", "c")]),
    st.binary(max_size=3) | st.lists(st.binary(max_size=3), min_size=1, max_size=4),
    st.sampled_from(["cafe", "nsd"]),
    st.booleans(),
)
Fields = tuple[int, int, tuple[str, ...], bytes | list[bytes], str, bool]


def record(kernel: Any, sent: Messages, given: Fields, offset: int = 7) -> tuple[Any, ...]:
    """Make a run with the ``given`` timestamp, sequence, topics, sender, protocol and headers.

    Of several senders each has one message, and the last one the others, which have one topic.
    """
    timestamp, sequence, topics, sender, protocol, headed = given
    senders: Any = sender
    if isinstance(sender, list):
        headed, names = False, tuple(sender[: len(sent)])
        counts = [*[1] * (len(names) - 1), len(sent) - len(names) + 1]
        senders = array("I", counts).tobytes(), names
        last = len(names) - 1
        sent = sent[:last] + [(payload, sent[last][1]) for payload, _ in sent[last:]]
    payloads, indexes = [payload for payload, _ in sent], [index for _, index in sent]
    columns = kernel.Columns.of(payloads, indexes if len(topics) > 1 else None)
    headers = [{"k": b"v"}] * len(sent) if headed else None
    made: tuple[Any, ...] = kernel.run_record(
        columns, offset, timestamp, 320, topics, sequence, senders, protocol, headers, 5
    )
    return made


PLAIN: Fields = (1000, 9, ("a",), b"me", "cafe", False)


@each_form
class TestRuns:
    def test_a_lone_message(self, kernel: Any) -> None:
        assert record(kernel, [(b"abc", 0)], PLAIN) == (
            7, 7, 1000, 323, "a", 1, b"abc", 3, None, 9, b"me", "cafe", None, None, 5,
        )  # fmt: skip

    def test_a_lone_message_of_a_longer_read(self, kernel: Any) -> None:
        part = kernel.Columns.of([b"abc", b"de"]).slice(1, 2)
        made = kernel.run_record(part, 0, 0, 0, ("a",), 0, b"", "cafe", None, 0)
        assert made[6] == b"de"

    def test_lengths_and_topics(self, kernel: Any) -> None:
        given = (1000, 9, ("a", "b"), b"me", "cafe", False)
        made = record(kernel, [(b"abc", 0), (b"", 1)], given)
        _, sizes, picks = kernel.Columns.of([b"abc", b""], [0, 1]).pack()
        assert made == (
            8, 7, 1000, 339, "", 2, b"abc", -1, sizes, 9, b"me", "cafe", None,
            (("a", "b"), picks), 5,
        )  # fmt: skip

    def test_rows_end_before_a_run_that_is_not_plain(self, kernel: Any) -> None:
        plain = record(kernel, [(b"ab", 0), (b"cd", 0)], PLAIN)
        other = record(kernel, [(b"abc", 0), (b"", 0)], PLAIN, 9)
        names: dict[bytes, int] = {}
        rows, at = kernel.pack_plain_runs([plain, plain, other, plain], 0, 5, names)
        assert (rows, at) == (RUN.pack(2, 2, 0, 1, 2, 2, 1000, 9) * 2, 2)
        assert names == {b"a": 0, b"me": 1, b"cafe": 2}
        assert kernel.pack_plain_runs([other], 0, 5, names) == (b"", 0)
        assert kernel.pack_plain_runs([other, plain], 1, 5, names) == (rows[:40], 2)
        assert kernel.pack_plain_runs([], 0, 5, names) == (b"", 0)

    def test_rows_of_several_senders(self, kernel: Any) -> None:
        given = (1000, 9, ("a",), [b"me", b"you", b"me"], "cafe", False)
        alike = record(kernel, [(b"ab", 0)] * 4, given)
        names: dict[bytes, int] = {}
        assert kernel.pack_plain_runs([alike], 0, 5, names) == (
            RUN.pack(2, 1, 0, 1, 2, 2, 1000, 9)
            + RUN.pack(3, 1, 0, 3, 2, 2, 1000, 10)
            + RUN.pack(4, 2, 0, 1, 2, 2, 1000, 11),
            1,
        )
        assert names == {b"a": 0, b"me": 1, b"cafe": 2, b"you": 3}
        differing = record(
            kernel, [(b"ab", 0), (b"", 0), (b"c", 0)], (*given[:3], [b"me"], *given[4:])
        )
        assert kernel.pack_plain_runs([differing, alike], 0, 5, names)[0][:120] == (
            RUN.pack(2, 1, 0, 1, 2, 2, 1000, 9)
            + RUN.pack(3, 1, 0, 1, 2, 0, 1000, 10)
            + RUN.pack(4, 1, 0, 1, 2, 1, 1000, 11)
        )
        totals: dict[str, tuple[int, int]] = {}
        assert kernel.total_plain_runs([alike, differing], totals) == []
        assert totals == {"a": (7, 8 + 2 + 3 + 4 + 3 + 3 * 2)}

    def test_rows_of_several_senders_and_topics(self, kernel: Any) -> None:
        given = (1000, 9, ("a", "b"), [b"me", b"you", b"me"], "cafe", False)
        sent = [(b"ab", 1), (b"cd", 0), (b"ef", 1), (b"gh", 1)]
        alike = record(kernel, sent, given)
        assert alike[4] == ""
        names: dict[bytes, int] = {}
        assert kernel.pack_plain_runs([alike], 0, 5, names) == (
            RUN.pack(2, 1, 0, 1, 2, 2, 1000, 9)
            + RUN.pack(3, 1, 3, 4, 2, 2, 1000, 10)
            + RUN.pack(4, 2, 0, 1, 2, 2, 1000, 11),
            1,
        )
        assert list(names) == [b"b", b"me", b"cafe", b"a", b"you"]
        differing = record(
            kernel, [(b"ab", 0), (b"", 1), (b"c", 1)], (*given[:3], [b"me", b""], *given[4:])
        )
        plain = record(kernel, [(b"ab", 0)], PLAIN, 10)
        rows, at = kernel.pack_plain_runs([differing, plain, alike], 0, 5, names)
        assert (len(rows), at) == (7 * 40, 3)
        assert rows[:160] == (
            RUN.pack(2, 1, 3, 1, 2, 2, 1000, 9)
            + RUN.pack(3, 1, 0, 5, 2, 0, 1000, 10)
            + RUN.pack(4, 1, 0, 5, 2, 1, 1000, 11)
            + RUN.pack(5, 1, 3, 1, 2, 2, 1000, 9)
        )
        totals: dict[str, tuple[int, int]] = {}
        assert kernel.total_plain_runs([alike, differing], totals) == []
        assert totals == {"b": (5, 3 * (2 + 2) + 1), "a": (2, 2 + 3 + 2 + 2)}

    def test_each_message_has_a_topic(self, kernel: Any) -> None:
        given = (1000, 9, ("a", "b"), [b"me", b"you"], "cafe", False)
        run = record(kernel, [(b"ab", 0), (b"cd", 1)], given)
        for topics, picks, error in (
            (("a",), run[13][1], IndexError),
            (("a", "b"), run[13][1][:4], ValueError),
            (("a", "b"), b"", ValueError),
        ):
            wrong = (*run[:13], (topics, picks), run[14])
            with pytest.raises(error):
                kernel.pack_plain_runs([wrong], 0, 0, {})
            with pytest.raises(error):
                kernel.total_plain_runs([wrong], {})

    @pytest.mark.parametrize("counts", [[1], [3, 0], [1, 2], [2], [1, 1, 0]])
    def test_senders_are_those_of_the_messages(self, kernel: Any, counts: list[int]) -> None:
        senders = array("I", counts).tobytes(), (b"a", b"b")
        run = record(kernel, [(b"ab", 0), (b"c", 0)], PLAIN)
        wrong = (*run[:10], senders, *run[11:])
        with pytest.raises(ValueError, match="number"):
            kernel.pack_plain_runs([wrong], 0, 0, {})
        with pytest.raises(ValueError, match="number"):
            kernel.total_plain_runs([wrong], {})
        columns = kernel.Columns.of([b"ab", b"c"])
        with pytest.raises(ValueError, match="number"):
            kernel.run_record(columns, 0, 0, 0, ("a",), 0, senders, "cafe", None, 0)

    def test_a_run_outside_its_record(self, kernel: Any) -> None:
        run = record(kernel, [(b"ab", 0)], PLAIN, 2**33)
        for base in (0, 2**33 + 1):
            with pytest.raises(OverflowError):
                kernel.pack_plain_runs([run], 0, base, {})

    def test_totals(self, kernel: Any) -> None:
        plain = record(kernel, [(b"abc", 0), (b"", 0)], PLAIN)
        headed = record(kernel, [(b"abc", 0)], (*PLAIN[:5], True))
        elsewhere = record(kernel, [(b"abc", 0)], (1, 1, ("b",), b"", "cafe", False))
        totals = {"a": (1, 1)}
        runs = [plain, headed, elsewhere, plain]
        assert kernel.total_plain_runs(runs, totals) == [headed]
        assert totals == {"a": (5, 15), "b": (1, 3)}


@both_forms
class TestBothForms:
    @given(st.lists(st.tuples(messages, fields), max_size=5))
    def test_both_do_the_same(self, found: list[tuple[Messages, Fields]]) -> None:
        forms = (interpreted, compiled)
        made = [[record(form, *one, offset=9) for one in found] for form in forms]
        assert made[0] == made[1]
        names: tuple[dict[bytes, int], ...] = ({}, {})
        totals: tuple[dict[str, tuple[int, int]], ...] = ({}, {})
        for at in range(len(found) + 1):
            rows = [
                form.pack_plain_runs(made[0], at, 3, own)  # type: ignore[union-attr]
                for form, own in zip(forms, names, strict=True)
            ]
            assert rows[0] == rows[1]
        assert list(names[0].items()) == list(names[1].items())
        others = [
            form.total_plain_runs(made[0], own)  # type: ignore[union-attr]
            for form, own in zip(forms, totals, strict=True)
        ]
        assert others[0] == others[1]
        assert totals[0] == totals[1]

    def test_the_garbage_collector_does_not_follow_runs(self) -> None:
        """Nor the tuples in them that are made for each of them."""
        for sender in (b"me", [b"me", b"you"]):
            for topics in ("a",), ("a", "b"):
                given = (*PLAIN[:2], topics, sender, *PLAIN[4:])
                made = record(compiled, [(b"abc", 0), (b"de", len(topics) - 1)], given)
                own = [one for one in made if isinstance(one, tuple)]
                own += [made[10][1]] if isinstance(sender, list) else []
                assert len(own) == 2 * isinstance(sender, list) + len(topics) - 1
                assert not any(map(gc.is_tracked, [made, *own]))

    def test_runs_are_checked(self) -> None:
        assert compiled is not None
        for wrong in ((), (1,) * 14):
            with pytest.raises(ValueError, match="not a run"):
                compiled.pack_plain_runs([wrong], 0, 0, {})
            with pytest.raises(ValueError, match="not a run"):
                compiled.total_plain_runs([wrong], {})
        with pytest.raises(ValueError, match="negative"):
            compiled.pack_plain_runs([], -1, 0, {})
