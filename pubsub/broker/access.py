"""Which topics the clients of a listener may publish to and subscribe to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence

from pubsub.errors import NotAuthorized
from pubsub.settings import matcher

RESERVED = "$SYS/"
"""How the names of the broker's own topics begin."""
# Decisions kept a rule; beyond it they are made anew, so that names cannot fill memory.
_CACHED = 10_000
# Combinations of topics that are remembered likewise.
_MAX_MIXES = 1024


class Rule:
    """Shell-style topic patterns, with the answers they gave before."""

    __slots__ = ("_all", "_answers", "_matches")

    def __init__(self, patterns: Sequence[str]) -> None:
        self._all = "*" in patterns
        self._matches: Callable[[str], bool] = matcher(patterns)
        self._answers: dict[str, bool] = {}

    def allows(self, name: str) -> bool:
        """Does a pattern match the topic ``name``?"""
        if self._all:
            return True
        answer = self._answers.get(name)
        if answer is None:
            if len(self._answers) >= _CACHED:
                self._answers.clear()
            answer = self._answers[name] = self._matches(name)
        return answer


class AccessRules:
    """The ``allow-publish``, ``allow-subscribe`` and ``grant`` patterns of one listener.

    ``closed`` holds the names of the topics that have a queue key; of these only what ``grant``
    names is open here. ``exclusive`` holds those that nobody may read here at all. Topics that
    begin with RESERVED are closed whether they have a key or not, and only a pattern of ``grant``
    that begins so itself names them.
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
        self._allowed: dict[tuple[str, ...], bool] = {}
        self._exclusive = exclusive

    def check_publish(self, name: str) -> None:
        """Raises NotAuthorized unless clients may publish to the topic ``name``."""
        if not self._publish.allows(name) or self._locked(name):
            raise NotAuthorized(name)

    def may_publish_all(self, names: tuple[str, ...]) -> bool:
        """True if clients may publish to all these topics and none of them has a queue key.

        False does not mean that a client may not: ``check_publish`` tells for each topic.
        """
        allowed = self._allowed.get(names)
        if allowed is None:
            if len(self._allowed) >= _MAX_MIXES:
                self._allowed.clear()
            allowed = self._allowed[names] = all(
                self._publish.allows(name) and not name.startswith(RESERVED) for name in names
            )
        closed = self._closed
        return allowed and not (closed and any(name in closed for name in names))

    def may_subscribe(self, name: str) -> bool:
        """May clients read the topic ``name``?"""
        return (
            self._subscribe.allows(name) and not self._locked(name) and name not in self._exclusive
        )

    def check_subscribe(self, name: str) -> None:
        """Raises NotAuthorized unless clients may read the topic ``name``."""
        if not self.may_subscribe(name):
            raise NotAuthorized(name)

    def may_read(self, name: str, permitted: bool) -> bool:
        """May the history of the topic ``name`` be read, by one whose token permits that or not?"""
        if name in self._exclusive or not self._subscribe.allows(name):
            return False
        return permitted or not self._locked(name)

    def may_write(self, name: str, proved: bool) -> bool:
        """May the topic ``name`` be published to, by one who has proved a right to or not?"""
        return self._publish.allows(name) and (proved or not self._locked(name))

    def _locked(self, name: str) -> bool:
        if name.startswith(RESERVED) and not self._reserved.allows(name):
            return True
        return name in self._closed and not self._grant.allows(name)
