"""Shared histories: every broker has each message of all, once, in order, with its id."""

from __future__ import annotations

from pubsub.backplane.history import replica_sender, spool
from pubsub.backplane.history.replica_own import RUNS, OwnMessages
from pubsub.backplane.history.replica_record import RecordPart, decode_part, encode_batches
from pubsub.backplane.history.spool import SharedLimits
from pubsub.broker.routing.batch import Batch
from pubsub.kernel import Columns
from tests.contract.drivers.spot import Spot
from tests.unit.brokers import message
from tests.unit.fakes import scratch
from tests.unit.logs import limits
from tests.unit.replicas import Node, ReplicaCase
from tests.unit.shared_numbers import numbers
from tests.unit.streams import logged


class SharedTests(ReplicaCase):
    """Brokers that are there"""

    async def test_messages_ids_and_the_order_across_topics(self) -> None:
        here, there = self.node(), self.node()
        await self.settled(here, there)
        mix = here.broker.router.mix([here.broker.topics.create(name) for name in ("a", "b")])
        indexes = [mix.names.index(name) for name in ("a", "b", "a")]
        columns = Columns.of([b"1", b"2", b"3"], indexes)
        here.broker.dispatcher.publish_mixed(mix, columns, b"me", "spot", [{"k": b"v"}, {}, {}])
        here.publish("b", b"4", b"")
        await self.settled(here, there)
        expected = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4"), ("b", b"")]
        found = await there.messages()
        assert [one[:2] for one in found] == expected
        assert found == await here.messages()
        assert (here.figure("replicated"), there.figure("imported")) == (5, 5)
        assert (here.figure("imported"), there.figure("replicated")) == (0, 0)
        page = await there.store.read(0, None, 10**6, fresh=True)
        headers = next(one.headers for one in page.batches if "a" in one.topics)
        assert headers is not None
        assert [dict(one) for one in headers] == [{"k": b"v"}, {}, {}]

    async def test_topics_that_are_named_and_have_no_messages(self) -> None:
        """As in the record of a read of some of many topics."""
        here, there = self.node(), self.node()
        await self.settled(here, there)
        mix = here.broker.router.mix([here.broker.topics.create(name) for name in ("a", "b", "c")])
        indexes = [mix.names.index(name) for name in ("c", "a", "c")]
        here.broker.dispatcher.publish_mixed(
            mix, Columns.of([b"1", b"2", b"3"], indexes), b"me", "spot"
        )
        await self.settled(here, there)
        expected = [("c", b"1"), ("a", b"2"), ("c", b"3")]
        assert [one[:2] for one in await there.messages()] == expected
        assert [name for name in "abc" if name in there.broker.topics] == ["a", "c"]

    async def test_a_record_whose_first_messages_are_known(self) -> None:
        node = self.node()
        await self.settled(node)
        for term, count in ((1, 2), (2, 4)):
            columns = Columns.of(numbers(0, count))
            batch = Batch(("t",), columns, timestamp=1, sequence=0, sender=b"me", protocol="spot")
            for number, record in enumerate((b"", encode_batches([batch], ())), start=1):
                part = RecordPart(term, number, run=7, place=0, parts=1, data=record)
                await self.log.append("other", part.encode())
        await self.settled(node)
        assert await node.payloads() == numbers(0, 4)

    async def test_live_subscribers(self) -> None:
        here, there = self.node(), self.node()
        reader = Spot(there.house).listener()
        reader.send(message(b"", b"\x02", b"t"))
        there.house.pump()
        await self.settled(here, there)
        here.publish("t", b"x")
        await self.settled(here, there)
        there.house.pump()
        assert reader.take() == message(b"", b"\x01", b"t", b"x")

    async def test_a_commit_that_has_begun_is_waited_for(self) -> None:
        here, there = self.node(), self.node()
        await self.settled(here, there)
        there.store.begin_commit(lambda: self.fail("it is not finished"))
        here.publish("t", b"h")
        await self.settled(here)
        turns = iter(range(10))
        there.publish("t", b"t")
        await self.until(lambda: next(turns, None) is None)
        assert there.figure("imported") == 0
        assert len(there.store._commits._group.pieces(0)) == 1
        there.store.end_commit()
        await self.settled(here, there)
        assert await there.payloads() == [b"t", b"h"]

    async def test_an_engine_that_leaves_while_a_commit_is_waited_for(self) -> None:
        here, there = self.node(), self.node()
        await self.settled(here, there)
        there.store.begin_commit(lambda: self.fail("it is not finished"))
        here.publish("t", b"0")
        await self.settled(here)
        self.log.leave()
        there.store.end_commit()
        self.log.come_back()
        await self.settled(here, there)
        assert await there.payloads() == [b"0"]

    async def test_both_publish(self) -> None:
        here, there = self.node(), self.node()
        for number in range(50):
            here.publish("t", b"h%d" % number)
            there.publish("t", b"t%d" % number)
        await self.settled(here, there)
        for letter in b"ht":
            expected = [b"%c%d" % (letter, number) for number in range(50)]
            for node in (here, there):
                assert [one for one in await node.payloads() if one[0] == letter] == expected
        assert sorted(await here.messages()) == sorted(await there.messages())

    async def test_messages_larger_than_those_of_the_engine(self) -> None:
        self.log.limit = 2000
        here, there = self.node(), self.node()
        await self.settled(here, there)
        large = bytes(range(256)) * 40
        here.publish("t", b"before", large, *numbers(0, 300))
        there.publish("t", b"between")
        here.publish("t", large, b"after")
        await self.settled(here, there)
        sent = [b"before", large, *numbers(0, 300), large, b"after"]
        assert [one for one in await there.payloads() if one != b"between"] == sent
        assert max(len(one.data) for one in self.log.messages) <= 2000
        assert sorted(await here.messages()) == sorted(await there.messages())

    async def test_topics_that_are_not_shared(self) -> None:
        here, there = self.node(), self.node()
        here.broker.queue_keys.exclusive.add("mine")
        here.publish("mine", b"secret")
        keyed = here.broker.topics.create("keyed")
        here.broker.queue_keys.close(keyed, b"key", "me", "here")
        here.publish("keyed", b"closed")
        here.publish("t", b"open")
        await self.settled(here, there)
        assert await there.payloads() == [b"open"]
        assert there.broker.counters.refusals["backplane", "wrong-queue-key"] == 1
        there.broker.queue_keys.close(there.broker.topics.create("keyed"), b"other", "me", "there")
        # After a restart a broker knows the hash of a key until a client presents it.
        here.broker.queue_keys._keys["keyed"] = b""
        here.publish("keyed", b"with a key")
        await self.settled(here, there)
        assert await there.payloads() == [b"open", b"with a key"]

    async def test_a_topic_that_another_broker_owns(self) -> None:
        here, there = self.node(), self.node()
        there.broker.topics.create("owned")
        there.broker.queue_keys.exclusive.add("owned")
        here.publish("owned", b"0", b"1")
        here.publish("t", b"2")
        await self.settled(here, there)
        # Its owner gets messages of its own broker only.
        assert await there.payloads() == [b"2"]
        assert there.broker.counters.refusals["backplane", "wrong-queue-key"] == 2


