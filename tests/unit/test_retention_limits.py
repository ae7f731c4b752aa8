"""The setting ``retention``: its text, and the limits that it stands for."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.segments.segment_index import ENTRY_BYTES, Grain
from pubsub.store.upkeep.expired_messages import grain_of
from pubsub.store.upkeep.retention_limits import RETENTION, RetentionLimits
from tests.unit.raising import raised

DAY = 86_400


class RetentionTests(SynchronousTestCase):
    """RETENTION"""

    def test_limits(self) -> None:
        for text, limits in (
            ("*=age:7d", RetentionLimits("*", seconds=7 * DAY)),
            ("news.*=age:12h,bytes:10G", RetentionLimits("news.*", 12 * 3600, 10 * 2**30)),
            ("a=messages:5, age:30m", RetentionLimits("a", seconds=1800, messages=5)),
            ("a=bytes:4K,messages:1,age:90s", RetentionLimits("a", 90, 4096, 1)),
            # The last = is the separator: a topic may have others.
            ("a=b=messages:0", RetentionLimits("a=b", messages=0)),
        ):
            assert RETENTION.parse(text) == (limits,)
            assert RETENTION.parse([text, "*=age:1d"])[0] == limits

    def test_they_are_shown_as_they_are_written(self) -> None:
        for text in ("*=age:7d", "*=age:90s,messages:5", "a=age:90m,bytes:10G", "a=bytes:1500"):
            assert [str(one) for one in RETENTION.parse(text)] == [text]

    def test_texts_that_are_refused(self) -> None:
        form = "expected PATTERN=age:7d,bytes:10G,messages:1000000 or some of these, not "
        for text in (
            "", "7d", "age:7d", "=age:7d", "*=", "*=age", "*=7d", "*=age:7d,", "*=age:7d,size:1G",
            "*=age:7d,age:8d",
        ):  # fmt: skip
            reason = str(raised(ValueError, RETENTION.parse, text))
            assert reason == form + repr(text)
        for age in ("7", "d", "0d", "-1d", "7w", "1.5h", "7 d", "", f"{10**15}d"):
            reason = str(raised(ValueError, RETENTION.parse, f"*=age:{age}"))
            assert reason == f"expected an age such as 90s, 30m, 12h or 7d, not {age!r}"
        for number in ("", "-1", "1.5", "1M", f"{10**15}"):
            reason = str(raised(ValueError, RETENTION.parse, f"*=messages:{number}"))
            assert reason == f"expected a number of messages, not {number!r}"
        for size in ("", "x", f"{10**15}"):
            reason = str(raised(ValueError, RETENTION.parse, f"*=bytes:{size}"))
            assert reason == f"expected a size such as 65536, 64K or 8M, not {size!r}"

    def test_several_rules_in_one_text(self) -> None:
        error = raised(ValueError, RETENTION.parse, "a=age:1d,b=bytes:2G")
        assert "expected one rule, not 'a=age:1d,b=bytes:2G'" in str(error)

    def test_the_largest_limits(self) -> None:
        most = 10**15 - 1
        for text in (f"*=age:{most}s", f"*=messages:{most}", f"*=bytes:{most}"):
            limits = RETENTION.parse(text)
            assert [str(one) for one in limits] == [text]
            assert grain_of(limits).nbytes == ENTRY_BYTES

    def test_entries_are_small_beside_each_limit(self) -> None:
        for text, grain in (
            ("*=age:7d", Grain()),
            ("*=bytes:800", Grain(100)),
            ("*=messages:80", Grain(messages=10)),
            ("*=messages:7,bytes:7", Grain(1, 1)),
        ):
            for others in ([], ["a=bytes:10G,messages:1000000"]):
                limits = RETENTION.parse([text, *others])
                most = Grain(messages=125_000) if others else Grain()
                assert grain_of(limits) == Grain(*map(min, grain, most))

    def test_values_that_are_no_texts(self) -> None:
        assert "not 5" in str(raised(ValueError, RETENTION.parse, 5))
        assert "not 5" in str(raised(ValueError, RETENTION.parse, ["*=age:1d", 5]))
