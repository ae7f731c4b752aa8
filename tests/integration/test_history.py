"""The durable history over real sockets: restarts, crashes, full disks, damage."""

from __future__ import annotations

import re
import resource
import struct
from pathlib import Path
from uuid import uuid4

import pytest

from pubsub.store.segments.log_directory import POSITION
from tests.integration.broker import Broker, Start, listen, run
from tests.integration.clients import Cafe, Client, Nsd, message, publish
from tests.integration.rheos_client import CREATE, PUBLISH, SUBSCRIBE, Rheos
from tests.unit import fast_wire
from tests.unit.fast_wire import DURABLE, EXCLUSIVE
from tests.unit.tokens import KEY
from tests.waiting import until

ALL = listen("cafe", "nsd", "rheos", "fast")


class House:
    """A file, and brokers that run on it one after another."""

    def __init__(self, start: Start, directory: Path) -> None:
        self._start = start
        self.directory = directory
        self.path = directory / "history"
        self.secret = directory / "secret"
        self.secret.write_bytes(KEY)
        self.secret.chmod(0o600)

    def open(self, *options: str, before: tuple[str, ...] = ()) -> Broker:
        return self._start(
            *ALL,
            f"--secret-file={self.secret}",
            f"--store=log:{self.path}",
            *options,
            before=before,
        )


@pytest.fixture
def house(start: Start, tmp_path: Path) -> House:
    return House(start, tmp_path)


def written(house: House) -> int:
    """Return the offset up to which the log was written."""
    (offset,) = struct.unpack_from("<q", (house.path / POSITION).read_bytes(), 8)
    return int(offset)


def bodies(client: Nsd, identity: str, after: int = 0) -> list[str]:
    """Return the bodies of a Get."""
    return [one["body"] for one in client.get(identity, after)]


def rheos(broker: Broker, client_id: bytes | None = None) -> Rheos:
    return Rheos(broker.port("rheos")).use(client_id or uuid4().bytes)


class Fast(Client):
    """A fast client."""

    def error(self) -> int:
        """Return the code of the next packet, which must be an ERROR."""
        packet = self._take(7)
        assert packet[0] == fast_wire.ERROR, packet
        return packet[2]

    def refused(self, packet: bytes) -> int:
        self.send(packet)
        return self.error()


@pytest.mark.modes
@pytest.mark.parametrize("gently", [True, False], ids=["stopped", "killed"])
def test_durable_state_survives_a_restart(house: House, gently: bool) -> None:
    first = house.open("--durability=*=sync")
    with Nsd.to(first) as nsd, rheos(first) as client, Cafe.publisher(first) as cafe:
        nsd.do("Open", "ada")
        nsd.do("Open", "bob")
        nsd.do("Subscribe", "bob", channel="ada")
        nsd.do("Publish", "ada", message=message("one", "ann", extra=[1, {"x": None}]))
        client.do(CREATE, b"news")
        cafe.send(publish(1, b"\xff\x00"))
        cafe.sync()
        client.do(PUBLISH, b"news", b"two")
    first.stop() if gently else first.kill()
    second = house.open("--durability=*=sync")
    with Nsd.to(second) as nsd, rheos(second) as client:
        (one,) = nsd.get("bob")
        assert (one["from"], one["body"], one["when"]) == ("ann", "one", 1)
        assert one["extra"] == [1, {"x": None}]
        client.send(client.request(CREATE, b"news"))
        assert client.failed()
        client.do(SUBSCRIBE, b"news")
        nsd.do("Open", "carol")
        nsd.do("Subscribe", "carol", channel="news")
        nsd.do("Subscribe", "carol", channel="cafe/1")
        assert [m["when"] for m in nsd.get("carol")] == [2, 3]
        assert [m.get("data") for m in nsd.get("carol")] == ["/wA=", None]
        nsd.do("Publish", "ada", message=message("later"))
        assert [m["when"] for m in nsd.get("bob")] == [1, 4]


