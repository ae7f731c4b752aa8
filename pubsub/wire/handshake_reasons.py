"""The reasons of failed TLS handshakes, for counters and logs."""

from __future__ import annotations

from pubsub.wire.server_tls import reason_of

HANDSHAKE_RATE = "handshake-rate"
"""The reason of a handshake that was not begun, as its address has done too many."""
HANDSHAKE = "tls-handshake"
"""The reason of a handshake that failed in a way that has no reason of its own."""
PLAINTEXT = "tls-plaintext"
"""The reason of a client that does not speak TLS."""
# By a part of OpenSSL's text; the first that matches.
_REASONS = (
    ("http request", PLAINTEXT),
    ("https proxy request", PLAINTEXT),
    ("wrong version number", PLAINTEXT),
    ("packet length too long", PLAINTEXT),
    ("did not return a certificate", "tls-certificate-missing"),
    ("certificate verify failed", "tls-certificate-untrusted"),
    ("alert", "tls-rejected"),
    ("unsupported protocol", "tls-version"),
    ("version too low", "tls-version"),
    ("no shared cipher", "tls-cipher"),
    ("no application protocol", "tls-alpn"),
)
# X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED.
_TIME_ERRORS = (9, 10)


def handshake_reason(error: BaseException, verify_error: int = 0) -> str:
    """Return the reason of a handshake that failed with ``error``, for counters and logs.

    ``verify_error`` is the number of OpenSSL's error if the client's certificate was not accepted.
    """
    if verify_error in _TIME_ERRORS:
        return "tls-certificate-expired"
    text = reason_of(error).lower()
    return next((reason for part, reason in _REASONS if part in text), HANDSHAKE)