class FailureTests(ReplicaCase):
    """Engines that are away, lose messages or deny to have them"""

    async def exchange(self, here: Node, there: Node) -> None:
        for number in range(20):
            here.publish("t", b"%d" % number)
            await self.until(lambda: True)
            if number % 5 == 4:
                await self.settled(here)
        await self.settled(here, there)
        assert await there.payloads() == numbers(0, 20)
        assert await there.messages() == await here.messages()

    async def test_a_broker_that_leaves_after_the_beginning_of_a_term(self) -> None:
        here, there, third = self.node(), self.node(), self.node()
        await self.settled(here, there, third)
        there.stream.leave()
        await third.stop()
        here.publish("t", b"1")
        await self.settled(here)
        there.stream.join()
        third = self.node(third.path)
        await self.settled(here, there, third)
        for node in (there, third):
            assert await node.payloads() == [b"1"]

    async def test_lost_messages(self) -> None:
        here, there = self.node(), self.node()
        await self.settled(here, there)
        self.log.lose = 1
        here.publish("t", b"a")
        await self.until(lambda: not self.log.lose)
        here.publish("t", b"b")
        await self.settled(here, there)
        assert await there.payloads() == [b"a", b"b"]

    async def test_refused_messages(self) -> None:
        here, there = self.node(), self.node()
        self.log.refuse = 3
        await self.exchange(here, there)
        self.log.refuse = 2

    async def test_lost_acknowledgments(self) -> None:
        here, there = self.node(), self.node()
        await self.settled(here, there)
        self.log.doubt = 3
        await self.exchange(here, there)

    async def test_an_engine_that_is_away(self) -> None:
        here, there = self.node(), self.node()
        await self.settled(here, there)
        self.log.leave()
        here.publish("t", b"1")
        there.publish("t", b"2")
        assert (here.figure("connected"), here.figure("unreplicated")) == (0, 1)
        assert await here.payloads() == [b"1"]
        self.log.come_back()
        await self.settled(here, there)
        assert sorted(await here.messages()) == sorted(await there.messages())
        assert len(await here.payloads()) == 2

    async def test_acknowledgments_of_the_disk_wait_for_the_engine(self) -> None:
        self.patch(spool, "SYNC_SECONDS", 0.05)
        here = self.node()
        called: list[bool] = []
        await self.settled(here)
        here.publish("t", b"1")
        here.store.when_stored(called.append)
        await self.until(lambda: called == [True])
        self.log.leave()
        here.publish("t", b"2")
        written: list[bool] = []
        here.store.when_written(written.append)
        here.store.when_stored(called.append)
        await self.until(lambda: len(called) == 2)
        assert (called, written) == ([True, False], [True])
        # A reply for messages that are not shared does not wait.
        self.log.come_back()
        await self.settled(here)
        here.store.when_stored(called.append)
        await self.until(lambda: called == [True, False, True])

    async def test_the_spool_is_bounded(self) -> None:
        here = self.node(limits=SharedLimits(spool=100, held=10**5))
        await self.settled(here)
        self.log.leave()
        lines = logged(self)
        here.publish("t", b"x" * 100)
        assert not here.figure("full")
        assert here.refuses("t")
        assert here.refuses("t")
        assert here.figure("full")
        self.log.come_back()
        await self.settled(here)
        assert not here.figure("full")
        found = [line for line in lines if "backplane-spool-bytes" in line]
        assert [line[:40] for line in found] == [
            "backplane: backplane-spool-bytes are wai",
            "backplane: half of backplane-spool-bytes",
        ]
        assert not here.refuses("t")

    async def test_retention_removes_what_was_not_sent(self) -> None:
        here, there = await self.two_with_a_message()
        lines = logged(self)
        self.log.leave()
        for number in range(1, 3):
            here.publish("t", b"%d" % number)
        await self.written(here)
        upkeep = here.store._upkeep
        assert upkeep is not None
        upkeep.reconfigure(limits(seconds=1), compress=False)
        await self.until(lambda: here.store.first_offset == 3)
        here.publish("t", b"3")
        self.log.come_back()
        await self.settled(here, there)
        assert await there.payloads() == [b"0", b"3"]
        assert here.figure("removed") == 2
        await self.settled(*[await self.again(here)])
        assert [line for line in lines if "retention has removed" in line] == [
            "backplane: retention has removed messages before the stream had them: 2 from offset "
            "1 on; raise retention"
        ]

    async def test_publishers_are_held_while_the_engine_is_slow(self) -> None:
        here = self.node(limits=SharedLimits(spool=10**6, held=1000))
        await self.settled(here)
        here.publish("t", b"x" * 2000)
        assert here.history.gate.shut
        await self.settled(here)
        assert not here.history.gate.shut

    async def test_few_bytes_are_on_their_way_to_a_slow_engine(self) -> None:
        self.patch(replica_sender, "WINDOW", 100_000)
        self.patch(replica_sender, "_PAGE", 20_000)
        here, there = self.node(), self.node()
        await self.settled(here, there)
        # It takes messages, and does not say so.
        wake, here.stream.wake = here.stream.wake, lambda: None  # type: ignore[method-assign]
        before = len(self.log.messages)
        for number in range(60):
            here.publish("t", b"%d" % number + bytes(10_000))

        def sent() -> int:
            return sum([len(one.data) for one in self.log.messages[before:]])

        await self.until(lambda: sent() >= 100_000)
        await self.written(here)
        assert sent() < 150_000
        here.stream.wake = wake  # type: ignore[method-assign]
        here.stream.wake()
        await self.settled(here, there)
        assert len(await there.payloads()) == 60

    async def test_a_stream_that_has_removed_messages(self) -> None:
        here, there = self.node(), self.node()
        here.publish("t", b"1")
        await self.settled(here, there)
        there.stream.leave()
        await there.stop()
        for number in range(2, 6):
            here.publish("t", b"%d" % number)
            await self.settled(here)
        self.log.remove(len(self.log.messages) - 2)
        there = self.node(there.path)
        await self.settled(here, there)
        here.publish("t", b"6")
        await self.settled(here, there)
        found = await there.payloads()
        assert found[0] == b"1"
        assert found[-1] == b"6"
        assert b"2" not in found
        assert len(set(found)) == len(found)
        assert there.figure("gaps") == 1

    async def test_a_stream_that_was_made_again(self) -> None:
        here, there = self.node(), self.node()
        for number in range(10):
            here.publish("t", b"%d" % number)
            await self.settled(here)
        await self.settled(here, there)
        self.log.leave()
        self.log.clear()
        here.publish("t", b"new")
        self.log.come_back()
        await self.has(there, [*numbers(0, 10), b"new"])
        await self.has(here, [*numbers(0, 10), b"new"])

    async def test_messages_that_only_the_former_stream_had(self) -> None:
        here, there, third = self.node(), self.node(), self.node()
        here.publish("t", b"0")
        await self.settled(here, there, third)
        lines = logged(self)
        await there.stop()
        here.publish("t", b"1")
        await self.settled(here, third)
        self.log.leave()
        self.log.clear()
        self.log.come_back()
        here.publish("t", b"2")
        await self.settled(here, third)
        assert here.figure("gaps") == third.figure("gaps") == 0
        there = self.node(there.path)
        await self.has(there, [b"0", b"2"])
        assert there.figure("gaps") == 1
        assert len([line for line in lines if "only the former stream had" in line]) == 1

    async def returns(self, here: Node, there: Node, first: int) -> Node:
        """Publish from the number ``first`` on and have ``there`` come back; return it."""
        for number in range(first, 10):
            here.publish("t", b"%d" % number)
            await self.settled(here)
        there = self.node(there.path)
        await self.has(there, numbers(0, 10))
        here.publish("t", b"10")
        await self.has(there, numbers(0, 11))
        return there

    async def test_a_stream_that_has_lost_its_end_and_got_another(self) -> None:
        here, there = self.node(), self.node()
        here.publish("t", b"0")
        await self.settled(here, there)
        before = self.log.last
        for number in range(1, 4):
            here.publish("t", b"%d" % number)
            await self.settled(here, there)
        await there.stop()
        self.log.leave()
        self.log.forget(self.log.last - before)
        self.log.come_back()
        there = await self.returns(here, there, 4)
        assert there.figure("gaps") == 0

    async def test_another_stream_that_is_longer_than_the_one_before(self) -> None:
        here, there = self.node(), self.node()
        here.publish("t", b"0")
        await self.settled(here, there)
        await there.stop()
        self.log.leave()
        self.log.clear()
        self.log.come_back()
        await self.returns(here, there, 1)


