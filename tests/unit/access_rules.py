"""Rules of access, and identities and topics that they apply to."""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import strategies as st

from pubsub.broker.access_rules.access_table import ACTIONS, AccessRule, Who
from pubsub.broker.credentials.identity import TOKEN, Identity

SETTINGS = {"allow-publish": ("*",), "allow-subscribe": ("*",), "grant": ()}


def rule(
    allow: bool,
    actions: str = "*",
    topics: str = "*",
    who: Who | None = None,
    without_key: bool = False,
) -> AccessRule:
    """Return a rule; ``actions`` and ``topics`` are separated by spaces."""
    named = ACTIONS if actions == "*" else actions.split()
    who = who or Who()
    return AccessRule(
        "test", allow, frozenset(named), who, tuple(topics.split()), without_key=without_key
    )


NAMES = st.sampled_from(["", "a", "ada", "*", "a*", "[a]", "$SYS", "b?"])
TOPICS = st.sampled_from(["a", "b", "ab", "a/a", "a/ada", "a/*", "$SYS/a", "$SYS/ada", "ada", "*"])
PATTERNS = st.sampled_from(
    ["*", "a*", "%u", "a/%u", "%u/*", "$SYS/*", "$SYS/%u", "?", "*a", "[ab]"]
)
RULES = st.builds(
    AccessRule,
    origin=st.just("test"),
    allow=st.booleans(),
    actions=st.frozensets(st.sampled_from(ACTIONS[:3]), min_size=1),
    who=st.builds(
        Who,
        identities=st.lists(st.sampled_from(["*", "a*", "ada"]), max_size=1).map(tuple),
        networks=st.sampled_from([(), ("unix",), (ip_network("10.0.0.0/8"),)]),
    ),
    topics=st.lists(PATTERNS, min_size=1, max_size=3).map(tuple),
)
IDENTITIES = st.builds(
    Identity,
    name=NAMES,
    proof=st.sampled_from([TOKEN, "anonymous"]),
    host=st.sampled_from(["unix", "10.1.2.3", "192.0.2.1"]),
)
