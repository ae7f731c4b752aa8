"""The table of a connection's life, and that every order of events keeps its promises."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.interfaces import ISSLTransport, ITCPTransport, ITransport
from twisted.trial.unittest import SynchronousTestCase

from pubsub.wire import life_cycle
from pubsub.wire.departure import LINGER
from pubsub.wire.life_cycle import TABLE, Action, Event, LifeCycle, State, Wait
from tests.unit.connections import Frames, Setup
from tests.unit.streams import logged

EVENTS = st.lists(st.sampled_from(Event), max_size=12)
KINDS = {
    "TCP": (ITCPTransport,),
    "TLS": (ITCPTransport, ISSLTransport),
    "UNIX": (ITransport,),
}


def documented() -> dict[tuple[State, Event], State]:
    """The next states, as the table at the head of the module has them."""
    lines = (life_cycle.__doc__ or "").splitlines()
    head = next(line for line in lines if re.match(r"\s+open\s+answering", line))
    states = [State(word) for word in head.split()]
    found = {}
    for line in lines[lines.index(head) + 1 :]:
        words = line.split()
        if not words:
            break
        for state, word in zip(states, words[1:], strict=True):
            if word != "-":
                found[state, Event(words[0])] = State(word)
    return found


class TableTests(SynchronousTestCase):
    """The table"""

    def test_it_is_the_documented_one(self) -> None:
        expected = documented()
        # The last resort for a transport that is still there after it was closed.
        expected[State.GONE, Event.DEADLINE] = State.GONE
        assert {key: step.state for key, step in TABLE.items()} == expected

    def test_every_way_out_of_a_state_sets_a_deadline_or_ends_all(self) -> None:
        for (state, event), step in TABLE.items():
            if step.state is not state:
                assert step.wait is not None or Action.RELEASE in step.actions, (state, event)

    def test_both_deadlines_are_used(self) -> None:
        assert {step.wait for step in TABLE.values()} == {*Wait, None}

    def test_a_client_that_has_closed_its_half_is_not_waited_for(self) -> None:
        life = LifeCycle()
        for event in (Event.HALF_CLOSE, Event.ANSWERED, Event.DRAINED):
            step = life.on(event)
        assert step is not None
        assert (life.state, step.actions) == (State.GONE, (Action.CLOSE,))


class OrderTests(SynchronousTestCase):
    """Any order of events"""

    @given(EVENTS)
    def test_states_only_go_forward(self, events: list[Event]) -> None:
        life, order = LifeCycle(), list(State)
        for event in events:
            before = life.state
            life.on(event)
            assert order.index(life.state) >= order.index(before)

    @given(EVENTS)
    def test_a_deadline_is_set_from_the_first_step_to_the_release(
        self, events: list[Event]
    ) -> None:
        life, deadline = LifeCycle(), None
        for event in events:
            if event is Event.DEADLINE and deadline is None:
                continue
            step = life.on(event)
            if step is None:
                continue
            if event is Event.DEADLINE:
                deadline = None
            deadline = step.wait or deadline
            if Action.RELEASE in step.actions:
                deadline = None
            # Nothing can be done about a transport that stays after it was aborted.
            assert deadline is not None or life.state is State.GONE

    @given(EVENTS)
    def test_the_end_comes_before_the_transport_is_closed(self, events: list[Event]) -> None:
        life = LifeCycle()
        actions = [
            action
            for event in events
            if (step := life.on(event)) is not None
            for action in step.actions
        ]
        closing = {Action.FINISH, Action.CLOSE, Action.ABORT, Action.RELEASE}
        ends = [index for index, action in enumerate(actions) if action in closing]
        assert not ends or Action.END in actions[: ends[0]]
        assert actions.count(Action.SEND_LAST) <= 1
        if Action.SEND_LAST in actions:
            assert actions.index(Action.SEND_LAST) < actions.index(Action.END)

    @given(EVENTS)
    def test_deadlines_alone_lead_to_the_end(self, events: list[Event]) -> None:
        life = LifeCycle()
        for event in (*events, Event.CLOSE, Event.DEADLINE, Event.DEADLINE):
            life.on(event)
        assert life.state is State.GONE


ACTS = ("close", "half", "drain", "abort", "lose", "read", "stop", "reply", "second", "hold")


class ConnectionTests(SynchronousTestCase):
    """Any order of events, for a connection and its transport"""

    @given(st.sampled_from(sorted(KINDS)), st.lists(st.sampled_from(ACTS), max_size=10))
    def test_every_connection_that_leaves_is_gone_in_time(self, kind: str, acts: list[str]) -> None:
        setup = Setup(slow_seconds=3, frame_seconds=0)
        client, connection = setup.connect(provides=KINDS[kind])
        stream = client.stream
        for act in acts:
            match act:
                case "close":
                    connection.close(b"last")
                case "half" if not stream.lost and kind != "TLS":
                    connection.readConnectionLost()
                case "drain":
                    connection.drain()
                case "abort":
                    connection.abort("why")
                case "lose":
                    stream.lose()
                case "read":
                    stream.read()
                case "stop":
                    stream.stop_reading()
                case "reply" if not connection.closing:
                    connection.reply(b"x" * 50_000)
                case "second":
                    setup.clock.advance(1)
                case "hold":
                    connection.hold("reason")
        left = {"close", "half", "drain", "abort", "lose"} & set(acts)
        if kind == "TLS":
            left.discard("half")
        # The deadlines of answering, flushing and lingering, one after the other.
        setup.clock.pump([1.0] * 12)
        assert stream.lost == bool(left)
        assert connection.ends == int(bool(left))
        if left:
            assert setup.broker.memory.used == 0
            assert not setup.broker.memory.holders
            assert not setup.clock.getDelayedCalls()
            assert not setup.broker.clients


class FlushingTests(SynchronousTestCase):
    """The charge of the last bytes while they wait"""

    def leave(self, how: str, kind: str = "TCP", slow_seconds: float = 5) -> tuple[Setup, Frames]:
        """A client that does not read and has 100,000 bytes in the transport."""
        setup = Setup(slow_seconds=slow_seconds)
        client, connection = setup.connect(provides=KINDS[kind])
        client.stream.stop_reading()
        connection.reply(b"x" * 100_000)
        if how == "close":
            connection.close()
        else:
            connection.readConnectionLost()
        self.stream = client.stream
        return setup, connection

    def test_bytes_are_charged_until_the_transport_is_gone(self) -> None:
        for how, kind in (("close", "TCP"), ("close", "TLS"), ("half", "TCP"), ("half", "UNIX")):
            setup, _ = self.leave(how, kind)
            before = setup.broker.counters.connections * 8192
            assert setup.broker.memory.used == before + 100_000, (how, kind)
            setup.clock.pump([1.0] * 4)
            assert not self.stream.lost
            setup.clock.pump([1.0, 0.0])
            assert self.stream.aborted
            assert setup.broker.memory.used == 0, (how, kind)

    def test_bytes_that_were_taken_are_no_longer_charged(self) -> None:
        setup, _ = self.leave("close")
        del self.stream.buffered[:60_000]
        setup.clock.advance(1)
        assert setup.broker.memory.used == 8192 + 40_000

    def test_their_holder_can_be_evicted(self) -> None:
        setup, connection = self.leave("close")
        largest = setup.broker.memory.largest()
        assert largest is not None
        assert largest.held == 100_000
        largest.evict("memory bound")
        assert self.stream.aborted
        setup.clock.advance(0)
        assert setup.broker.memory.used == 0
        assert connection.ends == 1

    def test_an_open_connection_is_charged_for_unread_output(self) -> None:
        setup = Setup()
        client, connection = setup.connect()
        client.stream.stop_reading()
        connection.reply(b"x" * 70_000)
        connection.reply(b"x" * 30_000)
        assert setup.broker.memory.used == 8192 + 100_000
        client.stream.read()
        assert setup.broker.memory.used == 8192

    def test_a_subscriber_is_charged_for_unread_replies(self) -> None:
        setup = Setup()
        client, connection = setup.connect()
        connection.open_outbox()
        before = setup.broker.memory.used
        client.stream.stop_reading()
        connection.reply(b"x" * 70_000)
        # Over TLS the transport does not report that it gets still more.
        client.stream.producer = None
        connection.reply(b"x" * 30_000)
        assert setup.broker.memory.used == before + 100_000
        client.stream.producer = connection
        client.stream.read()
        assert setup.broker.memory.used == before

    def test_a_stop_does_not_wait_for_them(self) -> None:
        for how in ("close", "half"):
            setup, _ = self.leave(how, slow_seconds=30)
            setup.broker.startService()
            done: list[object] = []
            setup.broker.stopService().addCallback(done.append)
            setup.clock.pump([1.0, 0.9])
            assert not done
            setup.clock.pump([0.1, 0.0])
            assert done, how

    def test_a_client_that_has_closed_its_half_is_not_read_from(self) -> None:
        self.leave("half")
        assert self.stream.half_closed
        assert self.stream.paused
        self.leave("close")
        assert not self.stream.paused

    def test_a_client_that_does_not_read_is_logged(self) -> None:
        lines = logged(self)
        for how in ("close", "half"):
            setup, connection = self.leave(how)
            setup.clock.pump([1.0] * 6)
            assert [line for line in lines if "disconnected" in line] == [
                f"toy client '{connection.peer}' disconnected: did not read its messages for 5 s"
            ]
            lines.clear()

    def test_a_client_that_has_read_everything_is_not_logged(self) -> None:
        lines = logged(self)
        setup = Setup()
        client, connection = setup.connect()
        connection.close(b"last")
        setup.clock.pump([1.0] * 3)
        assert client.stream.lost
        assert lines == []

    def test_a_stop_does_not_renew_the_linger(self) -> None:
        setup = Setup()
        client, connection = setup.connect()
        connection.close(b"last")
        setup.clock.pump([1.0, 0.9])
        connection.drain()
        assert not client.stream.losing
        setup.clock.advance(0.1)
        assert client.stream.losing

    def test_tls_that_is_not_answered_is_closed_after_the_linger(self) -> None:
        setup = Setup()
        client, connection = setup.connect(provides=KINDS["TLS"])
        # The last bytes are with the kernel, but the client does not end TLS.
        calls: list[float] = []
        client.stream.loseConnection = (  # type: ignore[method-assign]
            lambda: calls.append(setup.clock.seconds())
        )
        connection.close(b"last")
        assert client.take() == b"last"
        setup.clock.pump([1.0, 1.0])
        assert [at - calls[0] for at in calls] == [0, LINGER]
        # The transport stays, and is aborted after the same time.
        setup.clock.pump([1.0, 0.9])
        assert not client.stream.aborted
        setup.clock.pump([0.1, 0.0])
        assert client.stream.lost
        assert connection.ends == 1
        assert not setup.clock.getDelayedCalls()
        assert setup.broker.memory.used == 0

    def test_a_client_that_is_evicted_by_its_last_bytes_is_aborted(self) -> None:
        setup = Setup()
        client, connection = setup.connect()
        connection.send_last = lambda data: connection.evict("slow")  # type: ignore[method-assign]
        connection.close(b"last")
        assert client.stream.aborted
        assert not client.stream.half_closed
        assert connection.ends == 1


class OwedTests(SynchronousTestCase):
    """Replies and messages owed to a client that leaves"""

    def test_progress_renews_the_time_to_answer(self) -> None:
        setup = Setup(slow_consumer="drop", slow_seconds=5)
        client, connection = setup.connect()
        topic = setup.broker.topics.create("t")
        outbox = connection.open_outbox()
        for _ in range(4):
            client.stream.stop_reading()
            outbox.deliver(b"x" * 1_100_000, 1, topic, 0)
            outbox.flush()
        connection.drain()
        for _ in range(3):
            setup.clock.pump([1.0] * 4)
            client.stream.read(on=False)
        assert not client.stream.aborted
        setup.clock.pump([1.0] * 6)
        assert client.stream.aborted

    def test_a_client_that_takes_nothing_is_not_answered_for_ever(self) -> None:
        setup = Setup(slow_seconds=5)
        client, connection = setup.connect()
        connection.owes_answers = lambda: True  # type: ignore[method-assign]
        connection.readConnectionLost()
        setup.clock.pump([1.0] * 4)
        assert not client.stream.aborted
        setup.clock.pump([1.0, 0.0])
        assert client.stream.lost
        assert connection.ends == 1
