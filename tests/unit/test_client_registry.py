"""The connections of a broker by their marks."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.clients.client_registry import ClientRegistry
from tests.unit.fakes import Guest, make_broker


def guests(count: int) -> tuple[ClientRegistry, list[Guest]]:
    """Return a registry with guests, whose marks are 1, 2 and so on."""
    broker = make_broker()
    return broker.clients, [Guest(broker) for _ in range(count)]


class WalkTests(SynchronousTestCase):
    """A walk over the connections holds while they come and go"""

    def test_it_yields_all_with_higher_marks_in_order(self) -> None:
        registry, found = guests(200)
        assert list(registry.after(0)) == found
        assert list(registry.after(100)) == found[100:]
        assert list(registry.after(200)) == []

    def test_those_that_leave_are_not_yielded_and_new_ones_are(self) -> None:
        registry, found = guests(200)
        walk = registry.after(0)
        assert next(walk) is found[0]
        for guest in found[1:151]:
            registry.discard(guest)
        late = found[150]
        late.mark = 1000
        registry.add(late)
        assert list(walk) == [*found[151:], late]

    def test_one_is_found_by_its_mark(self) -> None:
        registry, found = guests(2)
        assert registry.get(2) is found[1]
        registry.discard(found[1])
        assert registry.get(2) is None
        assert found[1] not in registry
        registry.discard(found[1])
        assert len(registry) == 1
