"""The watch for a server of NATS that lacks most others of its cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine import cluster_watch
from pubsub.backplane.engine.jetstream import NoLeader
from pubsub.backplane.engine.nats_work import Unusable

LEADER, NONE, LATE, LOST = None, NoLeader("away"), TimeoutError(), Unusable("closed")


def reports(*answers: Exception | None, leaves: bool = False) -> Sequence[bool]:
    """Return what is reported of a server with these answers, after which it is gone.

    ``leaves`` is whether there is a better one.
    """
    client = SimpleNamespace(is_closed=False)
    left: Iterator[Exception | None] = iter(answers)
    found: list[bool] = []

    async def check(_client: object, _seconds: float) -> None:
        answer = next(left, LOST)
        client.is_closed = answer is LOST
        if answer is not None:
            raise answer

    async def search() -> bool:
        return leaves

    with mock.patch.multiple(cluster_watch, check_jetstream=check, _LOOK=0.0, _LOOKS=1):
        asyncio.run(cluster_watch.watch_cluster(cast(Any, client), found.append, search))
    return found


class ClusterWatchTests(SynchronousTestCase):
    """``watch_cluster``"""

    def test_one_answer_without_a_leader_is_not_enough(self) -> None:
        assert reports(LEADER, NONE, LEADER, NONE) == [False] * 4

    def test_two_answers_are(self) -> None:
        assert reports(NONE, NONE, NONE, LEADER) == [False, True, True, False]

    def test_without_an_answer_nothing_has_changed(self) -> None:
        assert reports(NONE, LATE, NONE, LATE, NONE) == [False, True, True]

    def test_the_end_of_the_connection_is_no_answer(self) -> None:
        assert reports(NONE, NONE, LOST) == [False, True]

    def test_a_server_without_jetstream_is_not_cut_off(self) -> None:
        assert reports(NONE, NONE, Unusable("no JetStream")) == [False, True, False]

    def test_it_ends_when_another_server_is_better(self) -> None:
        assert reports(LEADER, NONE, NONE, NONE, LEADER, leaves=True) == [False, False, True]
