"""Cursor: access rules and queue keys change and topics end while it reads."""

from __future__ import annotations

from pubsub.broker.listeners.listener import Listener
from pubsub.kernel import Columns
from pubsub.store.memory_store import MemoryStore
from tests.unit.cursor_case import CursorCase
from tests.unit.fakes import Ruled, Transport, make_listener, recheck_all


class CursorChangeCase(CursorCase):
    """A cursor whose subscriber is rechecked by a listener's rules."""

    listener: Listener

    def start_broker(self, store: MemoryStore) -> None:
        super().start_broker(store)
        self.listener = make_listener(self.broker, slow_consumer="drop")
        self.reader = Ruled(self.listener)
        self.transport = Transport()
        self.box = self.listener.outbox(self.transport, self.reader)
        self.transport.outbox = self.box

    def allow(self, *names: str) -> None:
        self.listener.reconfigure({**self.listener.settings, "allow-subscribe": names})

    def goes_on(self) -> list[bytes]:
        """Return the messages delivered when the transport has room again, and live ones."""
        before = len(self.lines())
        self.transport.drain()
        self.advance()
        for topic in (self.news, self.sport):
            name = topic.name.encode()
            # Not through the rules of a listener, as only the subscriber is tested.
            self.broker.dispatcher.publish(topic, Columns.of([name]), b"", "toy")
        self.advance()
        return self.lines()[before:]


class RevocationTests(CursorChangeCase):
    """Topics that are closed while the subscriber catches up"""

    def test_a_topic_closed_during_the_replay_ends_once(self) -> None:
        self.start_with_large_messages(12, self.news, self.sport)
        self.allow("news")
        recheck_all(self.broker.router, self.broker.topics)
        rest = self.goes_on()
        assert rest[-2:] == [b"10", b"news"]
        assert b"11" not in rest
        assert b"sport" not in rest
        assert self.reader.revoked == [self.sport]
        assert list(self.box.subscriptions) == [self.news]

    def test_a_closed_topic_without_missed_messages_does_not_become_live(self) -> None:
        self.publish(self.sport, b"s")
        self.start_with_large_messages(12, self.news)
        self.allow("news")
        recheck_all(self.broker.router, self.broker.topics)
        rest = self.goes_on()
        assert b"sport" not in rest
        assert rest[-2:] == [b"11", b"news"]
        assert list(self.box.subscriptions) == [self.news]

    def test_a_queue_key_closes_it(self) -> None:
        self.publish(self.sport, b"s")
        self.start_with_large_messages(12, self.news)
        self.broker.queue_keys.close(self.sport, b"key", "ada", "client")
        assert b"sport" not in self.goes_on()


class EndedTests(CursorChangeCase):
    """Topics that have ended since the subscriber left"""

    def test_an_ended_topic_does_not_delay_the_others(self) -> None:
        self.publish(self.sport, b"s0")
        self.publish(self.news, b"n1")
        self.broker.topic_lifecycle.end(self.sport)
        self.resume(self.news, self.sport)
        self.advance()
        assert self.box.cursor is None
        self.publish(self.news, b"live")
        self.advance()
        assert self.lines()[-2:] == [b"n1", b"live"]

    def test_a_new_topic_of_the_same_name_is_distinct(self) -> None:
        self.publish(self.news, b"n0")
        self.broker.topic_lifecycle.end(self.sport)
        again = self.broker.topics.create("sport")
        self.publish(again, b"not for bob")
        self.resume(self.news, self.sport)
        self.advance()
        self.publish(again, b"nor this")
        self.advance()
        assert self.lines() == [b"n0"]
