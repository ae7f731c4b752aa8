"""Promises of every protocol, tested with the vectors in ``seeds/`` and the plugin interface.

Run by ``trial tests.contract`` and by ``pytest -p no:twisted tests/contract``.
"""
