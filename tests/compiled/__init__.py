"""The compiled modules, compared with the same source interpreted; see ``scripts/compiled``."""

from tests import profiles as profiles
