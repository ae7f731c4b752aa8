"""The remedies for listeners that cannot listen."""

from __future__ import annotations

import errno
import os
from unittest import mock

from twisted.internet.error import CannotListenError
from twisted.trial.unittest import SynchronousTestCase

from pubsub.wire import listen_errors
from pubsub.wire.listen_errors import reason_of_listen_error, remedy_for_endpoint


def reason(description: str, number: int, port: object = 0) -> str | None:
    """Return the reason for an error of the system."""
    error = CannotListenError("", port, OSError(number, os.strerror(number)))
    return reason_of_listen_error(description, error)


class ReasonTests(SynchronousTestCase):
    """reason_of_listen_error"""

    def test_ports(self) -> None:
        for number, port, words in (
            (errno.EACCES, 80, "CAP_NET_BIND_SERVICE"),
            (errno.EADDRINUSE, 7070, "choose another port"),
            (errno.EADDRNOTAVAIL, 7070, "does not have the address"),
        ):
            assert words in (reason(f"tcp:{port}", number, port) or ""), words
        assert reason("tcp:7070", errno.EACCES, 7070) == "Permission denied"

    def test_sockets_of_the_service_manager(self) -> None:
        name = "systemd:name=cafe"
        assert "another listener" in (reason(name, errno.EBADF) or "")
        assert "ListenStream" in (reason(name, errno.EOPNOTSUPP) or "")

    def test_words_of_a_check_are_complete(self) -> None:
        error = CannotListenError("", 0, OSError(errno.EADDRINUSE, "another listener has it"))
        assert reason_of_listen_error("unix:/x", error) == "another listener has it"

    def test_an_error_of_the_program_has_none(self) -> None:
        assert reason_of_listen_error("tcp:1", ValueError()) is None


class EndpointHintTests(SynchronousTestCase):
    """remedy_for_endpoint"""

    def test_names_of_the_sockets_that_there_are(self) -> None:
        with mock.patch.object(listen_errors, "inherited_names", return_value=["cafe", "nsd"]):
            hint = remedy_for_endpoint("systemd:name=http")
        assert hint == " (the service manager has handed over: cafe, nsd)"
        assert remedy_for_endpoint("tcp:x") == ""
