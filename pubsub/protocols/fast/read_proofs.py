"""fast: proofs that tokens permit to publish, remembered while they hold.

They are for reads that bring messages of several topics, and for lone messages like the last ones.

A proof says that every token of a read permits to publish to its topic. It holds until a token
ends, a queue key changes or the secrets change (fast §5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pubsub.broker.combination_cache import MAX_COMBINATION, CombinationCache
from pubsub.errors import Refused

if TYPE_CHECKING:
    from pubsub.broker.listener import Listener
    from pubsub.broker.tokens import Token
    from pubsub.protocols.fast.message_heads import Source


class Proof(NamedTuple):
    """``token`` and those like it hold from ``begins`` to before ``ends``, for these versions."""

    token: Token
    begins: float
    ends: float
    tokens: int
    keys: int


class Proofs:
    """The proofs of one listener."""

    def __init__(self, listener: Listener) -> None:
        self._tokens = listener.tokens
        self._keys = listener.queue_keys
        self._topics = listener.topics
        self._seconds = listener.wall.system
        self._proofs: CombinationCache[Proof] = CombinationCache(listener.memory)

    def holds(self, proof: Proof) -> bool:
        """Return whether ``proof`` holds now."""
        return (
            proof.begins <= self._seconds() < proof.ends
            and proof.tokens == self._tokens.version
            and proof.keys == self._keys.version
        )

    def find(self, sources: Sequence[Source]) -> Proof | None:
        """Return a proof whose token stands for those of all ``sources``, of one subject.

        None if some messages are to be refused, if a token has not been verified before, or if
        there are several subjects.
        """
        key = tuple(sources)
        if len(key) > MAX_COMBINATION:
            return None
        proof = self._proofs.get(key)
        if proof is None or not self.holds(proof):
            self._proofs.discard(key)
            proof = self._prove(key, self._seconds())
            if proof is not None:
                self._proofs.put(key, proof)
        return proof

    def clear(self) -> None:
        """Forget all proofs, and with them the sources."""
        self._proofs.clear()

    def _prove(self, sources: Sequence[Source], now: float) -> Proof | None:
        tokens: dict[str, Token] = {}
        ends = float("inf")
        for source in sources:
            if not self._tokens.known(source.token):
                return None
            try:
                token = self._tokens.check(source.token, now)
                topic = self._topics.by_id(source.topic_id)
            except Refused:
                return None
            if not token.permits("publish") or not self._keys.matches(topic, token.queue_key):
                return None
            tokens.setdefault(token.subject, token)
            ends = min(ends, self._tokens.end(token))
        if len(tokens) != 1:
            return None
        (token,) = tokens.values()
        return Proof(token, now, ends, self._tokens.version, self._keys.version)
