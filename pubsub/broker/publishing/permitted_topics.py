"""``PermittedTopics``: topics whose messages may be gathered without another look at them.

For most small reads of several topics, to look up their topics, the client's rights and the state
of each topic took half of the time. The topics of reads that were gathered are remembered here, by
the address that the frames have, for all clients with equal rights on a listener.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pubsub.broker.topic_space.publishing_state import state_changes

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import View
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.broker.topic_space.durability import Durability
    from pubsub.broker.topic_space.topics import Topic

# Estimated bytes of an address, and of a view that nothing else keeps (the rules about a client and
# some decisions); of all together, as thousands of clients may have rules of their own.
_ADDRESS_BYTES, _VIEW_BYTES, _MOST_BYTES = 120, 4000, 16 * 1024 * 1024


class PermittedTopics:
    """The topics ``by_address`` that clients with the rights of ``view`` may publish to.

    This broker hosts them, they have the same ``durability``, and nothing blocks them, as long as
    ``state_changes`` has ``seen``. ``view`` is None if they have been forgotten for good.
    """

    __slots__ = ("by_address", "durability", "seen", "view")

    def __init__(self, view: View, durability: Durability) -> None:
        self.view: View | None = view
        self.by_address: dict[Any, Topic] = {}
        self.durability = durability
        self.seen = state_changes.count

    def begin_again(self, durability: Durability) -> None:
        """Forget the topics: the state of one has changed, or others have this ``durability``."""
        self.by_address.clear()
        self.durability = durability
        self.seen = state_changes.count


class PermittedByView:
    """The ``PermittedTopics`` of each view that clients of a listener have.

    ``version`` returns another value once the rules have changed, and so the views.
    """

    def __init__(self, memory: MemoryBudget, version: Callable[[], object]) -> None:
        self._version = version
        self._seen = version()
        self._found: dict[View, PermittedTopics] = {}
        self._account = memory.cache(_MOST_BYTES, self._forget)

    def add(self, view: View, addresses: Sequence[Any], topics: Sequence[Topic]) -> PermittedTopics:
        """Remember ``topics``, each with its address; they have just been looked at."""
        durability = topics[0].durability
        found = self._found.get(view)
        if found is None:
            if self._seen != (version := self._version()):
                # Nothing else would let go of the views of rules that were replaced.
                self.clear()
                self._seen = version
            self._account.charge(_VIEW_BYTES)
            found = self._found[view] = PermittedTopics(view, durability)
        elif found.seen != state_changes.count or found.durability is not durability:
            self._account.charge(-_ADDRESS_BYTES * len(found.by_address))
            found.begin_again(durability)
        known = len(found.by_address)
        found.by_address.update(zip(addresses, topics, strict=True))
        self._account.charge(_ADDRESS_BYTES * (len(found.by_address) - known))
        return found

    def clear(self) -> None:
        """Forget everything."""
        if self._found:
            self._account.clear()

    def _forget(self) -> None:
        # Publishers may have these objects.
        for found in self._found.values():
            found.by_address.clear()
            found.view = None
        self._found.clear()
