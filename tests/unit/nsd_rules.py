"""Rules of access over nsd."""

from __future__ import annotations

from pubsub.broker.access_rules.access_table import ACTIONS, AccessRule, AccessTable
from tests.unit.nsd_lines import Nsd

ANY = frozenset(ACTIONS)

EVERYTHING = AccessRule("test", True, ANY)


def apply(nsd: Nsd, *rules: AccessRule) -> None:
    """Apply rules as SIGHUP does."""
    nsd.broker.set_access(AccessTable(rules))
    nsd.broker.reconfigure(nsd.broker.tokens.ring, {})
    nsd.pump(3)
