"""The reasons why no connection was made, for the errors of the client library and the command."""

from __future__ import annotations

import os
import re
import socket
import ssl

NOT_TLS = "the port does not speak TLS"
# The text of asyncio for errors of several addresses of a host.
# The ends of the names that OpenSSL has for alerts about the client's certificate.
_ALERTS = {
    "ALERT_CERTIFICATE_REQUIRED": "the broker demands a certificate of the client",
    "ALERT_UNKNOWN_CA": "the broker does not know the authority of the client's certificate",
}
_NUMBER = re.compile(r"\[Errno (\d+)\]")


def why_not(error: Exception) -> str:
    """Return why an attempt failed, without the numbers and the calls of the system."""
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None)
        if reason == "WRONG_VERSION_NUMBER":
            return NOT_TLS
        alert = next((text for end, text in _ALERTS.items() if str(reason).endswith(end)), None)
        return f"TLS failed: {getattr(error, 'verify_message', None) or alert or reason or error}"
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, OSError):
        numbers = sorted({int(number) for number in _NUMBER.findall(str(error))})
        if numbers:
            return ", ".join(os.strerror(number).lower() for number in numbers)
    return str(error) or type(error).__name__
