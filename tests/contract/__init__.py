"""What every protocol promises, run from the vectors in ``seeds/`` and from the plugin interface.

Run by ``trial tests.contract`` and by ``pytest -p no:twisted tests/contract``.
"""
