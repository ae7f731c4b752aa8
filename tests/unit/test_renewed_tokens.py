"""The token of a running query: its file is renewed late, or in steps."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
from twisted.trial.unittest import TestCase

from pubsub.client.history_client import HistoryBounds, HistoryClient, HistoryError
from pubsub.pipeline.histories.history import HistoryRefused, Unreachable
from pubsub.pipeline.histories.http_history import HttpHistory
from pubsub.pipeline.histories.retry import Retry
from pubsub.pipeline.options.connector_options import Credentials
from tests.unit.fakes import scratch

_BOUNDS = HistoryBounds(0, 5, "1-0")


def expired(*_: object, **__: object) -> HistoryBounds:
    """Reply as a broker whose client has an expired token."""
    raise HistoryError(401, {"error": "bad-token", "message": "the token has expired"})


def accepted(*_: object, **__: object) -> HistoryBounds:
    """Reply as a broker that accepts the token."""
    return _BOUNDS


class RenewedTokenTests(TestCase):
    """The requests of a history, and the error for a refused one."""

    def setUp(self) -> None:
        self.file = scratch(self) / "token"
        self.file.write_text("a.b.c\n")
        self.history = HttpHistory("http://127.0.0.1:9", Credentials(file=str(self.file)))

    def ask(self, reply: Callable[..., HistoryBounds], history: HttpHistory | None = None) -> None:
        with patch.object(HistoryClient, "bounds", reply):
            (history or self.history).bounds()

    def test_a_new_query_is_refused_at_once(self) -> None:
        with pytest.raises(HistoryRefused, match=r"expired .HTTP 401.; write a valid token to /"):
            self.ask(expired)
        self.file.write_text(" \n")
        with pytest.raises(HistoryRefused, match="token: the file is empty; write a valid token"):
            self.ask(accepted)

    def test_a_running_query_waits_for_a_new_token(self) -> None:
        self.ask(accepted)
        waits = []

        def renew(seconds: float) -> None:
            waits.append(seconds)
            self.file.write_text("" if len(waits) < 3 else "d.e.f")

        def reply(client: HistoryClient, *_: object, **__: object) -> HistoryBounds:
            return accepted() if "d.e.f" in client._headers["Authorization"] else expired()

        with patch.object(HistoryClient, "bounds", reply):
            found = Retry(clock=lambda: sum(waits), sleep=renew).call(self.history.bounds)
        assert found.next == 5
        assert len(waits) == 3

    def test_it_ends_with_the_reason_if_none_comes(self) -> None:
        waits: list[float] = []
        self.ask(accepted)
        self.file.unlink()
        retry = Retry(clock=lambda: sum(waits), sleep=waits.append)
        with pytest.raises(Unreachable, match="No such file or directory; write a valid token to"):
            retry.call(self.history.bounds)
        assert 50 < sum(waits) <= 60

    def test_tasks_belong_to_a_running_query(self) -> None:
        task = HttpHistory("http://127.0.0.1:9", Credentials(file=str(self.file)), running=True)
        with pytest.raises(Unreachable, match="the token has expired"):
            self.ask(expired, task)

    def test_a_token_that_cannot_change(self) -> None:
        fixed = HttpHistory("http://127.0.0.1:9", Credentials(token="a.b.c"), running=True)
        with pytest.raises(HistoryRefused, match="or use tokenFile to renew it"):
            self.ask(expired, fixed)
