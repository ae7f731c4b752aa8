"""The reasons why no connection was made, for the errors of the client library and the command."""

from __future__ import annotations

import os
import re
import socket
import ssl

NOT_TLS = "the port does not speak TLS"
# The text of asyncio for errors of several addresses of a host.
_NUMBER = re.compile(r"\[Errno (\d+)\]")


def why_not(error: Exception) -> str:
    """Return why an attempt failed, without the numbers and the calls of the system."""
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None)
        if reason == "WRONG_VERSION_NUMBER":
            return NOT_TLS
        return f"TLS failed: {getattr(error, 'verify_message', None) or reason or error}"
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, OSError):
        numbers = sorted({int(number) for number in _NUMBER.findall(str(error))})
        if numbers:
            return ", ".join(os.strerror(number).lower() for number in numbers)
    return str(error) or type(error).__name__
