"""The close of a WebSocket by its client: the requests before it are answered."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.clients.frame_turns import FRAMES
from pubsub.http_api.requests.flow_control import WAIT_SECONDS
from tests.unit.fakes import Held
from tests.unit.slow_store import Slow
from tests.unit.web import WebHouse
from tests.unit.web_sockets import connected


class ClientCloseTests(SynchronousTestCase):
    """Requests, and a close behind them in the same read"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.client = connected(self.house)

    def close_behind(self, count: int, topic: str = "a") -> None:
        """Send ``count`` messages to a topic, and a close."""
        for number in range(count):
            row = {"id": number, "op": "publish", "topic": topic, "value": str(number)}
            self.client.frames.send_text(json.dumps(row).encode())
        self.client.frames.send_close(1000)
        self.client.client.send(b"".join(self.client.frames.data_to_send()))

    def test_more_than_a_turn_takes(self) -> None:
        self.close_behind(FRAMES)
        for _ in range(FRAMES):
            self.house.clock.advance(0)
        assert [reply["id"] for reply in self.client.pull()] == list(range(FRAMES))
        assert self.client.close_code == 1000
        assert self.house.store.next_offset == FRAMES

    def test_a_topic_that_is_held(self) -> None:
        holder = Held()
        topic = self.house.broker.topics.create("a")
        topic.block(holder)
        self.close_behind(3)
        self.house.pass_time(WAIT_SECONDS / 2)
        assert (self.client.pull(), self.client.close_code) == ([], None)
        topic.unblock(holder)
        assert len(self.client.pull()) == 3
        assert self.client.close_code == 1000
        assert self.house.store.next_offset == 3

    def test_a_topic_that_is_held_for_long(self) -> None:
        holder = Held()
        topic = self.house.broker.topics.create("a")
        topic.block(holder)
        self.close_behind(3)
        self.house.pass_time(WAIT_SECONDS + 2)
        assert [reply["error"]["code"] for reply in self.client.pull()] == ["rate-limited"]
        assert self.client.close_code == 1000
        topic.unblock(holder)
        self.house.pass_time(1)
        # The second one waited already.
        assert self.house.store.next_offset == 1

    def test_messages_that_are_not_stored_yet(self) -> None:
        slow = Slow()
        self.house = WebHouse(slow)
        self.client = connected(self.house)
        self.close_behind(2)
        assert (self.client.pull(), self.client.close_code) == ([], None)
        for call in slow.waiting:
            call(True)
        assert len(self.client.pull()) == 2
        assert self.client.close_code == 1000

    def test_a_client_that_closes_its_half_of_the_connection_too(self) -> None:
        slow = Slow()
        self.house = WebHouse(slow)
        self.client = connected(self.house)
        self.close_behind(2)
        self.client.client.channel.readConnectionLost()
        assert not self.client.stream.closed
        for call in slow.waiting:
            call(True)
        assert len(self.client.pull()) == 2
        assert self.client.close_code == 1000
        self.house.pass_time(1)
        assert self.client.stream.closed

    def test_the_token_ends_meanwhile(self) -> None:
        self.client = connected(self.house, token=self.house.token("publish", lasts=5.0).decode())
        self.house.broker.topics.create("a").block(Held())
        self.close_behind(3)
        self.house.pass_time(7 + WAIT_SECONDS)
        # The answer to its own close, as each side sends one only.
        assert self.client.close_code == 1000
        assert self.house.store.next_offset == 0
