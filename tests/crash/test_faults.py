"""Loss of power, damage, a full disk and a slow disk under a broker that is killed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pubsub.store.schema import open_reader
from tests.crash.faults import DAMAGES, Ordeal, lose_newest
from tests.crash.power import FULL, HOLD, LIE, SLOW, Disk
from tests.crash.reader import Reader
from tests.integration.broker import Broker
from tests.integration.clients import Cafe, Client, publish
from tests.integration.needs import missing
from tests.unit import rheos_wire
from tests.waiting import until


@pytest.fixture(autouse=True)
def compiler() -> None:
    """Require a C compiler for ``disk.c``."""
    if shutil.which("gcc") is None:
        missing("a C compiler (gcc)")


@pytest.mark.parametrize("seed", range(3))
def test_unsynced_writes_are_lost_or_torn(tmp_path: Path, seed: int) -> None:
    ordeal = Ordeal(tmp_path, seed)

    def loaded(broker: Broker) -> None:
        before = len(ordeal.lives.record.acknowledged)
        until(lambda: len(ordeal.lives.record.acknowledged) > before + 20, "some")

    for _ in range(3):
        ordeal.live(loaded)
        ordeal.cut()
        ordeal.check()
        ordeal.disk.kept()
    assert ordeal.lost > 0


def test_power_loss_during_a_merge(tmp_path: Path) -> None:
    path = tmp_path / "history"
    disk = Disk(tmp_path / "disk", path)
    draw = random.Random(6)
    lost = merged = 0
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.crash.keeping", path],
            env={**os.environ, **disk.environment},
            stdout=subprocess.PIPE,
        ) as keeper:
            assert keeper.stdout is not None
            offsets = [keeper.stdout.readline() for _ in range(draw.randrange(100, 600))]
            keeper.kill()
            last = int([*offsets, *keeper.stdout.read().splitlines()][-1])
        lost += disk.cut(draw)
        reader = Reader(path)
        reader.read(lambda: True)
        assert reader.damaged == []
        assert last in reader.offsets.values()
        assert reader.offsets == {b"%d" % number: number for number in range(len(reader.offsets))}
        with closing(open_reader(path)) as connection:
            (merged,) = connection.execute("SELECT max(count) FROM blocks").fetchone()
    assert lost > 0
    assert merged > 100


def test_a_disk_that_reports_a_false_fsync(tmp_path: Path) -> None:
    ordeal = Ordeal(tmp_path, 1)
    ordeal.disk.ask(LIE)
    for _ in range(3):
        ordeal.live()
        ordeal.cut_in_order()
    ordeal.lives.start().stop()
    ordeal.check_loss_reported()
    assert ordeal.lives.reader.epoch_changes > 0


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_file_is_reported(tmp_path: Path, name: str, seed: int) -> None:
    ordeal = Ordeal(tmp_path, seed)
    endings, how = DAMAGES[name]
    ordeal.live()
    if "" in endings:
        ordeal.disk.kept()
        ordeal.settle()
        ordeal.live()
    for ending in endings:
        ordeal.hurt(ending, how)
    assert ordeal.check_damaged() in ("whole", "reported", "refused")


def test_a_missing_end_is_reported_and_its_offsets_are_not_reused(tmp_path: Path) -> None:
    ordeal = Ordeal(tmp_path, 7)

    def loaded(broker: Broker) -> None:
        until(lambda: len(ordeal.lives.record.acknowledged) > 100, "the first")

    ordeal.live(loaded)
    ordeal.hurt("-wal", lose_newest)
    assert ordeal.check_damaged() == "reported"
    ordeal.disk.kept()
    ordeal.live(loaded)
    assert ordeal.check_damaged() == "reported"


def test_a_full_disk_recovers(tmp_path: Path) -> None:
    ordeal = Ordeal(tmp_path, 2)
    record = ordeal.lives.record
    record.may_fail = True

    def fill(broker: Broker) -> None:
        ordeal.disk.ask(FULL)
        broker.wait_line("publishes are refused until it can")
        ordeal.disk.mend(FULL)
        broker.wait_line("the file can be written again")
        before = len(record.acknowledged)
        until(lambda: len(record.acknowledged) > before + 20, "more")

    for _ in range(2):
        ordeal.live(fill)
        ordeal.cut()
        ordeal.check()
        ordeal.disk.kept()


def test_topics_created_while_the_disk_is_full(tmp_path: Path) -> None:
    ordeal = Ordeal(tmp_path, 5)
    broker = ordeal.lives.start()
    reader = Reader(ordeal.lives.path)
    with Cafe.publisher(broker) as publisher:
        publisher.send(publish(1, b"first"))
        reader.read(lambda: bool(reader.offsets))
        ordeal.disk.ask(FULL)
        publisher.send(publish(2, b"second"))
        broker.wait_line("publishes are refused until it can")
        ordeal.disk.mend(FULL)
        broker.wait_line("the file can be written again")
    broker.kill()
    broker.discard()
    reader.read(lambda: True)
    assert (reader.offsets, reader.damaged) == ({b"first": 0, b"second": 1}, [])


def test_a_slow_fsync(tmp_path: Path) -> None:
    ordeal = Ordeal(tmp_path, 3)

    def slow(broker: Broker) -> None:
        ordeal.disk.ask(SLOW)
        before = len(ordeal.lives.record.acknowledged)
        until(lambda: len(ordeal.lives.record.acknowledged) > before + 20, "more")

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
