"""Refusals of rheos (rheos §6): all are answered with FAILED; only the counted reason differs."""

from __future__ import annotations

from pubsub.errors import InvalidTopicName, Refused
from pubsub.protocols.rheos.codec import Fault

REASONS: dict[type[Refused], str] = {
    InvalidTopicName: Fault.CORRUPTED_TOPIC.value,
}
"""The counted reasons of refusals for which the protocol has its own names."""


def reason_of(refused: Refused) -> str:
    """Return the reason that is counted for a refusal of the broker."""
    return REASONS.get(type(refused), refused.reason)