def test_a_closed_topic_stays_closed_and_opens_with_its_key(house: House) -> None:
    right, wrong = fast_wire.grant("*", key="sésame"), fast_wire.grant("*", key="k2")
    first = house.open()
    with Fast(first.port("fast")) as fast, Nsd.to(first) as nsd:
        fast.send(fast_wire.create(right), fast_wire.publish(right, b"secret"))
        assert fast.refused(fast_wire.create(wrong)) == fast_wire.EXISTS
        nsd.do("Open", "eve")
        assert nsd.refused("Subscribe", "eve", channel="news").startswith("NOT AUTHORIZED")
    first.stop()
    found = b"".join(path.read_bytes() for path in house.path.iterdir())
    assert b"secret" in found
    assert "sésame".encode() not in found
    second = house.open()
    with Fast(second.port("fast")) as fast, Nsd.to(second) as nsd:
        assert nsd.refused("Subscribe", "eve", channel="news").startswith("NOT AUTHORIZED")
        assert nsd.get("eve") == []
        assert fast.refused(fast_wire.subscribe(wrong)) == fast_wire.WRONG_KEY
        assert fast.refused(fast_wire.create(wrong)) == fast_wire.EXISTS
        fast.send(fast_wire.subscribe(right), fast_wire.publish(right, b"again"))
        assert fast._take(9 + 5) == fast_wire.message(b"again")
        fast.send(fast_wire.rotate(right, b"k2"))
        fast._take(1)
    second.stop()
    third = house.open()
    with Fast(third.port("fast")) as fast:
        assert fast.refused(fast_wire.subscribe(right)) == fast_wire.WRONG_KEY
        fast.send(fast_wire.subscribe(wrong), fast_wire.publish(wrong, b"on"))
        assert fast._take(9 + 2) == fast_wire.message(b"on")


def test_an_exclusive_topic_does_not_outlive_a_crash(house: House) -> None:
    token = fast_wire.grant("*")
    first = house.open()
    with Fast(first.port("fast")) as fast:
        fast.send(fast_wire.create(token, flags=EXCLUSIVE | DURABLE))
        fast.send(fast_wire.subscribe(token), fast_wire.publish(token, b"mine"))
        assert fast._take(9 + 4) == fast_wire.message(b"mine")
        until(lambda: written(house) == 1, "the commit")
        first.kill()
    second = house.open()
    with Nsd.to(second) as nsd:
        nsd.do("Open", "news")
        assert nsd.get("news") == []


def test_the_durable_flag_applies_to_other_protocols(house: House) -> None:
    """A message that another protocol acknowledged is written, with the flag and without it."""
    token = fast_wire.grant()
    broker = house.open("--grant=news", "--commit-interval=5")
    with Fast(broker.port("fast")) as fast, rheos(broker) as client:
        after = 0
        for flags in (0, DURABLE):
            fast.send(fast_wire.create(token, flags=flags), fast_wire.subscribe(token))
            fast.send(fast_wire.publish(token, b"x"))
            assert fast._take(9 + 1) == fast_wire.message(b"x")
            client.do(PUBLISH, b"news", b"y")
            before, after = after, written(house)
            assert after == before + 2
            assert fast._take(9 + 1) == fast_wire.message(b"y")


def test_unstored_topics(house: House) -> None:
    first = house.open("--durability=cafe/*=none")
    with Cafe.subscriber(first) as subscriber, Cafe.publisher(first) as publisher:
        publisher.send(publish(1, b"live"), publish(2, b"nobody"))
        assert subscriber.receive_texts(1) == [b"live"]
    with Nsd.to(first) as nsd:
        nsd.do("Open", "ada")
        nsd.do("Subscribe", "ada", channel="cafe/1")
        nsd.do("Publish", "ada", message=message("stored"))
        assert [(m["when"], m["body"]) for m in nsd.get("ada")] == [(1, "stored")]


@pytest.mark.modes
def test_a_cafe_subscriber_resumes_from_the_file(house: House) -> None:
    """The subscriber missed more than memory holds."""
    broker = house.open("--max-memory=200M")
    with Cafe.publisher(broker) as publisher:
        with Cafe.subscriber(broker, client=b"sub") as subscriber:
            publisher.send(publish(1, b"before"))
            assert subscriber.receive_texts(1) == [b"before"]
            session = subscriber.session
            subscriber.reset()
        # The broker has handled the reset, which came before both.
        for _ in range(2):
            publisher.sync()
        texts = [b"%d" % n + b"." * 10_000 for n in range(4000)]
        for text in texts:
            publisher.send(publish(1, text))
        publisher.sync()
    with Cafe.subscriber(broker, b"", b"sub;resume=%016x" % session) as subscriber:
        assert subscriber.receive_texts(len(texts)) == texts


