"""The reasons why no connection was made, for the errors of the client library and the command."""

from __future__ import annotations

import os
import re
import socket
import ssl

NOT_TLS = "the port does not speak TLS"
# The ends of the names that OpenSSL has for alerts about the client's certificate.
_ALERTS = {
    "ALERT_CERTIFICATE_REQUIRED": "the broker demands a certificate of the client",
    "ALERT_UNKNOWN_CA": "the broker does not know the authority of the client's certificate",
}
# Of asyncio's text for errors of several addresses of a host.
_NUMBER = re.compile(r"\[Errno (\d+)\]")


def alert_text(reason: str) -> str | None:
    """Return the meaning of an alert about the client's certificate.

    ``reason`` is its name in OpenSSL, or OpenSSL's text, which ends with the same words.
    """
    name = reason.upper().replace(" ", "_")
    return next((text for end, text in _ALERTS.items() if name.endswith(end)), None)


def why_not(error: Exception) -> str:
    """Return why an attempt failed, without the numbers and the calls of the system."""
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None)
        if reason == "WRONG_VERSION_NUMBER":
            return NOT_TLS
        described = getattr(error, "verify_message", None) or alert_text(str(reason))
        return f"TLS failed: {described or reason or error}"
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, OSError):
        numbers = sorted({int(number) for number in _NUMBER.findall(str(error))})
        if numbers:
            return ", ".join(os.strerror(number).lower() for number in numbers)
    return str(error) or type(error).__name__
