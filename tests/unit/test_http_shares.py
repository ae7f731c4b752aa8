"""HTTP: no client takes all streams, parts, bytes or memory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from twisted.internet.defer import maybeDeferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import CONNECTION_BYTES
from pubsub.http_api.exactly_once import part_registry
from pubsub.http_api.reading.stream_places import STREAM_BYTES
from tests.unit.big_house import ALL, BIG, Threads, big_house
from tests.unit.web import WebClient, WebHouse, stream_of
from tests.unit.writing_case import HEADERS, WritingCase, table

OTHER = "192.0.2.99"


class StreamTests(SynchronousTestCase):
    """Places for streams"""

    def setUp(self) -> None:
        self.house = big_house(max_streams=8)
        self.slow: list[WebClient] = []

    def read_slowly(self, host: str = "192.0.2.7", target: str = ALL, **given: Any) -> WebClient:
        """Begin to read, but do not take the output."""
        client = self.house.connect(host)
        client.stream.stop_reading()
        client.ask("GET", target, **given)
        return client

    def refused(self, host: str = "192.0.2.7", **given: Any) -> bool:
        """Return whether another stream is refused."""
        answer = self.house.connect(host).get(ALL, **given)
        assert answer.status == 200 or answer.error == (503, "streams")
        return answer.status != 200

    def test_an_address_leaves_places_to_others(self) -> None:
        for _ in range(8):
            self.read_slowly()
        assert self.refused()
        assert not self.refused(OTHER)
        for _ in range(2):
            self.read_slowly(OTHER)
        assert self.refused(OTHER)
        assert not self.refused("192.0.2.100")

    def test_a_token_has_a_share_of_its_own(self) -> None:
        for _ in range(8):
            self.read_slowly()
        token = self.house.token("history")
        assert not self.refused(token=token)
        for _ in range(8):
            self.read_slowly(token=token)
        assert self.refused(OTHER, token=token)
        assert not self.refused(OTHER)

    def test_a_stalled_stream_gives_way_to_another_of_its_client(self) -> None:
        reading = [self.read_slowly() for _ in range(4)]
        self.house.pass_time(2)
        latest = self.read_slowly()
        assert [client.stream.aborted for client in reading] == [True, False, False, False]
        # The others are behind for as long, and are the next.
        self.read_slowly()
        assert [client.stream.aborted for client in reading] == [True, True, False, False]
        assert not latest.stream.aborted

    def test_a_stream_that_is_read_does_not_give_way(self) -> None:
        first, second = self.read_slowly(), self.read_slowly()
        for client in (first, second):
            self.house.pass_time(2)
            client.read_on()
            client.stream.stop_reading()
        reading = [self.house.connect() for _ in range(2)]
        assert len(first.answer().rows) == 12
        assert not any(client.stream.aborted for client in reading)

    def test_at_the_limit_a_new_client_displaces_the_one_that_has_most(self) -> None:
        for _ in range(4):
            self.slow.append(self.read_slowly())
        for number in range(4):
            self.slow.append(self.read_slowly(f"192.0.2.{number + 10}"))
        assert self.refused(OTHER)
        self.house.pass_time(2)
        assert not self.refused(OTHER)
        assert [client.stream.aborted for client in self.slow] == [True] + [False] * 7

    def test_what_a_stream_holds_is_charged(self) -> None:
        """Each byte of the payloads takes six in JSON."""
        memory = self.house.broker.memory
        for target in (ALL, f"{ALL}&format=jsonl"):
            encoded = len(self.house.get(target).body) // 6
            before = memory.used + CONNECTION_BYTES
            client = self.read_slowly(target=target)
            for _ in range(2):
                self.house.pass_time(5)
                # The parcel, a part of it that is encoded, and another one that is being sent.
                held = 2 * len(BIG) + 2 * encoded - len(client.stream.received)
                assert 0.99 < (memory.used - before) / held < 1.01
                # A piece of it.
                assert 200_000 < len(client.stream.buffered) < 300_000
                client.stream.read(on=False)
            client.read_on()
            self.house.pass_time(5)
            assert client.answer().complete
            assert memory.used == before
            client.stream.lose()
        assert memory.used == before - CONNECTION_BYTES

    def test_streams_are_charged(self) -> None:
        memory = self.house.broker.memory
        before = memory.used
        self.house.publish("small", bytes(100_000))
        before = memory.used
        client = self.read_slowly(target="/v1/history?start=12")
        assert memory.used == before + CONNECTION_BYTES + STREAM_BYTES
        client.stream.lose()
        assert memory.used == before
        memory.limit = before + CONNECTION_BYTES
        assert self.house.get(ALL).error == (503, "memory")


class PartTests(WritingCase):
    """Shares of staged parts and bytes"""

    def setUp(self) -> None:
        self.house = WebHouse(max_staged="1M", max_batch="300K")
        self.body = stream_of(table(["a"], [bytes(200_000)]))

    def stage_from(self, host: str, batch: int, **given: Any) -> int:
        """Stage a part of 200 kB; return the status."""
        target = f"/v1/stage?query={host}&batch={batch}"
        return self.house.connect(host).post(target, self.body, **given).status

    def test_an_address_leaves_bytes_to_others(self) -> None:
        assert [self.stage_from("192.0.2.1", n) for n in range(3)] == [201, 201, 507]
        assert [self.stage_from("192.0.2.2", n) for n in range(3)] == [201, 507, 507]
        assert self.stage_from("192.0.2.3", 0) == 201

    def test_a_token_has_a_share_of_its_own(self) -> None:
        token = self.house.token()
        self.house.get("/v1/topics?start=0", token=token)
        assert [self.stage_from("192.0.2.1", n) for n in range(3)] == [201, 201, 507]
        assert self.stage_from("192.0.2.1", 3, token=token) == 201

    def test_a_client_with_a_full_share_can_commit(self) -> None:
        ids = []
        for batch in range(2):
            answer = self.stage(self.body, batch)
            ids.append(answer.json["part"])
        assert self.stage(self.body, 2).error == (507, "staged")
        padded = {"query": "q", "batch": 0, "parts": [ids[0]] * 20_000}
        assert self.house.post("/v1/commit", padded).status == 200
        assert self.stage(self.body, 2).status == 201

    def test_the_number_of_parts_is_shared(self) -> None:
        self.patch(part_registry, "_MAX_PARTS", 4)  # type: ignore[no-untyped-call]
        body = stream_of(table(["a"], [b"1"]))

        def stage(host: str, batch: int) -> tuple[int, str] | int:
            target = f"/v1/stage?query={host}&batch={batch}"
            answer = self.house.connect(host).post(target, body)
            return answer.status if answer.status == 201 else answer.error

        assert [stage("192.0.2.1", n) for n in range(3)] == [201, 201, (507, "staged")]
        assert stage("192.0.2.2", 0) == 201
        for batch in range(2):
            aborted = {"query": "192.0.2.1", "batch": batch}
            assert self.house.post("/v1/abort", aborted).status == 204
        assert stage("192.0.2.1", 5) == 201
        # A part that is refused takes no place.
        assert self.house.connect(OTHER).post("/v1/stage?query=q&batch=0", b"?").status == 400
        assert stage(OTHER, 0) == 201


class MemoryTests(WritingCase):
    """Parts and bodies count in max-memory"""

    def setUp(self) -> None:
        super().setUp()
        self.memory = self.house.broker.memory
        self.before = self.memory.used

    def test_a_body_is_charged_while_it_is_in_memory(self) -> None:
        client = self.house.connect()
        client.send(b"POST /v1/stage HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + bytes(60_000))
        assert self.memory.used == self.before + CONNECTION_BYTES + 60_000
        client.send(bytes(20_000))
        assert self.memory.used == self.before + CONNECTION_BYTES
        client.stream.lose()
        assert self.memory.used == self.before

    def test_no_body_is_taken_at_the_bound(self) -> None:
        client = self.house.connect()
        self.memory.limit = self.memory.used
        answer = client.post("/v1/history", {"start": 0})
        assert answer.error == (503, "memory")
        assert answer.headers["Retry-After"] == "1"

    def test_some_connections_are_admitted_at_the_bound(self) -> None:
        self.memory.add(1)
        self.memory.limit = 1
        served = [self.house.connect() for _ in range(16)]
        assert all(client.get("/healthz").status == 200 for client in served)
        refused = self.house.connect()
        assert refused.get("/none").error == (503, "memory")
        refused.stream.lose()
        served[0].stream.lose()
        assert self.house.get("/none").status == 404

    def test_a_staged_part_is_charged_with_its_topics(self) -> None:
        names = ["x" * 200 + str(number) for number in range(100)]
        part = stream_of(table(names, [b""] * 100))
        self.stage(part)
        assert self.held() >= len(part) + 100 * 200
        self.house.post("/v1/abort", {"query": "q", "batch": 0})
        assert self.held() == 0

    def test_parsing_is_charged(self) -> None:
        threads = Threads()
        self.house.run_in_thread = threads.run
        client = self.house.connect()
        body = stream_of(table(["a"], [bytes(100_000)]))
        client.ask("POST", "/v1/stage?query=q&batch=0", body)
        assert self.memory.used >= self.before + 3 * len(body)
        threads.step()
        assert client.answer("POST").status == 201
        id = self._staged(client, threads)
        client.ask("POST", "/v1/commit", {"query": "q", "batch": 1, "parts": [id]})
        assert self.memory.used >= self.before + 3 * len(BIG)
        threads.step()
        assert client.answer("POST").status == 200
        self.house.post("/v1/abort", {"query": "q", "batch": 0})
        # The topic, and the number of the batch that was committed.
        assert self.held() < 3000

    def _staged(self, client: WebClient, threads: Threads) -> str:
        client.ask("POST", "/v1/stage?query=q&batch=1", stream_of(table(["a"], [BIG])))
        threads.step()
        id: str = client.answer("POST").json["part"]
        return id

    def test_a_batch_that_has_to_wait_takes_no_memory_meanwhile(self) -> None:
        id = self.stage(table(["a"], [BIG])).json["part"]
        topic = self.house.broker.topics.create("a")
        topic.block("somebody")
        staged = self.memory.used
        client = self.house.connect()
        client.ask("POST", "/v1/commit", {"query": "q", "batch": 0, "parts": [id]})
        assert self.memory.used < staged + CONNECTION_BYTES + 1000
        topic.unblock("somebody")
        self.house.pass_time(0.5)
        assert client.answer("POST").status == 200

    def test_without_memory_a_part_is_refused_for_now(self) -> None:
        body = stream_of(table(["a"], [BIG]))
        id = self.stage(body, 1).json["part"]
        self.memory.limit = 8_000_000
        assert self.stage(body).status == 201
        self.memory.add(5_000_000)
        assert self.stage(body).error == (503, "memory")
        assert self.commit(id, batch=1).error == (503, "memory")
        self.memory.free(5_000_000)
        assert self.commit(id, batch=1).status == 200

    def test_a_batch_that_never_fits_is_too_large(self) -> None:
        id = self.stage(table(["a"], [BIG])).json["part"]
        self.memory.limit = 3_000_000
        assert self.commit(id).error == (413, "too-large")

    def test_headers_take_little_memory(self) -> None:
        """As many empty headers in a part as fit take less than a mapping for each would."""
        headers = pa.array([[{"key": "", "value": b""}] * 1000] * 50, HEADERS)
        body = stream_of(table(["a"] * 50, [b""] * 50, headers=headers))
        threads = Threads()
        self.house.run_in_thread = threads.run
        client = self.house.connect()
        client.ask("POST", "/v1/stage?query=q&batch=0", body)
        threads.step()
        staged = self.memory.used
        client.ask(
            "POST",
            "/v1/commit",
            {"query": "q", "batch": 0, "parts": [client.answer("POST").json["part"]]},
        )
        assert 50_000 * 16 < self.memory.used - staged < 50_000 * 64
        threads.step()
        assert client.answer("POST").status == 200
        self.house.run_in_thread = maybeDeferred
        assert self.house.get("/v1/topics?start=0").json["topics"][0]["bytes"] == 0
