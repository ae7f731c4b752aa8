"""Reads of several topics in the history of their host, one after another (spot §7.8)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.unit import nsd_lines
from tests.unit.brokers import World, publish
from tests.unit.committed_history import SlowDisk
from tests.unit.nsd_lines import SUCCESS, bodies
from tests.unit.streams import Client

TIMEOUT = ("spot", "read-timeout")


class ReadTests(SynchronousTestCase):
    """A broker ``a`` with readers of the topics ``t`` and ``u``, which ``b`` hosts"""

    def setUp(self) -> None:
        self.world = World()
        self.disk = SlowDisk()
        self.b = self.world.house("b", store=self.disk)
        self.host = self.world.client(self.b)
        self.say(b"0")
        self.disk.write()
        self.a = self.world.house("a", "b", nsd={})
        self.refusals = self.a.broker.counters.refusals
        self.clients = {name: self.reader(name) for name in ("t", "u")}
        self.world.settle()

    def say(self, text: bytes) -> None:
        """Publish on both topics."""
        self.host.send(publish(b"t", b"t" + text) + publish(b"u", b"u" + text))

    def reader(self, channel: str) -> Client:
        client = self.a.connect("nsd")
        client.send(nsd_lines.subscribe(channel, channel))
        assert client.take() == SUCCESS
        return client

    def ask(self, *names: str) -> None:
        for name in names:
            self.clients[name].send(nsd_lines.get(name))
        self.world.settle()

    def answer(self, name: str) -> list[str]:
        self.a.pump()
        return bodies(self.clients[name].take())

    def check(self, count: int) -> None:
        """Check the answers to both requests."""
        for name in ("t", "u"):
            assert self.answer(name) == [f"{name}{number}" for number in range(count)]

    def test_all_are_read(self) -> None:
        self.ask("t", "u")
        self.check(1)
        self.say(b"1")
        self.ask("t", "u")
        assert [self.clients[name].take() for name in ("t", "u")] == [b"", b""]
        self.disk.write()
        self.world.settle()
        # The second request is sent with the reply to the first.
        self.disk.write()
        self.world.settle()
        self.check(2)

    def test_all_end_with_the_connection(self) -> None:
        self.say(b"1")
        self.ask("t", "u")
        (cable,) = self.world.cables
        cable.snap()
        self.world.settle()
        self.check(1)
        self.world.advance(1)
        self.disk.write()
        self.world.settle()
        self.disk.write()
        self.ask("t", "u")
        self.check(2)

    def test_a_get_of_both_waits_for_one_deadline(self) -> None:
        client = self.reader("t")
        client.send(nsd_lines.subscribe("t", "u"))
        assert client.take() == SUCCESS
        self.world.settle()
        self.say(b"1")
        client.send(nsd_lines.get("t"))
        self.world.advance(29)
        assert client.take() == b""
        self.world.advance(4)
        self.a.pump()
        assert sorted(bodies(client.take())) == ["t0", "u0"]
        assert self.refusals[TIMEOUT] == 1

    def test_a_late_reply_is_not_taken_for_that_of_another_topic(self) -> None:
        self.say(b"1")
        self.ask("t", "u")
        self.world.advance(33)
        assert self.refusals[TIMEOUT] == 1
        self.check(1)
        self.ask("u")
        self.disk.write()
        self.world.settle()
        self.disk.write()
        self.world.settle()
        assert self.answer("u") == ["u0", "u1"]
        self.ask("t")
        assert self.answer("t") == ["t0", "t1"]
