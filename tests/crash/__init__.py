"""Crashes: the broker is killed again and again under load, and keeps what it promised.

``python -m tests.crash --loops 1000`` runs it for long; the test runs it a few times.
"""
