"""Shared positions: taken at one broker, they mean the same messages at another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.positions import position_index
from pubsub.backplane.positions.position_index import KNOWN, POINTS, PositionIndex, messages_of
from pubsub.backplane.positions.shared_position import (
    MalformedPosition,
    SharedPosition,
    UnknownPosition,
    decode,
)
from pubsub.store.records.block import encode_block
from pubsub.store.records.stored_runs import record_of
from pubsub.store.shared_store import SharedStore
from tests.profiles import examples
from tests.unit.fakes import batch_of
from tests.unit.replicas import Node, ReplicaCase

ORIGINS = ("aa", "bb", "cc")
Message = tuple[str, int, int]
"""Origin, run and sequence."""


class Log:
    """A log in memory and its index; a restart reads the log since the last checkpoint."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, bytes]] = {KNOWN: {}, POINTS: {}}
        self.messages: list[Message] = []
        self.index = self.made()
        self.index.begin(0)

    def made(self) -> PositionIndex:
        return PositionIndex(
            lambda table, key, value: self.tables[table].update({key: value}),
            lambda table, key: self.tables[table].pop(key),
        )

    def append(self, message: Message) -> None:
        origin, run, sequence = message
        self.index.learn(origin, run)
        self.index.add(len(self.messages), run, sequence, 1, 10)
        self.messages.append(message)

    def restart(self) -> None:
        self.index = self.made()
        tables = self.tables
        begin = self.index.restore(tables[KNOWN].items(), tables[POINTS].items(), self.end)
        assert begin is not None
        for offset, (_, run, sequence) in list(enumerate(self.messages))[begin:]:
            self.index.add(offset, run, sequence, 1, 10)

    @property
    def end(self) -> int:
        return len(self.messages)

    def position(self, offset: int) -> SharedPosition:
        state = self.index.recent(offset)
        if state is None:
            at, state = self.index.before(offset)
            for _, run, sequence in self.messages[at:offset]:
                state[run] = sequence + 1
        return decode(self.index.position(state, offset, 7).encode())

    def beyond(self, position: SharedPosition, stop: int) -> list[Message]:
        """Return what a reader reads from ``position`` on up to the offset ``stop``."""
        found = self.index.find(position)
        read = []
        for offset, message in list(enumerate(self.messages))[found.start : stop]:
            _, run, sequence = message
            within = found.extent.leading(run, sequence, 1)
            assert not (within and offset >= found.stop)
            if not within:
                read.append(message)
        return read


@dataclass(frozen=True)
class Histories:
    """The same messages in two orders; a log is restarted after some of them."""

    logs: tuple[tuple[Message, ...], tuple[Message, ...]]
    restarts: frozenset[int]


@st.composite
def histories(draw: st.DrawFn) -> Histories:
    streams: list[list[Message]] = []
    run = 1
    for origin in ORIGINS:
        stream: list[Message] = []
        for _ in range(draw(st.integers(1, 3))):
            at = 0
            for gap in draw(st.lists(st.sampled_from((1, 1, 1, 5)), max_size=12)):
                stream.append((origin, run, at))
                at += gap
            run += 1
        streams.append(stream)

    def mixed() -> tuple[Message, ...]:
        left = [list(stream) for stream in streams]
        merged = []
        while any(left):
            stream = draw(st.sampled_from([one for one in left if one]))
            count = draw(st.integers(1, len(stream)))
            merged += stream[:count]
            del stream[:count]
        return tuple(merged)

    one, other = mixed(), mixed()
    return Histories((one, other), draw(st.frozensets(st.integers(0, 60), max_size=2)))


class PropertyTests(SynchronousTestCase):
    """Two logs with different orders"""

    @examples(4)
    @given(histories(), st.data())
    def test_readers_that_move_have_each_message_once(
        self, given: Histories, data: st.DataObject
    ) -> None:
        with (
            mock.patch.object(position_index, "_APPENDS", 4),
            mock.patch.object(position_index, "_STRETCHES", 3),
        ):
            logs = Log(), Log()
            for log, messages in zip(logs, given.logs, strict=True):
                for place, message in enumerate(messages):
                    log.append(message)
                    if place in given.restarts:
                        log.restart()
        read: list[Message] = []
        position = SharedPosition()
        for place in (0, 1, 0, 1):
            log = logs[place]
            stop = data.draw(st.integers(0, log.end))
            if place == 1 and data.draw(st.booleans()):
                stop = log.end
            read += log.beyond(position, stop)
            position = log.index.runs.joined(position, log.position(stop))
            assert log.index.covers(position)
        read += logs[0].beyond(position, logs[0].end)
        assert sorted(read) == sorted(given.logs[0])

    @examples(2)
    @given(histories(), st.data())
    def test_ranges_are_the_same_at_both(self, given: Histories, data: st.DataObject) -> None:
        logs = Log(), Log()
        for log, messages in zip(logs, given.logs, strict=True):
            for message in messages:
                log.append(message)
        begin = data.draw(st.integers(0, logs[0].end))
        end = data.draw(st.integers(begin, logs[0].end))
        start, stop = logs[0].position(begin), logs[0].position(end)
        found = []
        for log in logs:
            within = log.index.find(stop)
            found.append(
                [
                    message
                    for message in log.beyond(start, within.stop)
                    if within.extent.leading(message[1], message[2], 1)
                ]
            )
        assert found[0] == list(given.logs[0][begin:end])
        assert sorted(found[1]) == sorted(found[0])


