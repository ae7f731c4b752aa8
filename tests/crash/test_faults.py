"""Loss of power, damage, a full disk and a slow disk under a broker that is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.faults import DAMAGES, Ordeal
from tests.crash.power import ERROR, FULL, HOLD, LIE, SLOW
from tests.crash.reader import Reader
from tests.integration.broker import Broker
from tests.integration.clients import Cafe, Client, publish
from tests.unit import rheos_wire
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("compiler")


def test_unsynced_writes_are_lost_or_torn(tmp_path: Path) -> None:
    ordeal = Ordeal(tmp_path, 1)
    for _ in range(3):
        ordeal.live(ordeal.lives.await_load)
        ordeal.cut()
        ordeal.check()
        ordeal.disk.kept()
    assert ordeal.lost > 0


def test_a_disk_that_reports_a_false_fsync(tmp_path: Path) -> None:
    ordeal = Ordeal(tmp_path, 1)
    ordeal.disk.ask(LIE)
    for _ in range(3):
        ordeal.live(ordeal.lives.await_load)
        ordeal.cut_in_order()
    ordeal.lives.start().stop()
    ordeal.check_loss_reported()


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_reported(tmp_path: Path, name: str) -> None:
    ordeal = Ordeal(tmp_path, 1)
    pattern, how = DAMAGES[name]
    ordeal.live()
    ordeal.disk.kept()
    ordeal.settle()
    ordeal.live()
    ordeal.hurt(pattern, how)
    assert ordeal.check_damaged() in ("whole", "reported", "refused")


def test_a_missing_end_is_reported_and_its_offsets_are_not_reused(tmp_path: Path) -> None:
    ordeal = Ordeal(tmp_path, 7)

    def loaded(broker: Broker) -> None:
        until(lambda: len(ordeal.lives.record.acknowledged) > 100, "the first")

    ordeal.live(loaded)
    ordeal.lose_end()
    assert ordeal.check_damaged() == "reported"
    ordeal.disk.kept()
    ordeal.live(loaded)
    assert ordeal.check_damaged() == "reported"


def test_a_full_disk_recovers(tmp_path: Path) -> None:
    ordeal = Ordeal(tmp_path, 2)
    ordeal.lives.record.may_fail = True

    def fill(broker: Broker) -> None:
        ordeal.disk.ask(FULL)
        broker.wait_line("publishes are refused until it can")
        ordeal.disk.mend(FULL)
        broker.wait_line("the log can be written again")
        ordeal.lives.await_load(broker)

    for _ in range(2):
        ordeal.live(fill)
        ordeal.cut()
        ordeal.check()
        ordeal.disk.kept()


def test_topics_created_while_writes_fail(tmp_path: Path) -> None:
    ordeal = Ordeal(tmp_path, 5)
    broker = ordeal.lives.start()
    reader = Reader(ordeal.lives.path)
    with Cafe.publisher(broker) as publisher:
        publisher.send(publish(1, b"first"))
        reader.read(lambda: bool(reader.offsets))
        ordeal.disk.ask(ERROR)
        publisher.send(publish(2, b"second"))
        broker.wait_line("publishes are refused until it can")
        ordeal.disk.mend(ERROR)
        broker.wait_line("the log can be written again")
    broker.kill()
    broker.discard()
    reader.read(lambda: True)
    assert (reader.offsets, reader.damaged) == ({b"first": 0, b"second": 1}, [])


def test_a_slow_fsync(tmp_path: Path) -> None:
    ordeal = Ordeal(tmp_path, 3)

    def slow(broker: Broker) -> None:
        ordeal.disk.ask(SLOW)
        ordeal.lives.await_load(broker)

    ordeal.live(slow)
    ordeal.disk.mend(SLOW)
    ordeal.cut()
    ordeal.check()


def test_acknowledgments_wait_for_the_disk_and_deliveries_do_not(tmp_path: Path) -> None:
    ordeal = Ordeal(tmp_path, 4)
    broker = ordeal.lives.start()
    me = b"\x01" * 16
    with (
        Client(broker.port("rheos")) as sync,
        Cafe.publisher(broker) as publisher,
        Cafe.subscriber(broker) as subscriber,
    ):
        sync.send(rheos_wire.create(me, b"sync/t"))
        assert len(sync._take(18)) == 18
        ordeal.disk.ask(HOLD)
        sync.send(rheos_wire.publish(me, b"x", name=b"sync/t"))
        for number in range(50):
            publisher.send(publish(1, b"%d" % number))
        assert subscriber.receive_texts(50) == [b"%d" % number for number in range(50)]
        sync.sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sync.sock.recv(1)
        sync.sock.setblocking(True)
        ordeal.disk.mend(HOLD)
        assert rheos_wire.message_ids(sync._take(18))
    broker.stop()
    broker.discard()
