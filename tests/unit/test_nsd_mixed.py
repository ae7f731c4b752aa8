"""nsd: publishes of known forms to several channels in one read."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.topic_space.durability import Durability
from tests.unit import nsd_lines as wire
from tests.unit.nsd_lines import SUCCESS, Nsd
from tests.unit.stepped_disk import Disk
from tests.unit.streams import Client

MISSING = wire.error("NO SUCH CHANNEL: c")


def line(channel: str, body: str, sender: str = "eve", **extra: object) -> bytes:
    """Return a publish to a channel; the identity of its sender is another."""
    request = json.loads(wire.publish(channel, body, **extra))
    request["message"]["from"] = sender
    return json.dumps(request).encode() + b"\n"


class MixedTests(SynchronousTestCase):
    """Each message is published as if it had come alone"""

    def client(self, nsd: Nsd) -> Client:
        """Return a client whose publishes have known forms."""
        client = nsd.connect("nsd")
        client.send(wire.open_("a") + wire.open_("b"))
        for _ in range(3):
            client.send(line("a", "early") + line("b", "early") + line("a", "early", "bob"))
        client.take()
        return client

    def published(self, nsd: Nsd) -> list[tuple[str, str, str]]:
        """Return the channel, the sender and the body of the messages after the early ones."""
        page = self.successResultOf(nsd.store.read(0, None, 10**6))
        found = [
            (one.topic, one.sender.decode(), body.decode())
            for batch in page.batches
            for _index, one in batch.runs()
            for body in one.payloads()
        ]
        return [one for one in found if one[2] != "early"]

    def test_the_order_and_the_senders(self) -> None:
        nsd = Nsd()
        client = self.client(nsd)
        sent = [("a", "eve", "1"), ("b", "eve", "2"), ("a", "eve", "3")]
        for messages in (sent, [*sent, ("a", "bob", "4"), ("b", "eve", "5")]):
            nsd = Nsd()
            client = self.client(nsd)
            client.send(b"".join(line(channel, body, who) for channel, who, body in messages))
            assert client.take() == SUCCESS * len(messages)
            assert self.published(nsd) == messages

    def test_further_fields_are_those_of_their_message(self) -> None:
        nsd = Nsd()
        client = self.client(nsd)
        data = line("a", "1") + line("b", "2", file="QUJD") + line("a", "3")
        client.send(data * 2)
        assert client.take() == SUCCESS * 6
        client.send(wire.get("b"))
        lists = json.loads(client.take())["messages"]
        assert [one.get("file") for one in lists if one["body"] == "2"] == ["QUJD"] * 2
        client.send(wire.get("a"))
        assert b"QUJD" not in client.take()

    def test_a_channel_that_was_not_opened(self) -> None:
        nsd = Nsd()
        client = self.client(nsd)
        # Another protocol may have made it.
        nsd.broker.topics.create("c")
        for _ in range(2):
            client.send(line("a", "1") + line("c", "2") + line("b", "3"))
            assert client.take() == SUCCESS + MISSING + SUCCESS
        assert self.published(nsd) == [("a", "eve", "1"), ("b", "eve", "3")] * 2
        assert nsd.broker.counters.refusals == {("nsd", "topic-not-found"): 2}

    def test_the_responses_wait_for_the_safest_of_the_channels(self) -> None:
        disk = Disk()
        nsd = Nsd(store=disk)
        client = self.client(nsd)
        nsd.broker.topics.named("b").set_durability(Durability.SYNC)
        while waiting := disk.writes + disk.syncs:
            disk.writes.clear()
            disk.syncs.clear()
            for call in waiting:
                call(True)
        client.take()
        client.send(line("a", "1") + line("b", "2") + line("a", "3"))
        assert disk.writes == []
        assert client.take() == b""
        for call in disk.syncs:
            call(False)
        assert client.take() == wire.error("UNCONFIRMED") * 3

    def test_messages_over_the_rate(self) -> None:
        nsd = Nsd(rate_messages=11)
        client = self.client(nsd)
        client.send(line("a", "1") + line("b", "2") + line("a", "3"))
        assert client.take() == SUCCESS * 2 + wire.error("RATE LIMIT EXCEEDED")
        assert self.published(nsd) == [("a", "eve", "1"), ("b", "eve", "2")]
