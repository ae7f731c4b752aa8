"""The contract of ``ISharedState``: in memory, and in a bucket of a nats-server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig
from twisted.internet.defer import Deferred

from pubsub.backplane.engine.engine_url import ENGINE, EngineOptions
from pubsub.backplane.engine.nats_backplane import NatsBackplane
from pubsub.backplane.engine.state_bucket import BUCKET, StateBucket
from pubsub.backplane.memory_engine.memory_state import MemoryBucket, MemoryState
from pubsub.backplane.state.outdated import Outdated
from pubsub.backplane.state.shared_state import ISharedState, StateEntry
from pubsub.errors import BackplaneAway, StartError
from tests.integration.engine_loop import Loop
from tests.integration.nats_cluster import NatsCluster, nats_cluster
from tests.integration.nats_server import NatsServer, nats_server


class Seer:
    """One broker's view: the reported entries, without the key of the bucket's format."""

    def __init__(self, state: Any, loop: Loop) -> None:
        self.state = state
        self._loop = loop
        self.reported: list[StateEntry] = []
        self.rounds = self.absences = 0

    def state_changed(self, entries: Any) -> None:
        self.reported += [one for one in entries if one.key != "format"]

    def state_complete(self) -> None:
        self.rounds += 1

    def state_away(self) -> None:
        self.absences += 1

    def put(self, key: str, value: bytes, expected: int = 0, seconds: int = 0) -> Any:
        """Return the new revision, or the error."""
        results: list[Any] = []
        done: Deferred[int] = self.state.put(key, value, expected, seconds)
        done.addCallbacks(results.append, lambda failure: results.append(failure.value))
        self._loop.wait(lambda: results)
        return results[0]

    def get(self, key: str) -> StateEntry | None:
        results: list[StateEntry | None] = []
        done: Deferred[StateEntry | None] = self.state.get(key)
        done.addCallback(results.append)
        self._loop.wait(lambda: results)
        return results[0]

    def values(self) -> list[tuple[str, bytes]]:
        return [(one.key, one.value) for one in self.reported]


class Place:
    """Makes the views of one bucket; ``server`` is None for the one in memory."""

    def __init__(self, server: NatsServer | None) -> None:
        self.loop = Loop()
        self.server = server
        self._bucket = MemoryBucket()
        self._closing: list[Callable[[], Deferred[None]]] = []
        self.seers: list[Seer] = []

    def later(self, call: Callable[[], object]) -> None:
        self.loop.callLater(0, call)

    def seer(self, replicas: int = 1) -> Seer:
        state: Any
        if self.server is None:
            state = MemoryState(self._bucket, self.later)
        else:
            backplane = self.backplane(replicas)
            state = backplane.state
        seer = Seer(state, self.loop)
        state.open(seer)
        if self.server is not None:
            backplane.open(lambda envelopes: None)
            self._closing.append(backplane.close)
        self.seers.append(seer)
        self.loop.wait(lambda: seer.rounds)
        return seer

    def backplane(self, replicas: int = 1) -> NatsBackplane:
        assert self.server is not None
        options = EngineOptions(
            ENGINE.parse(self.server.url), "", "", "", "", 4 * 1024**2, replicas
        )
        return NatsBackplane(options, self.loop, self.later, lambda *dropped: None)

    def leave(self) -> None:
        """End the engine for everybody."""
        if self.server is not None:
            self.server.kill()
        else:
            for seer in self.seers:
                seer.state.leave()
        self.loop.wait(lambda: all(seer.absences for seer in self.seers))

    def come_back(self) -> None:
        if self.server is not None:
            self.server.start()
        else:
            for seer in self.seers:
                seer.state.come_back()
        self.loop.wait(lambda: all(seer.rounds > 1 for seer in self.seers))

    def refuses(self, why: str, replicas: int = 1) -> str:
        """Expect that a broker does not start; return the whole reason."""
        backplane = self.backplane(replicas)
        with pytest.raises(StartError, match=why) as caught:
            backplane.open(lambda envelopes: None)
        self.loop.wait(backplane._connection._keeping.done)
        return str(caught.value)

    def close(self) -> None:
        self.loop.finish(*[close() for close in self._closing])


@pytest.fixture(params=["memory", "nats"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "memory":
        yield Place(None)
        return
    with nats_server(tmp_path) as server:
        made = Place(server)
        yield made
        made.close()


def test_changes_are_told_to_all_in_order(place: Place) -> None:
    here, there = place.seer(), place.seer()
    assert ISharedState.providedBy(here.state)
    assert here.reported == there.reported == []
    revisions = [here.put(f"t.{number}", b"%d" % number) for number in range(20)]
    assert revisions == sorted(set(revisions))
    last = there.put("t.0", b"other", revisions[0])
    assert last > revisions[-1]
    expected = [(f"t.{number}", b"%d" % number) for number in range(20)] + [("t.0", b"other")]
    for seer in (here, there):
        place.loop.wait(lambda: len(seer.reported) >= 21)  # noqa: B023
        assert seer.values() == expected
        assert [one.revision for one in seer.reported] == [*revisions, last]
    assert here.state.figures()["state_changes"] == 20


def test_one_of_two_changes_is_made(place: Place) -> None:
    here, there = place.seer(), place.seer()
    first = here.put("t.a", b"1")
    problem = there.put("t.a", b"2")
    assert isinstance(problem, Outdated)
    assert (problem.value, problem.revision) == (b"1", first)
    second = there.put("t.a", b"3", first)
    problem = here.put("t.a", b"4", first)
    assert isinstance(problem, Outdated)
    assert (problem.value, problem.revision) == (b"3", second)
    problem = here.put("t.missing", b"5", second)
    assert isinstance(problem, Outdated)
    assert (problem.value, problem.revision) == (None, 0)


def test_everything_is_told_to_those_who_come_later(place: Place) -> None:
    here = place.seer()
    revisions = {key: here.put(key, b"1") for key in ("t.a", "t.b", "t.c")}
    revisions["t.a"] = here.put("t.a", b"2", revisions["t.a"])
    there = place.seer()
    found = {one.key: (one.value, one.revision) for one in there.reported}
    assert found == {
        "t.a": (b"2", revisions["t.a"]),
        "t.b": (b"1", revisions["t.b"]),
        "t.c": (b"1", revisions["t.c"]),
    }
    assert [one.revision for one in there.reported] == sorted(revisions.values())


def test_the_engine_goes_away_and_comes_back(place: Place) -> None:
    here, there = place.seer(), place.seer()
    before = here.put("t.a", b"1")
    place.loop.wait(lambda: there.reported)
    place.leave()
    assert isinstance(here.put("t.a", b"2", before), BackplaneAway)
    place.come_back()
    assert there.values().count(("t.a", b"1")) == 2
    after = here.put("t.a", b"3", before)
    place.loop.wait(lambda: there.reported[-1] == StateEntry("t.a", b"3", after))


def test_a_key_with_a_time_is_removed(place: Place) -> None:
    here = place.seer()
    first = here.put("t.a", b"1", 0, 1)
    if place.server is None:
        place._bucket.remove("t.a")
    found: list[Any] = []

    def created() -> bool:
        found.append(here.put("t.a", b"2"))
        return not isinstance(found[-1], Outdated)

    place.loop.wait(created)
    assert found[-1] > first
    place.loop.wait(lambda: here.values() == [("t.a", b"1"), ("t.a", b"2")])


# Behaviour of servers only


def ask(server: NatsServer, call: Callable[[Any], Any]) -> None:
    async def run() -> None:
        client = await nats.connect(server.url)
        await call(client.jetstream())
        await client.close()

    asyncio.run(run())


def test_a_bucket_of_another_program(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        config = KeyValueConfig(bucket=BUCKET, history=5)
        ask(server, lambda js: js.create_key_value(config))
        Place(server).refuses("'pubsub' has other settings than the brokers need")


def test_a_stream_with_the_subjects_of_the_bucket(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        ask(server, lambda js: js.add_stream(name="other", subjects=["$KV.>"]))
        Place(server).refuses("another stream has its subjects; remove that stream")


def test_a_bucket_of_another_format(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        place = Place(server)
        place.seer()
        ask(server, lambda js: js.publish(f"$KV.{BUCKET}.format", b"2 x"))
        place.refuses("belongs to another version of the broker")
        place.close()


def test_more_replicas_than_servers(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        Place(server).refuses("backplane-replicas", 3)


def test_an_account_that_may_not_write(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(
        "authorization { users: [{user: a, password: b, permissions: "
        '{publish: {deny: ["$KV.>"]}}}] }'
    )
    with nats_server(tmp_path, "-c", str(config), user="a:b@") as server:
        reason = Place(server).refuses(r"lacks permissions: .*pubsub\.format")
        assert "a:b@" not in reason


def test_a_bucket_that_is_removed_is_made_again(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        place = Place(server)
        here = place.seer()
        here.put("t.a", b"1")
        ask(server, lambda js: js.delete_key_value(BUCKET))
        place.loop.wait(lambda: here.rounds > 1)
        assert here.absences == 1
        assert isinstance(here.put("t.a", b"2"), int)
        place.close()


def test_a_key_that_an_operator_removes(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        place = Place(server)
        here = place.seer()

        async def remove(js: Any) -> None:
            bucket = await js.key_value(BUCKET)
            await bucket.delete("t.a")
            await bucket.purge("t.b")

        before = {key: here.put(key, b"1") for key in ("t.a", "t.b")}
        ask(server, remove)
        for key, revision in before.items():
            assert here.get(key) is None
            # Also a broker that has not known it sets it again.
            for expected in (revision, 0):
                problem = here.put(key, b"2", expected)
                assert isinstance(problem, Outdated)
                assert problem.value is None
            after = here.put(key, b"2", problem.revision)
            assert here.get(key) == StateEntry(key, b"2", after)
        place.loop.wait(lambda: len(here.reported) >= 4)
        assert here.values() == [("t.a", b"1"), ("t.b", b"1"), ("t.a", b"2"), ("t.b", b"2")]
        place.close()


def test_changes_at_the_same_time_in_a_cluster(tmp_path: Path) -> None:
    with nats_cluster(tmp_path) as cluster:
        place = Place(cluster.nodes[0])
        seers = [place.seer(3)]
        for node in cluster.nodes[1:]:
            place.server = node
            seers.append(place.seer(3))
        for number in range(40):
            results: list[Any] = []
            for seer in seers:
                done = seer.state.put(f"t.{number}", b"1", 0, 0)
                done.addCallbacks(results.append, lambda failure: results.append(failure.value))  # noqa: B023
            place.loop.wait(lambda: len(results) == len(seers))  # noqa: B023
            (revision,) = [one for one in results if isinstance(one, int)]
            refused = [one for one in results if isinstance(one, Outdated)]
            assert [one.revision for one in refused] == [revision] * 2
        place.close()


def test_brokers_with_other_settings_start_at_the_same_time(tmp_path: Path) -> None:
    async def prepare(url: str, replicas: int) -> None:
        client = await nats.connect(url)
        bucket = StateBucket(replicas, lambda *call: None, lambda: "")
        while True:
            # The servers may not have agreed upon a leader yet.
            with contextlib.suppress(TimeoutError, NatsError):
                await bucket.prepare(client)
                break
            await asyncio.sleep(0.1)
        await client.close()

    async def run(cluster: NatsCluster) -> None:
        for _ in range(4):
            urls = [node.url for node in cluster.nodes]
            await asyncio.gather(*[prepare(url, 2 * (at % 2) + 1) for at, url in enumerate(urls)])
            client = await nats.connect(urls[0])
            await client.jetstream().delete_key_value(BUCKET)
            await client.close()

    with nats_cluster(tmp_path) as cluster:
        asyncio.run(run(cluster))
