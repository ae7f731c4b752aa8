"""Applies new settings to a running broker, all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.broker.topic_space.durability import DurabilityRules

if TYPE_CHECKING:
    from pubsub.broker.audit_log.audit import AuditLog
    from pubsub.broker.credentials.tokens import TokenVerifier
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Slices
    from pubsub.broker.topic_space.topic_lifecycle import TopicLifecycle

AppliesSettings = Callable[[Mapping[str, Any]], object]
"""Takes the settings of the broker. It may not raise: all of them are valid."""


class Reconfiguration:
    """Applies the settings of a reload to the ``appliers`` of a broker and to its ``listeners``.

    ``recheck`` rechecks all subscriptions; it fires with how many stay and how many end.
    """

    def __init__(
        self,
        audit: AuditLog,
        tokens: TokenVerifier,
        listeners: Sequence[Listener],
        recheck: Callable[[], Deferred[tuple[int, int]]],
        appliers: Sequence[AppliesSettings],
    ) -> None:
        self.appliers = list(appliers)
        self._audit = audit
        self._tokens = tokens
        self._listeners = listeners
        self._recheck = recheck

    def apply(
        self,
        ring: SecretRing,
        settings: Mapping[tuple[str, str], Mapping[str, Any]],
        whole: Mapping[str, Any] | None,
    ) -> Deferred[tuple[int, int]]:
        """See ``BrokerService.reconfigure``."""
        # The only step that may fail, so the first.
        if whole is not None:
            self._audit.reconfigure(whole)
        before = self._tokens.ring
        self._set(ring, settings, whole)
        return self._recheck().addCallback(self._record, before, ring)

    def put_back(
        self,
        ring: SecretRing,
        settings: Mapping[tuple[str, str], Mapping[str, Any]],
        whole: Mapping[str, Any],
    ) -> None:
        """See ``BrokerService.put_back``."""
        self._set(ring, settings, whole)
        self._audit.reconfigure(whole)

    def _set(
        self,
        ring: SecretRing,
        settings: Mapping[tuple[str, str], Mapping[str, Any]],
        whole: Mapping[str, Any] | None,
    ) -> None:
        self._tokens.replace(ring)
        for listener in self._listeners:
            new = settings.get((listener.protocol, listener.endpoint))
            if new is not None:
                listener.reconfigure(new)
        if whole is not None:
            for reconfigure in self.appliers:
                reconfigure(whole)

    def _record(
        self, counts: tuple[int, int], before: SecretRing, ring: SecretRing
    ) -> tuple[int, int]:
        kept, removed = counts
        self._audit.record(
            "reload",
            secrets_added=sorted(secret.id for secret in ring if secret not in before),
            secrets_removed=sorted(secret.id for secret in before if secret not in ring),
            kept=kept,
            removed=removed,
        )
        return counts


def durability_applier(lifecycle: TopicLifecycle, slices: Slices) -> AppliesSettings:
    """Return the applier of ``durability``, to topics that exist in slices."""

    def reconfigure(settings: Mapping[str, Any]) -> None:
        rules = DurabilityRules(settings["durability"])
        if rules.rules != lifecycle.rules.rules:
            slices.run(lifecycle.reconfigure(rules))

    return reconfigure
