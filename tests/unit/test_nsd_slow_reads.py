"""nsd: a Get whose history takes time to be read."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Page
from pubsub.protocols.nsd import message_list
from pubsub.store.memory_store import MemoryStore
from tests.unit import nsd_lines as wire
from tests.unit.nsd_lines import SUCCESS, Nsd


class SlowReads(MemoryStore):
    """A history whose pages a test delivers."""

    def __init__(self) -> None:
        super().__init__(1000, 2**20)
        self.pages: list[tuple[Deferred[Page], Page]] = []
        self.lost: tuple[tuple[int, int], ...] = ()

    def read(self, *given: Any, **named: Any) -> Deferred[Page]:
        """See ``IStore``."""
        found: list[Page] = []
        super().read(*given, **named).addCallback(found.append)
        page = Page(found[0].batches, found[0].next_offset, self.lost)
        done: Deferred[Page] = Deferred()
        self.pages.append((done, page))
        return done

    def deliver(self) -> None:
        """Deliver the pages that were requested."""
        pages, self.pages = self.pages, []
        for done, page in pages:
            done.callback(page)


class SlowReadTests(SynchronousTestCase):
    """An identity that reads the channels of two others"""

    def setUp(self) -> None:
        self.store = SlowReads()
        self.nsd = Nsd(store=self.store)
        for name in ("ben", "cid"):
            self.nsd.ask(wire.open_(name), wire.publish(name, f"of {name}"))
        self.client = self.nsd.connect("nsd")
        self.client.send(wire.subscribe("ada", "ben") + wire.subscribe("ada", "cid"))
        assert self.client.take() == SUCCESS * 2

    def get(self) -> None:
        """Send a Get, whose page does not come yet."""
        self.client.send(wire.get("ada"))
        self.nsd.pump()
        assert len(self.store.pages) == 1
        assert self.client.take() == b""

    def bodies(self) -> list[str]:
        """Deliver the pages; return the bodies of the list."""
        while self.store.pages:
            self.store.deliver()
            self.nsd.pump()
        return wire.bodies(self.client.take())

    def test_all_messages_come(self) -> None:
        self.get()
        assert self.bodies() == ["of ben", "of cid"]
        assert self.client.protocol.figures().messages_out == 2

    def test_a_right_that_is_lost_meanwhile(self) -> None:
        self.get()
        listener = self.nsd.listeners["nsd"]
        listener.reconfigure({**listener.settings, "allow-subscribe": ("cid",)})
        assert self.bodies() == ["of cid"]

    def test_damaged_messages_are_counted(self) -> None:
        self.store.lost = ((1, 4), (7, 8))
        self.get()
        assert self.bodies() == ["of ben", "of cid"]
        assert self.nsd.broker.counters.dropped == 4

    def test_a_client_that_leaves_meanwhile(self) -> None:
        self.get()
        self.client.stream.lose()
        self.store.deliver()
        self.nsd.pump()
        assert self.store.pages == []
        assert self.client.take() == b""


class TurnTests(SynchronousTestCase):
    """Lists of several pages, of several clients"""

    def test_each_page_but_the_first_waits_for_its_turn(self) -> None:
        """So a tick is as short with many lists as with few."""
        house = Nsd(store=MemoryStore(1000, 2**20))
        texts = house.write_history(10, 5)
        clients = [house.connect("nsd") for _ in range(8)]
        cursors = house.broker.cursors
        with (
            patch.object(message_list, "PAGE_BYTES", 1),
            patch.object(house.store, "read", wraps=house.store.read) as read,
        ):
            with patch.object(cursors, "schedule") as schedule:
                for client in clients:
                    client.send(wire.get("ada"))
                turns = [call.args[0] for call in schedule.call_args_list]
                assert (len(turns), read.call_count) == (8, 8)
                turns.pop(0).read()
                assert read.call_count == 9
                turns.append(schedule.call_args.args[0])
            for turn in turns:
                cursors.schedule(turn)
            house.pump()
            assert read.call_count == 80
        for client in clients:
            assert wire.bodies(client.take()) == texts

    def test_the_first_page_of_a_long_list_waits_too(self) -> None:
        house = Nsd(store=MemoryStore(1000, 2**20))
        texts = house.write_history(10, 5)
        client, cursors = house.connect("nsd"), house.broker.cursors
        for offsets, waits in ((10, False), (9, True)):
            with (
                patch.object(message_list, "_AT_ONCE", offsets),
                patch.object(cursors, "schedule", wraps=cursors.schedule) as schedule,
            ):
                client.send(wire.get("ada"))
                assert schedule.called == waits
            assert wire.bodies(client.take()) == texts