class TextTests(SynchronousTestCase):
    """The text of a position"""

    def test_text(self) -> None:
        position = SharedPosition(12, {"ab": {2**60 - 1: 7}})
        text = '{"stream":12,"next":{"ab":{"fffffffffffffff":7}}}'
        assert position.encode() == text
        assert decode(text) == position

    def test_malformed_texts(self) -> None:
        for text in (
            "",
            "[]",
            "{}",
            '{"stream":1}',
            '{"stream":-1,"next":{}}',
            '{"stream":true,"next":{}}',
            '{"stream":1,"next":[]}',
            '{"stream":1,"next":{"a":{}}}',
            '{"stream":1,"next":{"a":{"1":2}}}',
            '{"stream":1,"next":{"a":{"00000000000000x":2}}}',
            '{"stream":1,"next":{"a":{"000000000000001":2.5}}}',
            '{"stream":1,"next":{"a":{"000000000000001":9223372036854775808}}}',
            "[" * 20000,
        ):
            with pytest.raises(MalformedPosition):
                decode(text)

    def test_runs_that_are_not_known(self) -> None:
        log = Log()
        log.append(("aa", 1, 0))
        unknown = SharedPosition(0, {"aa": {9: 4}})
        with pytest.raises(UnknownPosition):
            log.index.find(unknown)
        found = log.index.find(unknown, strict=False)
        # The run may follow.
        assert found.extent.leading(1, 0, 5) == 5
        assert found.extent.leading(9, 3, 5) == 1
        assert not log.index.covers(unknown, strict=False)
        # Nothing of this origin is here, so nothing has to be left out.
        assert log.index.find(SharedPosition(0, {"zz": {9: 4}})).start == 0

    def test_a_position_is_looked_for_between_two_checkpoints(self) -> None:
        log = Log()
        with mock.patch.object(position_index, "_APPENDS", 10):
            for number in range(200):
                log.append(("ab"[number % 2] * 2, 1 + number % 2, number // 2))
        for offset in range(0, 201, 7):
            listed = {"aa": {1: (offset + 1) // 2}, "bb": {2: offset // 2}}
            found = log.index.find(SharedPosition(0, listed))
            assert found.start <= offset <= found.stop
            assert found.stop - found.start <= 20


class MessagesOfBlockTests(SynchronousTestCase):
    """The messages of a block of the log"""

    def test_sequences_with_a_gap(self) -> None:
        first, second = batch_of([b"0", b"1"]), batch_of([b"2", b"3"])
        first.offset, first.sequence, second.offset, second.sequence = 10, 4, 12, 9
        block = encode_block([record_of(first), record_of(second)], 7, 10, 14)
        pieces = [(10, 7, 4, 2), (12, 7, 9, 2)]
        assert [one[:4] for one in messages_of(block, 0, 99)] == pieces
        assert [one[:4] for one in messages_of(block, 11, 13)] == [(11, 7, 5, 1), (12, 7, 9, 1)]

    def test_consecutive_messages_are_one_piece(self) -> None:
        first, second = batch_of([b"0", b"1"]), batch_of([b"22", b"3"])
        first.offset, first.sequence, second.offset, second.sequence = 10, 4, 12, 6
        block = encode_block([record_of(first), record_of(second)], 7, 10, 14)
        assert list(messages_of(block, 10, 14)) == [(10, 7, 4, 4, 5)]
        for start, stop in ((11, 14), (10, 13), (12, 13)):
            found = [
                (at, first, count) for at, _, first, count, _ in messages_of(block, start, stop)
            ]
            assert [at - 6 for at, _, _ in found] == [first for _, first, _ in found]
            assert sum(count for _, _, count in found) == stop - start
            assert found[0][0] == start


def reads_that_wait() -> tuple[list[Deferred[None]], Callable[..., Deferred[Any]]]:
    """Return what each read of a log waits for, and the method that reads."""
    reads: list[Deferred[None]] = []
    read_parcel = SharedStore.read_parcel

    def read_late(store: SharedStore, *given: Any) -> Deferred[Any]:
        reads.append(Deferred())
        return reads[-1].addCallback(lambda _: read_parcel(store, *given))

    return reads, read_late


class LogTests(ReplicaCase):
    """The positions of real logs"""

    async def read(self, node: Node, position: SharedPosition) -> list[bytes]:
        """Return the payloads beyond ``position``."""
        found = await node.history.positions.find(position, strict=False)
        # A page from the file ends with the last committed message.
        await self.written(node)
        page = await node.store.read(found.start, None, 10**6, fresh=True)
        payloads = []
        for batch in page.batches:
            run = batch.run or node.broker.dispatcher.run_id
            leading = found.extent.leading(run, batch.sequence, batch.count)
            payloads += batch.payloads()[leading:]
            assert not leading or batch.offset < found.stop
        return payloads

    async def assert_known_positions(self, node: Node, there: Node) -> None:
        """Assert that each position of ``node`` is the same at both, also after its restart."""
        for _ in range(2):
            payloads = await node.payloads()
            for offset in range(len(payloads) + 1):
                position = await node.history.positions.at(offset)
                missing = payloads[offset:]
                assert await self.read(node, position) == missing
                assert sorted(await self.read(there, position)) == sorted(missing)
            node = await self.again(node)
            await self.settled(node, there)

    async def test_a_reader_that_goes_on_at_another_broker(self) -> None:
        here, there = self.node(), self.node()
        for number in range(20):
            here.publish("t", b"h%d" % number)
            there.publish("t", b"t%d" % number)
        await self.settled(here, there)
        everything = sorted(await here.payloads())
        for offset in range(41):
            read = (await here.payloads())[:offset]
            position = await here.history.positions.at(offset)
            assert there.history.positions.reached(position)
            assert sorted(read + await self.read(there, position)) == everything
            assert read + await self.read(here, position) == await here.payloads()

    async def test_after_restarts_and_without_checkpoints(self) -> None:
        here, there = self.node(), self.node()
        here.publish("t", b"1", b"2")
        there.publish("t", b"3")
        await self.settled(here, there)
        positions = [await here.history.positions.at(offset) for offset in range(4)]
        here = await self.again(here)
        found = [await here.history.positions.at(offset) for offset in range(4)]
        # The stream may have been read further.
        assert [one.origins for one in found] == [one.origins for one in positions]
        here.publish("t", b"4")
        await self.settled(here, there)
        for offset, position in enumerate(positions):
            beyond = {b"1", b"2", b"3", b"4"} - set((await here.payloads())[:offset])
            assert set(await self.read(there, position)) == beyond
            assert set(await self.read(here, position)) == beyond
        await there.stop()
        there = self.node(there.path)
        await self.settled(there)
        assert set(await self.read(there, positions[1])) == {b"2", b"3", b"4"}

    async def test_old_offsets_are_found_in_the_log(self) -> None:
        self.patch(position_index, "_APPENDS", 3)
        here, there = self.node(), self.node()
        for number in range(10):
            here.publish("t", b"%d" % number, b"x")
        await self.settled(here, there)
        for offset in range(20):
            position = await there.history.positions.at(offset)
            assert len(await self.read(here, position)) == 20 - offset

    async def test_messages_that_were_recovered_behind_later_ones(self) -> None:
        here, there = self.node(), self.node()
        here.publish("t", b"1")
        await self.settled(here, there)
        # Other brokers may have a message before it is in the file.
        await self.written(here)
        path = here.crashed(here.path.with_name("before"))
        here.publish("t", b"2", b"3")
        await self.settled(here, there)
        await here.stop()
        self.log.leave()
        again = self.node(path)
        again.publish("t", b"4")
        positions = again.history.positions
        before = await positions.at(again.store.next_offset)
        assert before != await there.history.positions.at(there.store.next_offset)
        # The other broker has what this one has lost.
        assert await self.read(there, before) == [b"2", b"3"]
        self.log.come_back()
        await self.settled(again, there)
        assert await again.payloads() == [b"1", b"4", b"2", b"3"]
        await self.assert_known_positions(again, there)

    async def test_all_messages_of_a_run_are_lost(self) -> None:
        here, there = self.node(), self.node()
        await self.settled(here, there)
        path = here.crashed(here.path.with_name("before"))
        here.publish("t", b"1", b"2")
        await self.settled(here, there)
        await here.stop()
        self.log.leave()
        # One that has nothing to send, and one that has.
        between = self.node(path)
        between.publish("t", b"3")
        await self.written(between)
        again = await self.again(between)
        again.publish("t", b"4")
        positions = again.history.positions
        for offset in range(again.store.next_offset + 1):
            assert await self.read(there, await positions.at(offset)) == [b"1", b"2"]
        self.log.come_back()
        await self.settled(again, there)
        assert await again.payloads() == [b"3", b"4", b"1", b"2"]
        await self.assert_known_positions(again, there)

    async def test_a_run_that_has_sent_nothing_is_listed(self) -> None:
        here, there = self.node(), self.node()
        await self.settled(here, there)
        self.log.leave()
        here = await self.again(here)
        here.publish("t", b"1")
        # The stream may have messages of the first run, as far as this one knows.
        position = await here.history.positions.at(here.store.next_offset)
        (runs,) = position.origins.values()
        assert sorted(runs.values()) == [0, 1]
        await self.written(here)
        here = await self.again(here)
        self.log.come_back()
        here.publish("t", b"2")
        await self.settled(here, there)
        for node in (here, there):
            assert await self.read(node, position) == [b"2"]
            assert not node.history.positions.lacks(position, None)

    async def test_checkpoints_of_a_log_that_is_read_again(self) -> None:
        here, there = self.node(), self.node()
        await self.settled(here, there)
        self.log.leave()
        for payload in (b"1", b"2"):
            here.publish("t", payload)
            await self.written(here)
            here = await self.again(here)
        self.patch(position_index, "_APPENDS", 1)
        # It makes checkpoints while it reads the log.
        here = await self.again(await self.again(here))
        position = await here.history.positions.at(here.store.next_offset)
        self.log.come_back()
        await self.settled(here, there)
        assert await self.read(there, position) == []

    async def test_the_log_is_read_after_messages_were_recovered(self) -> None:
        here, there = await self.two_with_a_message()
        first = here.crashed(here.path.with_name("first"))
        here.publish("t", b"1")
        await self.settled(here, there)
        await here.stop()
        self.log.leave()
        with mock.patch.object(SharedStore, "read_parcel", return_value=Deferred()):
            # The index of a run that has a message is not ready when the broker is killed.
            between = self.node(first)
            between.publish("t", b"2")
            await self.written(between)
            second = between.crashed(here.path.with_name("second"))
            await between.stop()
        reads, read_late = reads_that_wait()
        with mock.patch.object(SharedStore, "read_parcel", read_late):
            again = self.node(second)
            self.log.come_back()
            await self.settled(again, there)
            assert again.figure("recovered") == 1
        for read in reads:
            read.callback(None)
        again.publish("t", b"3")
        await self.settled(again, there)
        await self.assert_known_positions(again, there)

    async def test_a_run_that_is_not_on_disk_sends_nothing(self) -> None:
        asked: list[object] = []

        def fail(store: SharedStore, call: Callable[[bool], None]) -> None:
            asked.append(store)
            call(False)

        with mock.patch.object(SharedStore, "when_synced", fail):
            node = self.node()
            node.publish("t", b"1")
            # It tries again.
            await self.until(lambda: len(asked) > 1)
            assert not self.log.messages
        await self.settled(node)
        assert self.log.messages

    async def test_positions_that_are_not_reached_yet(self) -> None:
        here, there = self.node(), self.node()
        await self.settled(here, there)
        there.stream.leave()
        here.publish("t", b"1")
        await self.settled(here)
        await self.written(here)
        position = await here.history.positions.at(here.history.positions.settled)
        positions = there.history.positions
        assert not positions.reached(position)
        waiting: Deferred[bool] = positions.when_reached(position, 60)
        assert not await positions.when_reached(position, 0)
        there.stream.join()
        assert await waiting
        assert await self.read(there, position) == []
        assert positions.covers(position)

    async def test_positions_that_are_waited_for_while_the_log_is_read(self) -> None:
        here, there = await self.two_with_a_message()
        position = await there.history.positions.at(1)
        await here.stop()
        reads, read_late = reads_that_wait()
        with mock.patch.object(SharedStore, "read_parcel", read_late):
            here = self.node(here.path)
            await self.settled(here, there)
            waiting = here.history.positions.when_reached(position, 60)
        assert not waiting.called
        for read in reads:
            read.callback(None)
        # Nothing more arrives from the stream.
        assert await waiting
