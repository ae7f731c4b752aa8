"""The reason why a request is allowed or denied: each rule, and its part in the decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pubsub.broker.access_rules.access import RESERVED
from pubsub.broker.access_rules.access_table import NO_TABLE, AccessRule, AccessTable, Who
from pubsub.broker.credentials.anonymous_policy import AUTO, admits_anonymous
from pubsub.broker.credentials.identity import TOKEN, Identity
from pubsub.settings import matcher

DECIDES = "decides"
LATER = "not reached"
TOPICLESS = ("admin", "metrics")
# An address of another machine.
_ELSEWHERE = "192.0.2.1"


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """A request to explain; ``topic`` is empty for actions about no topic."""

    identity: Identity
    action: str
    topic: str


@dataclass(frozen=True, slots=True)
class RuleStep:
    """A rule, and its ``part`` in the decision: DECIDES, LATER, or why it does not match."""

    rule: AccessRule
    part: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decision about a request to one listener. ``notes`` are further conditions."""

    allowed: bool
    reason: str
    steps: Sequence[RuleStep]
    notes: Sequence[str]


def explain(
    table: AccessTable, protocol: str, settings: Mapping[str, Any], request: AccessRequest
) -> Explanation:
    """Explain the decision of the rules of a listener of ``protocol`` with these settings.

    An anonymous client that is not served has no rights, whatever the rules say.
    """
    steps: list[RuleStep] = []
    decided: AccessRule | None = None
    for rule in table.listed(settings):
        part = LATER if decided else _part(table, rule, protocol, request)
        if part == DECIDES:
            decided = rule
        steps.append(RuleStep(rule, part))
    allowed = decided is not None and decided.allow
    identity = request.identity
    if identity.is_anonymous and not admits_anonymous(settings, identity.host):
        policy = settings["allow-anonymous"]
        allowed, reason = False, f"anonymous clients are not served: allow-anonymous is {policy}"
    elif decided is None:
        reason = "no rule is about this request, and there is a table [[access]]"
    elif decided is NO_TABLE and _is_closed(settings, request):
        allowed, reason = False, "reserved topics have to be granted"
    else:
        reason = decided.origin
    notes = _notes(settings, request, decided, allowed)
    if _depends_on_issuer(steps, request):
        notes.append("some rules are about tokens of one issuer: name it with --issuer")
    if allowed and identity.is_anonymous and _depends_on_address(settings, identity):
        notes.append("clients of other machines are not served: allow-anonymous is auto")
    return Explanation(allowed, reason, steps, notes)


def _depends_on_address(settings: Mapping[str, Any], identity: Identity) -> bool:
    """Return whether the client is served only if it is on the machine of the broker."""
    is_auto = settings["allow-anonymous"] == AUTO
    return is_auto and not identity.host and not admits_anonymous(settings, _ELSEWHERE)


def _depends_on_issuer(steps: Sequence[RuleStep], request: AccessRequest) -> bool:
    open_question = request.identity.proof == TOKEN and not request.identity.issuer
    return open_question and any(step.rule.who.issuers for step in steps)


def _part(table: AccessTable, rule: AccessRule, protocol: str, request: AccessRequest) -> str:
    """Return DECIDES, or the first condition that the request does not meet."""
    if request.action not in rule.actions:
        return "about other actions"
    for name in ("proofs", "issuers", "listeners", "networks", "identities", "groups"):
        # Each condition alone.
        condition = getattr(rule.who, name)
        who = replace(Who(), **{name: condition})
        if condition and not table.is_about(who, request.identity, protocol):
            return f"about other {name}"
    if not rule.matcher_for(request.identity.name)(request.topic):
        return "about other topics"
    return DECIDES


def _is_closed(settings: Mapping[str, Any], request: AccessRequest) -> bool:
    own = [pattern for pattern in settings["grant"] if pattern.startswith(RESERVED)]
    return request.topic.startswith(RESERVED) and not matcher(own)(request.topic)


def _notes(
    settings: Mapping[str, Any], request: AccessRequest, rule: AccessRule | None, allowed: bool
) -> list[str]:
    if not allowed or rule is None:
        return []
    notes = [f"a token, if one is presented, needs the permission {request.action} as well"]
    if request.action in TOPICLESS:
        if rule is NO_TABLE:
            notes.append("without a token, only if there are no secrets, from the same machine")
    elif rule.without_key or matcher(settings["grant"])(request.topic):
        notes.append("if the topic has a queue key, it is not asked for")
    else:
        notes.append("if the topic has a queue key, it has to be presented as well")
    return notes
