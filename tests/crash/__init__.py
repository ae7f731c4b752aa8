"""Crash tests: the broker is killed repeatedly under load, and must keep its promises.

``python -m tests.crash --loops 1000`` is the long form; the test kills it a few times.
"""
