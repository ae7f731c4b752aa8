"""Integration tests: the real ``twistd`` as a subprocess, real sockets on loopback.

Run as a process of its own: ``pytest tests/integration tests/contract``. The clients here are
written with sockets, ``struct`` and ``json`` alone, so that the bytes are judged independently.
"""
