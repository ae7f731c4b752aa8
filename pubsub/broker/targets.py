"""A changing set of outboxes, and the tuple of them that messages are delivered to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView
from typing import Generic, TypeVar

_Recipient = TypeVar("_Recipient")


class Targets(Generic[_Recipient]):
    """Outboxes in the order in which they were added."""

    __slots__ = ("_recipients", "_targets")

    def __init__(self, recipients: Iterable[_Recipient] = ()) -> None:
        self._recipients: dict[_Recipient, None] = dict.fromkeys(recipients)
        self._targets: tuple[_Recipient, ...] = ()

    def __len__(self) -> int:
        return len(self._recipients)

    def __iter__(self) -> Iterator[_Recipient]:
        return iter(self._recipients)

    def add(self, recipient: _Recipient) -> None:
        """Deliver to ``recipient`` from now on."""
        self._recipients[recipient] = None
        self._targets = ()

    def discard(self, recipient: _Recipient) -> None:
        """Deliver nothing more to ``recipient``."""
        self._recipients.pop(recipient, None)
        self._targets = ()

    @property
    def recipients(self) -> KeysView[_Recipient]:
        """The outboxes, as a set."""
        return self._recipients.keys()

    @property
    def targets(self) -> tuple[_Recipient, ...]:
        """See ``Audience``."""
        # Rebuilt only after a change.
        targets = self._targets = self._targets or tuple(self._recipients)
        return targets
