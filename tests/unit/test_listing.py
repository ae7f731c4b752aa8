"""Pages of lists are made in steps, within bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import MemoryBudget
from pubsub.errors import MemoryExhausted
from pubsub.management.listing import ListPage, PageRequest, fill


class FillTests(SynchronousTestCase):
    """A step makes a row, or looks at eight candidates"""

    def setUp(self) -> None:
        self.memory = MemoryBudget(10**6)
        self.looked_at = 0

    def numbers(self, stop: int) -> Iterator[int]:
        for number in range(stop):
            self.looked_at += 1
            yield number

    def steps(self, page: ListPage, every: int = 1, stop: int = 100_000) -> list[int]:
        """Return how many candidates each step has looked at."""
        found, before = [], 0
        rows = fill(page, self.numbers(stop), lambda n: None if n % every else {"n": n}, str)
        for _ in rows:
            found.append(self.looked_at - before)
            before = self.looked_at
        return found

    def test_a_step_makes_one_row(self) -> None:
        page = ListPage(PageRequest(limit=50), self.memory)
        assert self.steps(page) == [1] * 50
        assert (len(page), page.next) == (50, "49")

    def test_a_step_looks_at_few_candidates(self) -> None:
        page = ListPage(PageRequest(limit=50), self.memory)
        assert max(self.steps(page, every=99_999)) <= 9
        assert (len(page), page.next) == (2, None)

    def test_the_last_page_has_no_cursor(self) -> None:
        page = ListPage(PageRequest(limit=50), self.memory)
        self.steps(page, stop=50)
        assert (len(page), page.next) == (50, None)

    def test_nothing_more_is_done_for_a_client_that_has_left(self) -> None:
        page = ListPage(PageRequest(limit=50), self.memory)
        page.abandoned = lambda: self.looked_at > 10
        assert len(self.steps(page)) == 10

    def test_rows_are_charged_until_the_page_is_closed(self) -> None:
        page = ListPage(PageRequest(), self.memory)
        page.add({"name": "x" * 1000})
        assert self.memory.used > 2000
        page.close()
        page.close()
        assert self.memory.used == 0

    def test_without_memory_there_is_no_page(self) -> None:
        self.memory.add(10**6)
        with pytest.raises(MemoryExhausted):
            ListPage(PageRequest(), self.memory)

    def test_the_body_is_json_with_any_names(self) -> None:
        page = ListPage(PageRequest(), self.memory)
        rows = [{"name": "<\0>\u2028ä"}, {"name": "\udc80"}]
        for row in rows:
            page.add(row)
        found = json.loads(page.body())
        assert found == {"items": [rows[0], {"name": "?"}], "next": None}
