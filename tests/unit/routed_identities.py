"""Identities of spot clients."""

from __future__ import annotations

# As ROUTER sockets make them, and as REQ sockets number requests.
ANN, BEN, NUMBER = b"\0\x80\0A\xa7", b"\0\x80\0A\xa8", b"\1\2\3\4"
