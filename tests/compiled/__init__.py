"""The compiled modules against the same source interpreted; ``scripts/compiled`` runs these."""

from tests import profiles as profiles
