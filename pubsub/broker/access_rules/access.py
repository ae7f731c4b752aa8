"""Access rules: the actions that a client of a listener may take, by topic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Protocol

from pubsub.broker.routing.combination_cache import CombinationCache
from pubsub.errors import NotAuthorized
from pubsub.settings import matcher

RESERVED = "$SYS/"
"""The prefix of the broker's own topics."""
# Most names do not have it, so that no call is necessary to see that they are not reserved.
_SIGN = RESERVED[0]
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


class Decider(Protocol):
    """Decides about one action, by the name of a topic; the name is empty for no topic.

    ``open`` is True if it allows every topic.
    """

    @property
    def open(self) -> bool: ...

    def allows(self, topic: str) -> bool:
        """Return whether the rules allow it."""

    def waives(self, topic: str) -> bool:
        """Return whether the rules allow it without the topic's queue key."""

    def allows_some(self) -> bool:
        """Return whether there may be topics for which the rules allow it."""


class View:
    """The rights of clients on a listener with equal rights; their ``AccessRules`` share it.

    ``deciders`` has a Decider for each action. ``grant`` are the patterns of topics whose queue key
    is not asked for; those that begin with RESERVED open reserved topics. ``open_reserved`` if the
    deciders look after those. ``combinations`` has decisions about publishing to several topics,
    of ``remembered`` topics in all.
    """

    __slots__ = ("combinations", "deciders", "grant", "history", "publish", "reserved", "subscribe")

    def __init__(
        self,
        deciders: Mapping[str, Decider],
        grant: Sequence[str],
        open_reserved: bool,
        remembered: int = 0,
    ) -> None:
        self.deciders = deciders
        self.publish = deciders["publish"]
        self.subscribe = deciders["subscribe"]
        self.history = deciders["history"]
        self.grant = Rule(grant)
        own = [pattern for pattern in grant if pattern.startswith(RESERVED)]
        self.reserved = Rule(["*"] if open_reserved else own)
        self.combinations: CombinationCache[bool] = CombinationCache(most=remembered)


class AccessRules:
    """The rights of one client on a listener, by the rules for its identity.

    The object stays the same when the rules change: ``changed`` makes it ask ``view_of`` for the
    new ``view`` when it is used the next time. ``closed`` has the names of topics with a queue key,
    which have to be granted. ``exclusive`` has the names of topics that no client of the listener
    may read. Topics that begin with RESERVED are always closed, and only patterns that begin with
    it match them.
    """

    __slots__ = ("__weakref__", "_closed", "_exclusive", "_view_of", "known_view")

    def __init__(
        self,
        view_of: Callable[[], View],
        closed: Collection[str] = (),
        exclusive: Container[str] = (),
    ) -> None:
        self._view_of = view_of
        self.known_view: View | None = None
        """``view``, if it was used since the rules changed."""
        self._closed = closed
        self._exclusive = exclusive

    @property
    def view(self) -> View:
        """The rights by the rules as they are now."""
        if self.known_view is None:
            self.known_view = self._view_of()
        return self.known_view

    def changed(self) -> None:
        """The rules have changed."""
        self.known_view = None

    def check_publish(self, name: str) -> None:
        """Raise NotAuthorized unless the client may publish to the topic ``name``."""
        if not self.may_publish(name):
            raise NotAuthorized(name)

    def may_publish(self, name: str) -> bool:
        """Return whether the client may publish to the topic ``name``."""
        # Done for each lone message: without calls if the rules allow every topic.
        publish = (self.known_view or self.view).publish
        return (publish.open or publish.allows(name)) and not (
            (name in self._closed or _SIGN in name) and self._locked(name, publish)
        )

    def may_publish_all(self, names: tuple[str, ...], remember: bool = True) -> bool:
        """True if the client may publish to all these topics and none of them has a queue key.

        False does not mean that it may not: ``check_publish`` decides for each topic. The answer is
        remembered, unless these names will probably not come together again.
        """
        view = self.view
        allowed = view.combinations.get(names)
        if allowed is None:
            allowed = self._allows_each(names)
            if remember:
                view.combinations.put(names, allowed)
        closed = self._closed
        return allowed and not (closed and any(map(closed.__contains__, names)))

    def _allows_each(self, names: tuple[str, ...]) -> bool:
        publish = self.view.publish
        if _SIGN in "".join(names) and any(name.startswith(RESERVED) for name in names):
            return False
        return publish.open or all(map(publish.allows, names))

    def may_subscribe(self, name: str) -> bool:
        """Return whether the client may subscribe to the topic ``name``."""
        return self.may_follow(name)

    def check_subscribe(self, name: str) -> None:
        """Raise NotAuthorized unless the client may subscribe to the topic ``name``."""
        if not self.may_subscribe(name):
            raise NotAuthorized(name)

    def may_create(self, name: str) -> bool:
        """Return whether the client may create the topic ``name``."""
        create = self.view.deciders["create"]
        return create.allows(name) and not self._locked(name, create)

    def check_create(self, name: str) -> None:
        """Raise NotAuthorized unless the client may create the topic ``name``."""
        if not self.may_create(name):
            raise NotAuthorized(name)

    def may_follow(self, name: str, permitted: bool = False) -> bool:
        """Return whether the topic ``name`` may be subscribed to.

        ``permitted`` returns whether the client's token permits reading this topic if it is closed.
        """
        return self._may_take(self.view.subscribe, name, permitted)

    def may_read(self, name: str, permitted: bool = False) -> bool:
        """Return whether the history of the topic ``name`` may be read; see ``may_follow``."""
        return self._may_take(self.view.history, name, permitted)

    def may_read_some(self) -> bool:
        """Return whether there may be topics whose history the rules let the client read."""
        return self.view.history.allows_some()

    def _may_take(self, decider: Decider, name: str, permitted: bool) -> bool:
        if name in self._exclusive or not decider.allows(name):
            return False
        return permitted or not self._locked(name, decider)

    def may_write(self, name: str, proved: bool, action: str = "publish") -> bool:
        """Return whether the topic ``name`` may be published to, or deleted with this ``action``.

        ``proved`` returns whether the client has presented the topic's queue key.
        """
        decider = self.view.deciders[action]
        return decider.allows(name) and (proved or not self._locked(name, decider))

    def may(self, action: str, topic: str = "") -> bool:
        """Return whether the client may do this to ``topic``, which is empty for no topic.

        A topic with a queue key is closed, as no key is presented here. For ``rotate``, ``admin``
        and ``metrics`` the rules alone decide.
        """
        match action:
            case "subscribe":
                return self.may_follow(topic)
            case "history":
                return self.may_read(topic)
            case "create":
                return self.may_create(topic)
            case "publish" | "delete":
                return self.may_write(topic, False, action)
        return self.view.deciders[action].allows(topic)

    def check(self, action: str, topic: str) -> None:
        """Raise NotAuthorized unless ``may`` is true."""
        if not self.may(action, topic):
            raise NotAuthorized(topic)

    def _locked(self, name: str, decider: Decider) -> bool:
        view = self.view
        if name.startswith(RESERVED) and not view.reserved.allows(name):
            return True
        return name in self._closed and not (view.grant.allows(name) or decider.waives(name))
