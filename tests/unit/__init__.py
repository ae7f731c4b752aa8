"""Unit and property tests: in memory, with a fake clock and injected randomness.

Run by ``trial tests.unit`` and by ``pytest -p no:twisted tests/unit``.
"""

from tests import profiles as profiles
