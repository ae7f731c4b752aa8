"""Profiles of the property tests; the environment variable HYPOTHESIS_PROFILE selects one.

====== ======== =============== ==================================================
quick      10   random          the default; failures are kept and tried again
smoke       5   the same always a second runner over tests that ran in full before
ci        100   the same always CI, whose result must not depend on chance
long     2000   random          ``make test-long``; failures are kept, as with quick
====== ======== =============== ==================================================

The second column is the number of examples a test. Failures are kept in ``.hypothesis``, whatever
directory the tests run in. No profile has a deadline: no test depends on the machine's speed.
"""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import DirectoryBasedExampleDatabase

_HOME = Path(__file__).parent.parent / ".hypothesis"
set_hypothesis_home_dir(_HOME)
_KEPT = DirectoryBasedExampleDatabase(_HOME / "examples")
_RANDOM = settings(deadline=None, print_blob=True, database=_KEPT)
_SAME = settings(deadline=None, print_blob=True, database=None, derandomize=True)

settings.register_profile("quick", _RANDOM, max_examples=10)
settings.register_profile("smoke", _SAME, max_examples=5)
settings.register_profile("ci", _SAME, max_examples=100)
settings.register_profile("long", _RANDOM, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def rounds(share: float) -> int:
    """Return ``share`` times the profile's number of examples, for a test with its own loop."""
    return max(1, round(settings().max_examples * share))


def examples(share: float) -> settings:
    """Settings for a test that needs ``share`` times the profile's number of examples."""
    return settings(max_examples=rounds(share))
