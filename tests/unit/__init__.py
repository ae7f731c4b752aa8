"""Unit and property tests: in memory, with a fake clock and injected randomness.

Run by ``trial tests.unit`` and by ``pytest -p no:twisted tests/unit``.
"""

from hypothesis import settings

# No deadline and no database: nothing depends on how fast the machine is or on earlier runs.
settings.register_profile("unit", deadline=None, max_examples=100, database=None)
settings.load_profile("unit")
