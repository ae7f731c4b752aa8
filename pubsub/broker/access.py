"""Access rules: the topics that the clients of a listener may publish to and subscribe to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence

from pubsub.broker.combination_cache import CombinationCache
from pubsub.errors import NotAuthorized
from pubsub.settings import matcher

RESERVED = "$SYS/"
"""The prefix of the broker's own topics."""
# Decisions cached by a rule; the cache is then cleared, so that topic names cannot fill memory.
_CACHED = 10_000


class Rule:
    """Shell-style topic patterns, with a cache of decisions."""

    __slots__ = ("_all", "_decisions", "_matches")

    def __init__(self, patterns: Sequence[str]) -> None:
        self._all = "*" in patterns
        self._matches: Callable[[str], bool] = matcher(patterns)
        self._decisions: dict[str, bool] = {}

    def allows(self, name: str) -> bool:
        """Return whether a pattern matches the topic ``name``."""
        if self._all:
            return True
        decision = self._decisions.get(name)
        if decision is None:
            if len(self._decisions) >= _CACHED:
                self._decisions.clear()
            decision = self._decisions[name] = self._matches(name)
        return decision


class AccessRules:
    """The ``allow-publish``, ``allow-subscribe`` and ``grant`` patterns of one listener.

    ``closed`` has the names of topics with a queue key, which need a pattern in ``grant``.
    ``exclusive`` has the names of topics that no client of this listener may read. Topics that
    begin with RESERVED are always closed, and only patterns of ``grant`` that begin with it
    match them.
    """

    __slots__ = (
        "_allowed",
        "_closed",
        "_exclusive",
        "_grant",
        "_publish",
        "_reserved",
        "_subscribe",
    )

    def __init__(
        self,
        publish: Sequence[str],
        subscribe: Sequence[str],
        grant: Sequence[str] = (),
        closed: Collection[str] = (),
        exclusive: Container[str] = (),
    ) -> None:
        self._publish = Rule(publish)
        self._subscribe = Rule(subscribe)
        self._grant = Rule(grant)
        self._reserved = Rule([pattern for pattern in grant if pattern.startswith(RESERVED)])
        self._closed = closed
        self._allowed: CombinationCache[bool] = CombinationCache()
        self._exclusive = exclusive

    def check_publish(self, name: str) -> None:
        """Raise NotAuthorized unless clients may publish to the topic ``name``."""
        if not self._publish.allows(name) or self._locked(name):
            raise NotAuthorized(name)

    def may_publish_all(self, names: tuple[str, ...]) -> bool:
        """True if clients may publish to all these topics and none of them has a queue key.

        False does not mean that a client may not: ``check_publish`` tells for each topic.
        """
        allowed = self._allowed.get(names)
        if allowed is None:
            allowed = all(
                self._publish.allows(name) and not name.startswith(RESERVED) for name in names
            )
            self._allowed.put(names, allowed)
        closed = self._closed
        return allowed and not (closed and any(name in closed for name in names))

    def may_subscribe(self, name: str) -> bool:
        """Return whether clients may read the topic ``name``."""
        return (
            self._subscribe.allows(name) and not self._locked(name) and name not in self._exclusive
        )

    def check_subscribe(self, name: str) -> None:
        """Raise NotAuthorized unless clients may read the topic ``name``."""
        if not self.may_subscribe(name):
            raise NotAuthorized(name)

    def may_read(self, name: str, permitted: bool) -> bool:
        """Return whether the history of the topic ``name`` may be read.

        ``permitted`` tells whether the client's token permits to read closed topics.
        """
        if name in self._exclusive or not self._subscribe.allows(name):
            return False
        return permitted or not self._locked(name)

    def may_write(self, name: str, proved: bool) -> bool:
        """Return whether the topic ``name`` may be published to.

        ``proved`` tells whether the client has presented the topic's queue key.
        """
        return self._publish.allows(name) and (proved or not self._locked(name))

    def _locked(self, name: str) -> bool:
        if name.startswith(RESERVED) and not self._reserved.allows(name):
            return True
        return name in self._closed and not self._grant.allows(name)