class RestartTests(ReplicaCase):
    """Brokers that end and begin again"""

    async def test_a_broker_that_was_away(self) -> None:
        here, there = self.node(), self.node()
        here.publish("t", b"0")
        await self.settled(here, there)
        await there.stop()
        here.publish("t", *numbers(1, 5))
        await self.settled(here)
        there = self.node(there.path)
        await self.settled(here, there)
        assert await there.messages() == await here.messages()
        there = await self.again(there)
        await self.settled(here, there)
        assert await there.payloads() == numbers(0, 5)

    async def test_a_new_broker(self) -> None:
        here = self.node()
        here.publish("t", *numbers(0, 5))
        await self.settled(here)
        there = self.node()
        await self.settled(here, there)
        assert await there.messages() == await here.messages()

    async def test_the_spool_is_bounded_through_restarts(self) -> None:
        node = self.node()
        await self.settled(node)
        self.log.leave()
        while not node.refuses("t"):
            node.publish("t", bytes(20_000))
        waiting = node.figure("unreplicated")
        node = await self.again(node)
        await self.until(lambda: node.figure("unreplicated") == waiting)
        assert node.refuses("t")
        self.log.come_back()
        await self.settled(node)
        assert not node.refuses("t")

    async def test_the_spool_survives(self) -> None:
        here, there = self.node(), self.node()
        here.publish("t", b"0")
        await self.settled(here, there)
        self.log.leave()
        for number in range(1, 4):
            here.publish("t", b"%d" % number)
            here = await self.again(here)
        self.log.come_back()
        here.publish("t", b"4")
        await self.settled(here, there)
        assert await there.payloads() == numbers(0, 5)
        assert await here.payloads() == numbers(0, 5)
        here, there = await self.again(here), await self.again(there)
        await self.settled(here, there)
        assert await there.messages() == await here.messages()

    async def test_a_log_that_cannot_be_read_for_a_while(self) -> None:
        """The search for what was not sent is repeated, or nothing would be shared any more."""
        here, there = self.node(), self.node()
        await self.settled(here, there)
        self.log.leave()
        here.publish("t", *numbers(0, 5))
        failures = [OSError(24, "Too many open files") for _ in range(3)]
        survey = OwnMessages.survey

        async def fail(own: OwnMessages, offset: int) -> tuple[int, int, int]:
            if failures:
                raise failures.pop()
            return await survey(own, offset)

        self.patch(OwnMessages, "survey", fail)
        here = await self.again(here)
        self.log.come_back()
        await self.settled(here, there)
        assert await there.payloads() == numbers(0, 5)
        errors = self.flushLoggedErrors(OSError)  # type: ignore[no-untyped-call]
        assert len(errors) == 3

    async def test_runs_are_forgotten_once_their_messages_are_shared(self) -> None:
        here, there = self.node(), self.node()
        for number in range(3):
            here.publish("t", b"%d" % number)
            await self.settled(here, there)
            last, here = self.run_of(here), await self.again(here)
        await self.settled(here, there)
        # As they were when the broker started.
        assert self.runs(here) == {last}
        self.log.leave()
        waiting = {self.run_of(here)}
        for number in range(3, 5):
            here = await self.again(here)
            here.publish("t", b"%d" % number)
            waiting.add(self.run_of(here))
        here = await self.again(here)
        assert self.runs(here) == waiting
        self.log.come_back()
        await self.settled(here, there)
        for _ in range(2):
            last, here = self.run_of(here), await self.again(here)
            await self.settled(here, there)
        assert self.runs(here) == {last}
        assert await there.payloads() == await here.payloads() == numbers(0, 5)
        assert await there.messages() == await here.messages()

    def run_of(self, node: Node) -> int:
        return node.broker.dispatcher.run_id

    def runs(self, node: Node) -> set[int]:
        return {int(run, 16) for run, _ in node.store.items(RUNS)}

    async def test_kills_at_any_time(self) -> None:
        here, there = self.node(), self.node()
        sent: list[bytes] = []
        for number in range(12):
            for node, letter in ((here, b"h"), (there, b"t")):
                sent += [letter + b"%d.%d" % (number, place) for place in range(3)]
                node.publish(f"t{number % 3}", *sent[-3:])
            # Acknowledged messages are in the copy; the stream may have the others.
            stored: list[bool] = []
            here.store.when_written(stored.append)
            there.store.when_written(stored.append)
            await self.until(lambda found=stored: len(found) == 2)  # type: ignore[misc]
            paths = [node.crashed(scratch(self) / "history") for node in (here, there)]
            for node in (here, there):
                await node.stop()
            here, there = map(self.node, paths)
        await self.settled(here, there)
        await self.has(here, sent)
        await self.has(there, sent)
        assert sorted(await here.messages()) == sorted(await there.messages())

    async def test_a_log_that_has_lost_its_end(self) -> None:
        here, there = await self.two_with_a_message()
        path = here.crashed(scratch(self) / "history")
        here.publish("t", *numbers(1, 4))
        here.publish("u", *numbers(4, 6))
        await self.settled(here, there)
        await here.stop()
        here = self.node(path)
        here.publish("t", b"6")
        await self.settled(here, there)
        await self.has(here, numbers(0, 7))
        assert here.figure("recovered") == 5
        await self.has(there, numbers(0, 7))
        here = await self.again(here)
        await self.settled(here, there)
        assert sorted(await here.messages()) == sorted(await there.messages())
        assert len(await there.payloads()) == 7

    async def test_a_log_that_has_lost_all_but_the_beginning_of_its_term(self) -> None:
        here, there = self.node(), self.node()
        await self.settled(here, there)
        there.publish("t", b"0")
        await self.settled(here, there)
        await self.written(here)
        path = here.crashed(scratch(self) / "history")
        for number in range(1, 4):
            here.publish("t", b"%d" % number)
            await self.settled(here, there)
        await here.stop()
        here = self.node(path)
        here.publish("t", b"4")
        await self.settled(here, there)
        for node in (here, there):
            assert sorted(await node.payloads()) == numbers(0, 5)
        assert here.figure("recovered") == 3
        assert len(set(self.parts_of(here))) == len(self.parts_of(here))

    def parts_of(self, node: Node) -> list[tuple[int, int]]:
        sent = [one.data for one in self.log.messages if one.origin == node.history.origin]
        return [(part.term, part.number) for part in map(decode_part, sent)]

    async def test_what_was_stored_before_is_not_shared(self) -> None:
        here = self.node()
        self.log.leave()
        await self.settled_store(here)
        there = self.node()
        self.log.come_back()
        await self.settled(here, there)
        assert await there.payloads() == await here.payloads() == [b"x"]

    async def settled_store(self, node: Node) -> None:
        node.publish("t", b"x")
        await self.written(node)


class TroubleTests(ReplicaCase):
    """Faults that an operator has to repair"""

    async def test_a_disk_that_is_full(self) -> None:
        here, there = self.node(), self.node()
        here.publish("t", b"0")
        await self.settled(here, there)
        there.store._commits.failing = "No space left on device"
        here.publish("t", b"1")
        await self.settled(here)
        await self.until(lambda: there.figure("connected") == 0)
        here.publish("t", b"2")
        await self.settled(here)
        assert await there.payloads() == [b"0"]
        there.store._commits.failing = None
        await self.settled(here, there)
        assert await there.payloads() == [b"0", b"1", b"2"]
        assert await there.messages() == await here.messages()

    async def test_a_copy_of_a_history(self) -> None:
        here, there = await self.two_with_a_message()
        lines = logged(self)
        copy = self.node(here.crashed(scratch(self) / "history"))
        await self.until(
            lambda: any("uses a copy of this broker's history" in line for line in lines)
        )
        assert (
            "copy"
            in here.history.figures()["history_trouble"] + copy.history.figures()["history_trouble"]
        )
        await copy.stop()
        here.publish("t", b"1")
        await self.settled(here, there)
        assert await there.payloads() == [b"0", b"1"]
