"""Limits: token buckets, rate limiters, connection quotas, gates."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import ConnectionQuota
from pubsub.broker.publishing.rate_limits import Rate, RateLimiter, TokenBucket
from pubsub.errors import LimitReached
from pubsub.kernel import Columns
from tests.unit.fakes import clock_at


class TokenBucketTests(SynchronousTestCase):
    """TokenBucket"""

    def setUp(self) -> None:
        self.clock = clock_at(1000)
        self.bucket = TokenBucket(10, self.clock.seconds)

    def test_it_starts_full(self) -> None:
        assert self.bucket.available() == 10

    def test_tokens_are_added_at_the_rate(self) -> None:
        self.bucket.take(10)
        assert self.bucket.available() == 0
        self.clock.advance(0.5)
        assert self.bucket.available() == 5
        self.clock.advance(0.25)
        assert self.bucket.available() == 7.5

    def test_at_most_one_second_is_saved(self) -> None:
        self.bucket.take(3)
        self.clock.advance(3600)
        assert self.bucket.available() == 10

    def test_a_slow_rate_saves_one_whole_token(self) -> None:
        bucket = TokenBucket(0.25, self.clock.seconds)
        assert bucket.available() == 1
        bucket.take(1)
        self.clock.advance(2)
        assert bucket.available() == 0.5
        self.clock.advance(100)
        assert bucket.available() == 1

    def test_a_debt_is_paid_before_tokens_are_available(self) -> None:
        self.bucket.take(25)
        assert self.bucket.available() == -15
        self.clock.advance(1.5)
        assert self.bucket.available() == 0
        self.clock.advance(0.5)
        assert self.bucket.available() == 5

    def test_a_clock_set_back_changes_no_tokens(self) -> None:
        self.bucket.take(6)
        self.clock.rightNow = 10
        assert self.bucket.available() == 4
        self.clock.advance(0.5)
        assert self.bucket.available() == 9

    @given(
        st.floats(0.5, 1000),
        st.lists(st.tuples(st.floats(0, 3), st.floats(0, 500)), max_size=20),
    )
    def test_no_window_gives_more_than_burst_and_rate(
        self, rate: float, steps: list[tuple[float, float]]
    ) -> None:
        clock = Clock()
        bucket = TokenBucket(rate, clock.seconds)
        taken = 0.0
        largest = 0.0
        for wait, amount in steps:
            clock.advance(wait)
            if bucket.available() > 0:
                bucket.take(amount)
                taken += amount
                largest = max(largest, amount)
        assert taken <= bucket.burst + rate * clock.seconds() + largest + 1e-6


class RateLimiterTests(SynchronousTestCase):
    """Rate and RateLimiter"""

    def setUp(self) -> None:
        self.clock = clock_at(1000)

    def limiter(self, messages: float = 0, nbytes: float = 0) -> RateLimiter:
        limiter = Rate(messages, nbytes).limiter(self.clock.seconds)
        assert limiter is not None
        return limiter

    def test_without_a_rate_there_is_no_limiter(self) -> None:
        assert Rate().limiter(self.clock.seconds) is None

    def test_messages_are_admitted_as_far_as_the_tokens_go(self) -> None:
        limiter = self.limiter(messages=3)
        assert limiter.admissible(Columns.of([b""] * 2)) == 2
        assert limiter.admissible(Columns.of([b"x"] * 5)) == 3
        limiter.take(3, 3)
        assert limiter.admissible(Columns.of([b"x"])) == 0
        self.clock.advance(1 / 3 + 0.001)
        assert limiter.admissible(Columns.of([b"x"] * 5)) == 1

    def test_full_buckets_admit_the_same_whatever_was_charged(self) -> None:
        limiter = self.limiter(messages=3, nbytes=10)
        for _ in range(2):
            assert limiter.admissible_at_best(Columns.of([b"x"] * 5)) == 3
            assert limiter.admissible_at_best(Columns.of([b"x" * 5] * 5)) == 2
            limiter.take(3, 10)

    def test_a_query_takes_no_tokens(self) -> None:
        limiter = self.limiter(messages=3, nbytes=30)
        for _ in range(5):
            assert limiter.admissible(Columns.of([b"0123456789"] * 9)) == 3

    def test_bytes_admit_the_message_that_crosses_the_limit_and_none_after_it(self) -> None:
        limiter = self.limiter(nbytes=10)
        payloads = [b"x" * 4] * 5
        assert limiter.admissible(Columns.of(payloads)) == 3
        limiter.take(3, 12)
        assert limiter.admissible(Columns.of(payloads)) == 0
        self.clock.advance(0.125)
        assert limiter.admissible(Columns.of(payloads)) == 0
        self.clock.advance(0.125)
        assert limiter.admissible(Columns.of(payloads)) == 1

    def test_a_message_larger_than_the_bucket_is_admitted_now_and_then(self) -> None:
        limiter = self.limiter(nbytes=10)
        assert limiter.admissible(Columns.of([b"x" * 1000, b"y"])) == 1
        limiter.take(1, 1000)
        self.clock.advance(98)
        assert limiter.admissible(Columns.of([b"y"])) == 0
        self.clock.advance(2)
        assert limiter.admissible(Columns.of([b"y"])) == 1

    def test_the_stricter_bucket_decides(self) -> None:
        assert self.limiter(messages=2, nbytes=100).admissible(Columns.of([b"x"] * 5)) == 2
        assert self.limiter(messages=100, nbytes=2).admissible(Columns.of([b"x"] * 5)) == 2

    def test_bytes_beyond_the_message_limit_do_not_count(self) -> None:
        limiter = self.limiter(messages=2, nbytes=10)
        assert limiter.admissible(Columns.of([b"x" * 5, b"x" * 5, b"x" * 1000])) == 2

    @given(st.lists(st.binary(max_size=20)), st.integers(0, 12), st.integers(0, 50))
    @example([], 1, 1)
    @example([b""] * 3, 2, 1)
    @example([b"ab", b"c"], 0, 2)
    @example([b"ab"], 0, 1)
    def test_the_longest_allowed_prefix_is_admitted(
        self, payloads: list[bytes], messages: int, nbytes: int
    ) -> None:
        limiter = Rate(messages, nbytes).limiter(self.clock.seconds)
        total = sum(map(len, payloads))
        admitted = len(payloads) if limiter is None else limiter.admissible(Columns.of(payloads))
        crossed = len(payloads)
        if nbytes and total > nbytes:
            starts = [sum(map(len, payloads[:index])) for index in range(len(payloads))]
            crossed = next((i for i, start in enumerate(starts) if start >= nbytes), crossed)
        assert admitted == min(crossed, messages or crossed)


class ConnectionQuotaTests(SynchronousTestCase):
    """ConnectionQuota"""

    def test_the_total_is_bounded(self) -> None:
        quota = ConnectionQuota(2, 0)
        quota.admit("a")
        quota.admit("a")
        with pytest.raises(LimitReached):
            quota.admit("b")
        assert quota.open == 2
        quota.leave("a")
        quota.admit("b")
        assert quota.open == 2

    def test_each_address_is_bounded_by_itself(self) -> None:
        quota = ConnectionQuota(0, 1)
        quota.admit("a")
        with pytest.raises(LimitReached):
            quota.admit("a")
        quota.admit("b")
        quota.leave("a")
        quota.admit("a")
        with pytest.raises(LimitReached):
            quota.admit("b")
        assert quota.open == 2

    def test_a_refused_connection_does_not_count(self) -> None:
        quota = ConnectionQuota(1, 1)
        quota.admit("a")
        for address in "ab":
            with pytest.raises(LimitReached):
                quota.admit(address)
        quota.leave("a")
        quota.admit("b")
        assert quota.open == 1

    def test_zero_means_no_limit(self) -> None:
        quota = ConnectionQuota(0, 0)
        for _ in range(1000):
            quota.admit("a")
        for _ in range(1000):
            quota.leave("a")
        assert quota.open == 0
