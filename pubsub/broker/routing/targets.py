"""A changing set of outboxes, and the tuple of them that messages are delivered to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView
from typing import Generic, Protocol, TypeVar

from pubsub.kernel import Tally, add_to_each


class CountedTraffic(Protocol):
    """A ``Traffic``, as its outboxes are counted in it."""

    @property
    def delivered(self) -> tuple[Tally, ...]: ...


class CountedOutbox(Protocol):
    """An outbox: a tally of what was written to it, and the ``traffic`` of its protocol."""

    messages: int
    nbytes: int

    @property
    def traffic(self) -> CountedTraffic: ...


_Recipient = TypeVar("_Recipient", bound=CountedOutbox)


class Targets(Generic[_Recipient]):
    """Outboxes of one protocol, in the order in which they were added.

    ``messages`` and ``nbytes`` count what was written to each of them since ``settle``. ``known``
    is ``targets``, or empty after a change: to read it takes no call.
    """

    __slots__ = ("_recipients", "known", "messages", "nbytes")

    def __init__(self, recipients: Iterable[_Recipient] = ()) -> None:
        self._recipients: dict[_Recipient, None] = dict.fromkeys(recipients)
        self.known: tuple[_Recipient, ...] = ()
        self.messages = self.nbytes = 0

    def __len__(self) -> int:
        return len(self._recipients)

    def __iter__(self) -> Iterator[_Recipient]:
        return iter(self._recipients)

    def add(self, recipient: _Recipient) -> None:
        """Deliver to ``recipient`` from now on."""
        self.settle()
        self._recipients[recipient] = None
        self.known = ()

    def discard(self, recipient: _Recipient) -> None:
        """Deliver nothing more to ``recipient``."""
        self.settle()
        self._recipients.pop(recipient, None)
        self.known = ()

    def settle(self) -> None:
        """Count what was written for each outbox, for the protocol, and in total."""
        if self.messages and self.known:
            totals = self.known[0].traffic.delivered
            add_to_each(self.known, self.messages, self.nbytes, totals)
        self.messages = self.nbytes = 0

    @property
    def recipients(self) -> KeysView[_Recipient]:
        """The outboxes, as a set."""
        return self._recipients.keys()

    @property
    def targets(self) -> tuple[_Recipient, ...]:
        """See ``Audience``."""
        # Rebuilt only after a change.
        targets = self.known = self.known or tuple(self._recipients)
        return targets
