"""The error of the pipeline for a broker that does not answer, with its cause."""

from __future__ import annotations

import socket
from http.client import BadStatusLine, RemoteDisconnected

import pytest
import urllib3
from twisted.trial.unittest import TestCase
from urllib3.exceptions import ProtocolError, SSLError

from pubsub.client.history_client import HistoryUnreachable
from pubsub.pipeline.histories.history import Unreachable
from pubsub.pipeline.histories.http_history import SOURCE, HttpApi
from pubsub.pipeline.options.connector_options import Credentials


def unreachable(cause: Exception) -> str:
    """Return the text of the error after requests that failed with ``cause``."""
    api = HttpApi("http://127.0.0.1:9", Credentials(), SOURCE)
    with pytest.raises(Unreachable) as caught, api.client():
        raise HistoryUnreachable("http://127.0.0.1:9 cannot be reached") from cause
    return str(caught.value).removeprefix("source: the broker at http://127.0.0.1:9 ")


class UnreachableTests(TestCase):
    def test_a_status_that_can_change(self) -> None:
        error = urllib3.exceptions.HTTPError("shutting down (HTTP 503)")
        assert unreachable(error) == "cannot be reached: shutting down (HTTP 503)"
        error = urllib3.exceptions.HTTPError(" (HTTP 503)")
        assert unreachable(error) == "cannot be reached: (HTTP 503)"

    def test_failures_within_those_of_urllib3(self) -> None:
        for inner, text in (
            (ConnectionRefusedError("[Errno 111] Connection refused"), "connection refused"),
            (socket.gaierror(-2, "x"), "the host name is not known"),
            (TimeoutError(), "it does not answer"),
        ):
            outer = urllib3.exceptions.HTTPError("long")
            outer.__cause__ = inner
            assert unreachable(outer) == f"cannot be reached: {text}"
        closed = ProtocolError("Connection aborted.", ConnectionResetError("closed early"))
        assert unreachable(closed) == "cannot be reached: closed early"
        assert unreachable(SSLError(TimeoutError())) == "cannot be reached: it does not answer"

    def test_the_port_of_another_protocol(self) -> None:
        for line, text in (
            ("\xfe\xca\xff\1\0\0\0\7", "the port speaks cafe, not http"),
            ("\0\x1b[2J", "the reply is not one of HTTP"),
        ):
            error = ProtocolError("Connection aborted.", BadStatusLine(line))
            assert unreachable(error) == f"cannot be reached: {text}"
        error = ProtocolError("Connection aborted.", RemoteDisconnected("Remote end closed"))
        assert unreachable(error) == "cannot be reached: Remote end closed"
