"""Texts for errors of the engine."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from nats.errors import Error
from nats.js.errors import APIError, ServiceUnavailableError
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine.engine_errors import reason_of_end, text_of_error, text_of_status
from pubsub.backplane.engine.jetstream import check_jetstream
from pubsub.backplane.engine.nats_work import Unusable
from tests.unit.raising import raised


class TextTests(SynchronousTestCase):
    """text_of_error"""

    def test_a_time_out_without_a_text(self) -> None:
        assert text_of_error(TimeoutError()) == "it does not answer in time"
        assert text_of_error(TimeoutError("nats: timeout")) == "nats: timeout"

    def test_other_errors(self) -> None:
        assert text_of_error(APIError(description="no space")) == "no space"
        assert text_of_error(ConnectionError("refused")) == "refused"
        assert text_of_error(ValueError()) == "ValueError"

    def test_why_a_connection_has_ended(self) -> None:
        def reason(problem: Exception | None, said: Exception | None) -> str:
            return reason_of_end(problem, cast(Any, SimpleNamespace(last_error=said)))

        expired = Error("nats: user authentication expired")
        assert reason(None, expired) == "nats: user authentication expired"
        assert reason(ConnectionError("reset"), expired) == "reset"
        assert reason(None, None) == "the engine closed the connection"


class JetStreamTests(SynchronousTestCase):
    """check_jetstream"""

    def check(self, error: Exception) -> None:
        async def answer() -> None:
            raise error

        client = SimpleNamespace(jetstream=lambda timeout: SimpleNamespace(account_info=answer))
        asyncio.run(check_jetstream(cast(Any, client), 1.0))

    def test_no_leader_at_present_and_no_jetstream_at_all(self) -> None:
        leaderless = ServiceUnavailableError(code=503, err_code=10008)
        assert "are away" in str(raised(TimeoutError, self.check, leaderless))
        raised(TimeoutError, self.check, TimeoutError())
        for error in (ServiceUnavailableError(code=503, err_code=10039), ServiceUnavailableError()):
            assert "no JetStream" in str(raised(Unusable, self.check, error))


class StatusTests(SynchronousTestCase):
    """text_of_status"""

    def test_a_description(self) -> None:
        assert text_of_status("409", "Consumer Deleted") == "Consumer Deleted"

    def test_no_description(self) -> None:
        nobody = "no server takes requests for the stream"
        for description in ("", "\r\nNats-Subject: $JS.API.CONSUMER.MSG.NEXT.pubsub_history.a"):
            assert text_of_status("503", description) == nobody
            assert text_of_status("400", description) == "status 400"
