"""Why no connection was made, in words."""

from __future__ import annotations

import errno
import socket
import ssl

from twisted.trial.unittest import SynchronousTestCase

from pubsub.wire.connect_errors import alert_text, why_not


class ReasonTests(SynchronousTestCase):
    """why_not"""

    def test_reasons(self) -> None:
        two = "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), [Errno 101] x"
        untrusted = ssl.SSLCertVerificationError(1, "x")
        untrusted.verify_message = "self-signed certificate"
        for error, text in (
            (TimeoutError(), "it does not answer"),
            (OSError(errno.ECONNREFUSED, "Connect call failed ('h', 1)"), "connection refused"),
            (OSError(two), "network is unreachable, connection refused"),
            (OSError("cut off"), "cut off"),
            (ValueError(), "ValueError"),
            (socket.gaierror(-2, "x"), "the host name is not known"),
            (untrusted, "TLS failed: self-signed certificate"),
            (tls("WRONG_VERSION_NUMBER"), "the port does not speak TLS"),
            (tls("TLSV1_ALERT_INTERNAL_ERROR"), "TLS failed: TLSV1_ALERT_INTERNAL_ERROR"),
            (
                tls("TLSV13_ALERT_CERTIFICATE_REQUIRED"),
                "TLS failed: the broker demands a certificate of the client",
            ),
            (
                tls("TLSV1_ALERT_UNKNOWN_CA"),
                "TLS failed: the broker does not know the authority of the client's certificate",
            ),
        ):
            assert why_not(error) == text

    def test_alerts(self) -> None:
        demands = "the broker demands a certificate of the client"
        for reason in (
            "TLSV13_ALERT_CERTIFICATE_REQUIRED",
            "TLS: tlsv13 alert certificate required",
        ):
            assert alert_text(reason) == demands
        assert alert_text("tlsv1 alert internal error") is None


def tls(reason: str) -> ssl.SSLError:
    """Return an error of OpenSSL."""
    error = ssl.SSLError(1, "x")
    error.reason = reason
    return error
