"""fast: proofs that tokens permit to publish, remembered while they hold.

They are for reads that bring messages of several topics, and for lone messages like the last ones.

A proof says that every token of a read permits to publish to its topic. It holds until a token
ends, a queue key changes or the secrets change (fast §5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pubsub.broker.routing.combination_cache import MAX_COMBINATION, CombinationCache
from pubsub.errors import Refused

if TYPE_CHECKING:
    from pubsub.broker.credentials.tokens import Token
    from pubsub.broker.listeners.listener import Listener
    from pubsub.protocols.fast.message_heads import Source


# Estimated bytes of one source, of the proof of one token, and of all of them, for the memory
# budget.
_SOURCE_BYTES, _PROOF_BYTES, _MAX_BYTES = 150, 550, 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """``token`` and those like it hold from ``begins`` to before ``ends``, for these versions.

    ``each`` has the token of each source if they have several holders, and is empty otherwise.
    """

    token: Token
    begins: float
    ends: float
    tokens: int
    keys: int
    each: tuple[Token, ...] = ()


class Proofs:
    """The proofs of one listener."""

    def __init__(self, listener: Listener) -> None:
        self._tokens = listener.tokens
        self._keys = listener.queue_keys
        self._topics = listener.topics
        self._seconds = listener.wall.system
        self._proofs: CombinationCache[Proof] = CombinationCache(listener.memory)
        # The proofs of single sources, of which those with one token are one object, and the
        # versions of tokens and keys that they are for.
        self._by_source: dict[Source, Proof] = {}
        self._by_token: dict[bytes, Proof] = {}
        self._versions = (-1, -1)
        self._account = listener.memory.cache(_MAX_BYTES, self._forget_single)

    def holds(self, proof: Proof) -> bool:
        """Return whether ``proof`` holds now."""
        return (
            proof.begins <= self._seconds() < proof.ends
            and proof.tokens == self._tokens.version
            and proof.keys == self._keys.version
        )

    def find(self, sources: Sequence[Source]) -> Proof | None:
        """Return the proof of all ``sources``.

        None if some messages are to be refused, or if a token has not been verified before.
        """
        key = tuple(sources)
        proof = self._proofs.get(key)
        if proof is None or not self.holds(proof):
            self._proofs.discard(key)
            proof = self._prove(key)
            if proof is not None and len(key) <= MAX_COMBINATION:
                self._proofs.put(key, proof)
        return proof

    def clear(self) -> None:
        """Forget all proofs, and with them the sources."""
        self._proofs.clear()
        self._account.clear()

    def _forget_single(self) -> None:
        self._by_source.clear()
        self._by_token.clear()

    def _prove(self, sources: Sequence[Source]) -> Proof | None:
        now, versions = self._seconds(), (self._tokens.version, self._keys.version)
        if versions != self._versions:
            # All are ended, and nothing else lets go of those whose sources do not come again.
            self.clear()
            self._versions = versions
        found: list[Proof | None] = list(map(self._by_source.get, sources))
        if not all(each and each.begins <= now < each.ends for each in set(found)):
            found = self._prove_each(sources, now)
        proofs = [each for each in found if each is not None]
        if len(proofs) < len(found):
            return None
        first, different = proofs[0], set(proofs)
        if len(different) == 1:
            return first
        ends = min([each.ends for each in different])
        is_one = all(each.token.holder == first.token.holder for each in different)
        tokens = () if is_one else tuple([each.token for each in proofs])
        return Proof(first.token, now, ends, *versions, tokens)

    def _prove_each(self, sources: Sequence[Source], now: float) -> list[Proof | None]:
        """Return the proof of each source; the last one is None if a source has none."""
        found: list[Proof | None] = []
        for source in sources:
            each = self._by_source.get(source)
            if each is None or not each.begins <= now < each.ends:
                each = self._prove_one(source, now)
            found.append(each)
            if each is None:
                break
        return found

    def _prove_one(self, source: Source, now: float) -> Proof | None:
        """Return the proof of one source, which is remembered: a read may bring any sources."""
        if not self._tokens.known(source.token):
            return None
        try:
            token = self._tokens.check(source.token, now)
            topic = self._topics.by_id(source.topic_id)
        except Refused:
            return None
        if not token.permits("publish") or not self._keys.matches(topic, token.queue_key):
            return None
        nbytes = 0
        proof = self._by_token.get(source.token)
        if proof is None or not proof.begins <= now < proof.ends:
            proof = Proof(token, now, self._tokens.end(token), *self._versions)
            nbytes = 0 if source.token in self._by_token else _PROOF_BYTES
            self._by_token[source.token] = proof
        if source not in self._by_source:
            nbytes += _SOURCE_BYTES
        self._by_source[source] = proof
        if nbytes:
            self._account.charge(nbytes)
        return proof
