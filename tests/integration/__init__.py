"""Integration tests: the real ``twistd`` as a subprocess, real sockets on loopback.

Run as a process of its own: ``pytest tests/integration tests/contract``. The clients use only
sockets, ``struct`` and ``json``, so that the bytes are checked independently.
"""