@pytest.mark.parametrize("place", ["environment", "xdg"])
def test_the_file_is_in_the_state_directory(start: Start, tmp_path: Path, place: str) -> None:
    state = tmp_path / "state"
    if place == "environment":
        env, path = {"STATE_DIRECTORY": str(state)}, state / "history"
    else:
        env = {"XDG_STATE_HOME": str(state), "STATE_DIRECTORY": ""}
        path = state / "pubsub" / "history"
    broker = start(*listen("cafe"), "--store=log", env=env)
    broker.wait_line(re.escape(f"history: {path}, offsets 0 to 0"))
    assert path.exists()


def test_a_second_broker_is_refused(house: House) -> None:
    broker = house.open()
    second = run([*listen("cafe"), f"--store=log:{house.path}"], house.directory)
    assert second.returncode == 1
    lines = [line for line in second.stderr.splitlines() if line.startswith("pubsub:")]
    assert lines == [
        f"pubsub: history: {house.path} is in use by another broker (process {broker.pid}); "
        "give this one a directory of its own, --store log:DIR, or --store memory"
    ]
    # No client connects to a broker that cannot start.
    assert "cafe on tcp" not in second.stdout


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--store=log:/proc/none/h"], "history: cannot use /proc/none/h"),
        (["--store=memory", "--durability=a=sync"], "needs a history on disk"),
        (["--store=postgres"], "store: expected memory, log or log:DIR"),
        (["--durability=a=maybe"], "durability: expected PATTERN=none, =async or =sync"),
        (["--retention=*=forever"], "retention: expected PATTERN=age"),
        (["--commit-interval=-1"], "commit-interval: expected a number"),
    ],
)
def test_invalid_settings_are_one_line_errors(
    tmp_path: Path, options: list[str], complaint: str
) -> None:
    ended = run([*listen("cafe"), *options], tmp_path)
    assert ended.returncode == 1
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("pubsub:")]
    assert complaint in line


@pytest.mark.modes
def test_a_full_disk_is_an_error_and_recovers(house: House) -> None:
    """A limit on the size of files stands for the disk; it can be changed from outside."""
    broker = house.open("--durability=*=sync", before=("prlimit", "--fsize=2000000:"))
    with Nsd.to(broker) as nsd, rheos(broker) as client:
        nsd.do("Open", "ada")
        nsd.do("Publish", "ada", message=message("before"))
        client.do(CREATE, b"big")
        failures = 0
        while failures < 3:
            client.send(client.request(PUBLISH, b"big", b"x" * 60_000))
            packet = client._take(18)
            failures += packet[17]
        broker.wait_line("history: the log cannot be written; publishes are refused until it can")
        error = nsd.refused("Publish", "ada", message=message("refused"))
        assert error == "HISTORY UNAVAILABLE"
        assert bodies(nsd, "ada") == ["before"]
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        assert soft == 2_000_000
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))
        broker.wait_line("history: the log can be written again")
        nsd.do("Publish", "ada", message=message("after"))
        assert bodies(nsd, "ada") == ["before", "after"]
    broker.stop()
    assert broker.totals()["refused"] >= 3
    with Nsd.to(house.open()) as nsd:
        assert bodies(nsd, "ada") == ["before", "after"]


def body(number: int) -> str:
    """Return a body."""
    return f"body number {number} ".ljust(1000, ".")


def publish_records(house: House, count: int) -> Broker:
    """Start a broker, publish ``count`` bodies in a record each, and return the broker."""
    broker = house.open("--durability=*=sync")
    with Nsd.to(broker) as nsd:
        nsd.do("Open", "ada")
        for number in range(count):
            nsd.do("Publish", "ada", message=message(body(number)))
    return broker


def damage_body(house: House, number: int) -> None:
    """Change a byte of a body on disk."""
    (path,) = house.path.glob("*.log")
    data = bytearray(path.read_bytes())
    data[data.index(b"body number %d" % number)] ^= 0x04
    path.write_bytes(data)


def test_damage_is_reported_with_offsets(house: House) -> None:
    publish_records(house, 30).stop()
    damage_body(house, 17)
    with Nsd.to(house.open()) as nsd:
        found = bodies(nsd, "ada")
        assert len(found) == 29
        assert body(17) not in found


def test_a_crash_is_followed_by_a_complete_check(house: House) -> None:
    publish_records(house, 3).kill()
    damage_body(house, 1)
    second = house.open()
    second.wait_line("history: offsets 1 to 1 are damaged and cannot be read")
    second.wait_line("offsets 0 to 3, epoch .*; it was not closed properly")
