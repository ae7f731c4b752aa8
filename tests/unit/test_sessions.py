"""Sessions: ids, the resume window, takeover, limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.clients.sessions import SESSION_BYTES, Session, SessionRegistry
from pubsub.broker.figures.traffic import Traffic
from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import LimitReached, MemoryExhausted, SessionUnknown
from tests.unit.fakes import Owner, clock_at

KIND = ("toy", "subscriber")


NOBODY = Owner()


class SessionCase(SynchronousTestCase):
    """A registry with a window of 60 s for at most three sessions."""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.memory = MemoryBudget(0)
        self.displaced: list[str] = []
        self.drops: list[tuple[str, str, str, int]] = []

    def drop(
        self,
        client: str,
        topic: str,
        reason: str,
        count: int,
        connection: object,
        traffic: Traffic | None,
    ) -> None:
        self.drops.append((client, topic, reason, count))

    def registry(
        self, drawn: Iterable[int] = range(1, 100), window: float = 60, limit: int = 3
    ) -> SessionRegistry:
        draw = iter(drawn).__next__
        return SessionRegistry(draw, self.clock.seconds, window, limit, self.memory, self.drop)


class IdTests(SessionCase):
    """The ids of sessions"""

    def test_an_id_is_never_zero(self) -> None:
        sessions = self.registry([0, 0, 7])
        assert sessions.open(KIND, b"bob", NOBODY).id == 7

    def test_an_id_is_unique_among_live_and_resumable_sessions(self) -> None:
        sessions = self.registry([5, 5, 6, 5, 6, 0, 9])
        detached = sessions.open(KIND, b"a", NOBODY)
        sessions.detach(detached, {})
        assert sessions.open(KIND, b"b", NOBODY).id == 6
        assert sessions.open(KIND, b"c", NOBODY).id == 9

    def test_an_id_may_be_used_again_after_its_session_closed(self) -> None:
        sessions = self.registry([5, 5])
        sessions.close(sessions.open(KIND, b"a", NOBODY))
        assert sessions.open(KIND, b"a", NOBODY).id == 5

    def test_all_64_bits_are_kept(self) -> None:
        sessions = self.registry([2**64 - 1])
        session = sessions.open(KIND, b"a", NOBODY)
        assert sessions.find(2**64 - 1, KIND, b"a") is session


class ResumeTests(SessionCase):
    """find, resume and detach"""

    def test_a_detached_session_is_found_with_its_state(self) -> None:
        sessions = self.registry()
        session = sessions.open(KIND, b"bob", NOBODY)
        topic = Topic("news")
        sessions.detach(session, {topic: 42})
        self.clock.advance(59.9)
        found = sessions.find(session.id, KIND, b"bob")
        sessions.resume(found, NOBODY)
        assert found is session
        assert found.subscriptions == {topic: 42}

    def test_the_window_is_counted_from_the_end_of_the_connection(self) -> None:
        sessions = self.registry()
        session = sessions.open(KIND, b"bob", NOBODY)
        self.clock.advance(1000)
        sessions.detach(session, {})
        self.clock.advance(60)
        with pytest.raises(SessionUnknown):
            sessions.find(session.id, KIND, b"bob")
        assert len(sessions) == 0
        assert self.memory.used == 0

    def test_a_live_session_does_not_expire(self) -> None:
        sessions = self.registry()
        resumed = sessions.open(KIND, b"bob", NOBODY)
        sessions.detach(resumed, {})
        self.clock.advance(30)
        sessions.resume(sessions.find(resumed.id, KIND, b"bob"), NOBODY)
        self.clock.advance(1000)
        deque(sessions.expire(), maxlen=0)
        assert sessions.find(resumed.id, KIND, b"bob") is resumed

    def test_each_detachment_starts_a_full_window(self) -> None:
        sessions = self.registry()
        session = sessions.open(KIND, b"bob", NOBODY)
        for _ in range(3):
            sessions.detach(session, {})
            self.clock.advance(50)
            sessions.resume(sessions.find(session.id, KIND, b"bob"), NOBODY)
        assert len(sessions) == 1

    def test_only_sessions_past_their_window_expire(self) -> None:
        sessions = self.registry()
        first, second = (sessions.open(KIND, name, NOBODY) for name in (b"1", b"2"))
        sessions.detach(second, {})
        self.clock.advance(30)
        sessions.detach(first, {})
        self.clock.advance(30)
        deque(sessions.expire(), maxlen=0)
        assert len(sessions) == 1
        assert sessions.find(first.id, KIND, b"1") is first

    def test_kind_client_and_id_must_match(self) -> None:
        sessions = self.registry()
        session = sessions.open(KIND, b"bob", NOBODY)
        sessions.detach(session, {})
        for number, kind, client in (
            (session.id, ("toy", "publisher"), b"bob"),
            (session.id, KIND, b"bo"),
            (session.id, KIND, b""),
            (session.id + 1, KIND, b"bob"),
            (0, KIND, b"bob"),
        ):
            with pytest.raises(SessionUnknown):
                sessions.find(number, kind, client)
        assert sessions.find(session.id, KIND, b"bob") is session

    def test_a_new_connection_takes_over_from_a_live_one(self) -> None:
        sessions = self.registry()

        def leave() -> None:
            self.displaced.append("old")
            sessions.detach(session, {topic: 17})

        topic = Topic("news")
        session = sessions.open(KIND, b"bob", Owner(leave))
        sessions.resume(
            sessions.find(session.id, KIND, b"bob"), Owner(lambda: self.displaced.append("new"))
        )
        assert self.displaced == ["old"]
        assert session.subscriptions == {topic: 17}
        assert session.owner is not None
        session.owner.displaced()
        assert self.displaced == ["old", "new"]
        self.clock.advance(1000)
        deque(sessions.expire(), maxlen=0)
        assert len(sessions) == 1

    def test_a_closed_session_is_gone(self) -> None:
        sessions = self.registry()
        session = sessions.open(KIND, b"bob", NOBODY)
        sessions.detach(session, {})
        sessions.close(session)
        sessions.close(session)
        with pytest.raises(SessionUnknown):
            sessions.find(session.id, KIND, b"bob")
        assert self.memory.used == 0


class WindowZeroTests(SessionCase):
    """A window of zero: sessions end with their connections"""

    def test_nothing_is_kept(self) -> None:
        sessions = self.registry(window=0)
        session = sessions.open(KIND, b"bob", NOBODY)
        assert not sessions.keeps(session)
        sessions.detach(session, {})
        assert len(sessions) == 0
        assert self.memory.used == 0

    def test_a_live_session_is_not_found_and_its_connection_stays(self) -> None:
        sessions = self.registry(window=0)
        session = sessions.open(KIND, b"bob", Owner(lambda: self.displaced.append("old")))
        with pytest.raises(SessionUnknown):
            sessions.find(session.id, KIND, b"bob")
        assert self.displaced == []
        assert len(sessions) == 1

    def test_keeps_predicts_detach(self) -> None:
        sessions = self.registry()
        session = sessions.open(KIND, b"bob", NOBODY)
        assert sessions.keeps(session)
        sessions.close(session)
        assert not sessions.keeps(session)


class LimitTests(SessionCase):
    """The limit of sessions"""

    def opened(self, sessions: SessionRegistry, count: int) -> list[Session]:
        return [sessions.open(KIND, b"%d" % n, NOBODY) for n in range(count)]

    def test_live_sessions_are_never_closed_for_others(self) -> None:
        sessions = self.registry()
        self.opened(sessions, 3)
        with pytest.raises(LimitReached):
            sessions.open(KIND, b"x", NOBODY)
        assert len(sessions) == 3
        assert self.memory.used == 3 * SESSION_BYTES

    def test_at_the_limit_the_session_detached_first_is_closed(self) -> None:
        sessions = self.registry()
        first, second, third = self.opened(sessions, 3)
        sessions.detach(second, {})
        self.clock.advance(1)
        sessions.detach(first, {})
        sessions.open(KIND, b"x", NOBODY)
        assert sessions.find(first.id, KIND, b"0") is first
        assert sessions.find(third.id, KIND, b"2") is third
        with pytest.raises(SessionUnknown):
            sessions.find(second.id, KIND, b"1")
        sessions.open(KIND, b"y", NOBODY)
        with pytest.raises(LimitReached):
            sessions.open(KIND, b"z", NOBODY)

    def test_a_session_detached_again_is_closed_last(self) -> None:
        sessions = self.registry()
        first, second, _third = self.opened(sessions, 3)
        sessions.detach(first, {})
        sessions.detach(second, {})
        sessions.resume(first, NOBODY)
        sessions.detach(first, {})
        sessions.open(KIND, b"x", NOBODY)
        assert sessions.find(first.id, KIND, b"0") is first
        with pytest.raises(SessionUnknown):
            sessions.find(second.id, KIND, b"1")

    def test_at_the_memory_bound_there_are_no_new_sessions(self) -> None:
        self.memory = MemoryBudget(SESSION_BYTES)
        sessions = self.registry()
        session = sessions.open(KIND, b"a", NOBODY)
        with pytest.raises(MemoryExhausted):
            sessions.open(KIND, b"b", NOBODY)
        assert len(sessions) == 1
        sessions.close(session)
        sessions.open(KIND, b"b", NOBODY)


class ReloadTests(SessionCase):
    """New settings"""

    def test_the_window_holds_for_lost_sessions_too(self) -> None:
        sessions = self.registry()
        session = sessions.open(KIND, b"a", NOBODY)
        sessions.detach(session, {})
        sessions.reconfigure({"max-sessions": 3, "resume-window": 10})
        self.clock.advance(9)
        assert sessions.find(session.id, KIND, b"a") is session
        self.clock.advance(1.5)
        with pytest.raises(SessionUnknown):
            sessions.find(session.id, KIND, b"a")

    def test_the_limit_holds_for_new_sessions(self) -> None:
        sessions = self.registry()
        live = [sessions.open(KIND, b"%d" % number, NOBODY) for number in range(2)]
        sessions.reconfigure({"max-sessions": 2, "resume-window": 60})
        with pytest.raises(LimitReached):
            sessions.open(KIND, b"c", NOBODY)
        sessions.reconfigure({"max-sessions": 3, "resume-window": 60})
        live.append(sessions.open(KIND, b"c", NOBODY))
        assert [sessions.find(one.id, KIND, one.client) for one in live] == live


class StopTests(SessionCase):
    """stop"""

    def test_shutdown_keeps_no_session(self) -> None:
        sessions = self.registry()
        away, here = (sessions.open(KIND, name, NOBODY) for name in (b"1", b"2"))
        sessions.detach(away, {})
        sessions.stop()
        assert not sessions.keeps(here)
        sessions.detach(here, {})
        with pytest.raises(SessionUnknown):
            sessions.find(here.id, KIND, b"2")
        with pytest.raises(SessionUnknown):
            sessions.find(away.id, KIND, b"1")
