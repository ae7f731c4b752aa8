"""The interface to the module that shares the topics with other brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.broker.topic_space.topics import Topic

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Requirements:
    """The properties that a client requires of the topic that it creates.

    ``key`` is empty for a topic without a queue key; ``sync`` is None to leave it as it is.
    """

    key: bytes
    sync: bool | None
    exclusive: bool = False


class TopicSharing(Protocol):
    """Makes changes that all brokers must agree upon; set as ``TopicLifecycle.sharing``.

    ``apply`` makes the change at this broker, beginning in the reactor tick in which the others
    have agreed; its result is that of the Deferred. The Deferreds fail with Refused: BackplaneAway
    if that takes too long, another one if another broker was first.
    """

    def claimed(self, topic: Topic) -> None:
        """This broker begins to host ``topic``."""

    def create(
        self, name: str, required: Requirements, apply: Callable[[], Awaitable[Result]]
    ) -> Deferred[Result]:
        """Create a topic, or change its requirements; may fail with TopicExists."""

    def rotate(
        self, topic: Topic, key: bytes, apply: Callable[[], Awaitable[Result]]
    ) -> Deferred[Result]:
        """Replace the queue key; may fail with WrongKey."""

    def delete(self, name: str, apply: Callable[[], Deferred[None]]) -> Deferred[None]:
        """End a topic; it may be one that only another broker has."""

    def owned_elsewhere(self, name: str) -> bool:
        """Return whether the topic is exclusive, and its owner a client of another broker."""
