"""Texts for errors of the engine."""

from __future__ import annotations

from nats.js.errors import APIError
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine_errors import text_of_error


class TextTests(SynchronousTestCase):
    """text_of_error"""

    def test_a_time_out_without_a_text(self) -> None:
        assert text_of_error(TimeoutError()) == "it does not answer in time"
        assert text_of_error(TimeoutError("nats: timeout")) == "nats: timeout"

    def test_other_errors(self) -> None:
        assert text_of_error(APIError(description="no space")) == "no space"
        assert text_of_error(ConnectionError("refused")) == "refused"
        assert text_of_error(ValueError()) == "ValueError"
