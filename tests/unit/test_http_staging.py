"""HTTP: parts that are accepted, and parts that are refused."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.http_api.exactly_once import staged_parts
from pubsub.http_api.exactly_once.staged_parts import PublishableRun, read_rows, summarize
from pubsub.http_api.requests.api_error import ApiError
from tests.profiles import examples
from tests.unit.big_house import Threads
from tests.unit.tokens import token
from tests.unit.web import WebHouse, stream_of
from tests.unit.writing_case import HEADERS, WritingCase, table


def read_runs(file: io.BytesIO, sender: bytes) -> Iterator[PublishableRun]:
    """The runs of a part."""
    for rows in read_rows(file, sender):
        yield from rows.runs()


class StageTests(WritingCase):
    """Accepted and refused parts"""

    def test_messages_are_counted(self) -> None:
        answer = self.stage(table(["a", "b"], [b"1", b"2"]))
        assert (answer.status, answer.json["messages"]) == (201, 2)
        assert self.values() == []

    def test_an_empty_part(self) -> None:
        assert self.stage(table([], [])).json["messages"] == 0

    def test_columns_may_be_of_other_types(self) -> None:
        data = pa.table(
            {
                "value": pa.array(["é"], pa.large_string()),
                "topic": pa.array(["a"], pa.large_string()),
                "key": pa.array([None], pa.string()),
            }
        )
        id = self.stage(data).json["part"]
        assert self.commit(id).status == 200
        assert self.values() == ["é".encode()]

    def test_no_arrow(self) -> None:
        good = stream_of(table(["a"], [b"1"]))
        for bad in (
            b"",
            b"x",
            b"\xff" * 100,
            good[:100],
            good[:-20],
            b"\xff\xff\xff\xff\0\0\0\x7f",
        ):
            assert self.stage(bad).error == (400, "invalid-request"), bad
        assert self.house.body_bytes == 0

    def test_other_columns(self) -> None:
        nameless = pa.array([[{"key": None, "value": b"v"}]], HEADERS)
        nothing = pa.array([[None]], HEADERS)
        many = pa.array([[{"key": str(n), "value": b""} for n in range(2**16)]], HEADERS)
        for columns in (
            {"topic": ["a"]},
            {"value": ["a"]},
            {"topic": ["a"], "value": [1]},
            {"topic": ["a"], "value": ["b"], "more": [1]},
            {"topic": [b"a"], "value": ["b"]},
            {"topic": [None], "value": pa.array(["b"])},
            {"topic": pa.array([None], pa.string()), "value": ["b"]},
            {"topic": ["a"], "value": pa.array([None], pa.binary())},
            {"topic": pa.array(["a"]).dictionary_encode(), "value": ["b"]},
            {"topic": [""], "value": ["b"]},
            {"topic": ["x" * 256], "value": ["b"]},
            {"topic": ["a"], "value": ["b"], "headers": nameless},
            {"topic": ["a"], "value": ["b"], "headers": nothing},
            {"topic": ["a"], "value": ["b"], "headers": many},
            {"topic": ["a"], "value": ["b"], "headers": [b"a"]},
            {"topic": ["a"], "value": ["b"], "headers": [["a"]]},
            {"topic": ["a"], "value": ["b"], "headers": [{"key": "a", "value": b"b"}]},
            {"topic": ["a"], "value": ["b"], "headers": [[{"key": b"a", "value": b"b"}]]},
            {"topic": ["a"], "value": ["b"], "headers": [[{"value": b"b", "key": "a"}]]},
        ):
            assert self.stage(pa.table(columns)).error[0] == 400, columns

    def test_two_columns_of_a_name(self) -> None:
        data = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["topic", "topic", "value"])
        assert self.stage(data).error == (400, "invalid-request")

    def test_compressed_streams_are_not_taken(self) -> None:
        for kind in ("zstd", "lz4"):
            data = stream_of(table(["a"], [bytes(1000)]), compression=kind)
            assert self.stage(data).error == (415, "compressed")

    def test_offsets_that_point_elsewhere(self) -> None:
        data = bytearray(stream_of(table(["a", "b"], [b"1", b"2"])))
        ends = pa.array([0, 1, 2], pa.int32()).buffers()[1].to_pybytes()[:12]
        place = data.rindex(ends)
        data[place + 8 : place + 12] = b"\xff\xff\xff\x0f"
        assert self.stage(bytes(data)).error == (400, "invalid-request")

    @examples(2)
    @given(st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=4))
    # The marker of a message, and the length of its metadata: zero, negative, beyond the end.
    @example([(0, 0)])
    @example([(4, 0), (5, 0)])
    @example([(7, 0xFF)])
    @example([(6, 0xFF), (7, 0x7F)])
    # The offset of the table in that metadata.
    @example([(8, 0xFF), (9, 0xFF), (10, 0xFF), (11, 0x7F)])
    def test_invalid_input_changes_nothing(self, changes: list[tuple[int, int]]) -> None:
        stream = bytearray(stream_of(table(["a", "b"], [b"1", b"22"], key=[b"x", b"y"])))
        for place, byte in changes:
            stream[place % len(stream)] = byte
        house = WebHouse()
        answer = house.post("/v1/stage?query=q&batch=0", bytes(stream))
        assert answer.status in (201, 400, 413, 415)
        if answer.status == 201:
            body = {"query": "q", "batch": 0, "parts": [answer.json["part"]]}
            assert house.post("/v1/commit", body).status in (200, 400)
        assert not self.flushLoggedErrors()  # type: ignore[no-untyped-call]

    def test_senders_of_more_than_255_bytes(self) -> None:
        for sender, status in ((b"s" * 255, 201), (b"s" * 256, 400)):
            key = pa.array([b"", sender, None], pa.binary())
            answer = self.stage(table(["a"] * 3, [b"1"] * 3, key=key))
            assert answer.status == status
        assert answer.error == (400, "sender-too-long")
        assert self.house.broker.counters.refusals == {("http", "sender-too-long"): 1}

    def test_a_subject_of_more_than_255_bytes(self) -> None:
        given = {"sub": "s" * 256, "permissions": [], "exp": self.house.clock.seconds() + 9}
        part = table(["a"], [b"1"])
        answer = self.stage(part, token=token(given))
        assert answer.error == (400, "sender-too-long")
        # The subject is not used if each message has its sender.
        own = part.append_column("key", pa.array([b"me"], pa.binary()))
        assert self.stage(own, token=token(given)).status == 201
        assert self.house.get("/v1/bounds", token=token(given)).status == 200

    def test_parameters(self) -> None:
        body = stream_of(table(["a"], [b"1"]))
        for query in ("", "query=q", "batch=1", "query=q&batch=-1", "query=&batch=1"):
            assert self.house.post(f"/v1/stage?{query}", body).error == (400, "invalid-request")

    def test_too_many_messages(self) -> None:
        self.patch(staged_parts, "_MAX_MESSAGES", 3)  # type: ignore[no-untyped-call]
        assert self.stage(table(["a"] * 4, [b""] * 4)).error == (413, "too-large")

    def test_a_batch_is_bounded(self) -> None:
        self.house = WebHouse(max_batch="100K")
        data = table(["a"], [bytes(60_000)])
        assert self.stage(data).status == 201
        assert self.stage(data).error == (413, "too-large")
        assert self.stage(data, batch=1).status == 201

    def test_the_limits_of_a_batch_are_published(self) -> None:
        self.house = WebHouse(max_batch="100K", max_message="5K")
        found = self.house.get("/v1/limits").json
        assert found == {"batch_bytes": 102_400, "message_bytes": 5120}
        memory = self.house.broker.memory
        memory.limit = 100_000
        small = self.house.get("/v1/limits").json["batch_bytes"]
        assert small < memory.work_limit
        assert self.stage(table(["a"], [bytes(small // 2)])).status == 201

    def test_staged_bytes_are_limited_and_expire(self) -> None:
        self.house = WebHouse(max_staged="100K", stage_seconds=60)
        data = table(["a"], [bytes(60_000)])
        id = self.stage(data).json["part"]
        assert self.stage(data, batch=1).error == (507, "staged")
        self.house.pass_time(61)
        assert self.stage(data, batch=1).status == 201
        assert self.commit(id).error == (409, "unknown-part")

    def test_another_run_drops_earlier_parts(self) -> None:
        self.house = WebHouse(max_batch="100K")
        body = stream_of(table(["a"], [bytes(60_000)]))

        def stage(run: str, query: str = "q") -> str:
            answer = self.house.post(f"/v1/stage?query={query}&batch=0&run={run}", body)
            return str(answer.json["part"])

        other = stage("1", "other")
        first = stage("1")
        second = stage("2")
        assert self.commit(first).error == (409, "unknown-part")
        assert self.commit(second).status == 200
        asked = {"query": "other", "batch": 0, "parts": [other]}
        assert self.house.post("/v1/commit", asked).status == 200

    def test_a_commit_drops_unlisted_parts(self) -> None:
        """A task that failed and ran again leaves such a part."""
        self.stage(table(["a"], [b"1"]))
        again = self.stage(table(["a"], [b"1"])).json["part"]
        assert self.commit(again).status == 200
        assert self.house.body_bytes == 0

    def test_a_rate_limit(self) -> None:
        self.house = WebHouse(listener_rate_messages=10)
        assert self.stage(table(["a"] * 25, [b""] * 25)).status == 201
        answer = self.stage(table(["a"], [b""]))
        assert answer.error == (429, "rate-limited")
        assert answer.headers["Retry-After"] == "1"
        self.house.pass_time(3)
        assert self.stage(table(["a"], [b""])).status == 201

    def test_a_disconnected_client_leaves_no_part(self) -> None:
        threads = Threads()
        self.house = WebHouse(run=threads.run)
        client = self.house.connect()
        client.ask("POST", "/v1/stage?query=q&batch=0", stream_of(table(["a"], [b"1"])))
        client.stream.lose()
        threads.step()
        assert self.house.body_bytes == 0


class PieceTests(SynchronousTestCase):
    """Parts as batches"""

    def test_counts_match_the_contents(self) -> None:
        file = io.BytesIO(stream_of(table(["a", "a", "b"], [b"1", b"22", b""])))
        summary = summarize(file, b"")
        assert (summary.messages, summary.topics) == (3, frozenset("ab"))
        (run,) = read_runs(file, b"s")
        assert (run.topics, run.sender, run.headers) == (("a", "b"), b"s", None)
        assert run.columns.payloads() == [b"1", b"22", b""]
        assert run.columns.indexes() == [0, 0, 1]

    def test_a_run_has_one_sender_and_a_bounded_number_of_topics(self) -> None:
        names = [f"t{number}" for number in range(3000)]
        keys = pa.array([b"x"] * 1500 + [b"y"] * 1500, pa.binary())
        data = table(names, [b"%d" % number for number in range(3000)], key=keys)
        runs = list(read_runs(io.BytesIO(stream_of(data)), b""))
        assert [run.sender for run in runs] == [b"x", b"x", b"y", b"y"]
        assert max(len(run.topics) for run in runs) == 1024
        messages = [
            (run.topics[index], payload)
            for run in runs
            for index, payload in zip(run.columns.indexes(), run.columns.payloads(), strict=True)
        ]
        assert messages == [(f"t{number}", b"%d" % number) for number in range(3000)]

    def test_headers_with_nulls(self) -> None:
        headers = pa.array(
            [
                [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
                None,
                [],
                [{"key": "ü", "value": b""}],
            ],
            HEADERS,
        )
        data = table(["t"] * 4, [b""] * 4, headers=headers)
        (run,) = read_runs(io.BytesIO(stream_of(data)), b"")
        assert run.headers is not None
        assert list(run.headers) == [{"a": b"1", "b": b""}, {}, {}, {"ü": b""}]
        none = table(["t"] * 2, [b""] * 2, headers=pa.array([[], None], HEADERS))
        (run,) = read_runs(io.BytesIO(stream_of(none)), b"")
        assert run.headers is None

    def test_no_headers_may_have_no_offsets(self) -> None:
        """Arrow's format permits writers to leave out the offsets of an array of no items."""
        nothing = [None, pa.py_buffer(b""), pa.py_buffer(b"")]
        fields = list(HEADERS.value_type)
        texts = [pa.Array.from_buffers(field.type, 0, nothing) for field in fields]
        pairs = pa.StructArray.from_arrays(texts, fields=fields)
        headers = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), pairs, type=HEADERS)
        file = io.BytesIO(stream_of(table(["t"] * 2, [b"1", b"2"], headers=headers)))
        assert summarize(file, b"").messages == 2
        (run,) = read_runs(file, b"")
        assert (run.columns.payloads(), run.headers) == ([b"1", b"2"], None)

    def test_bytes_behind_nulls_are_no_headers(self) -> None:
        given = pa.array(["k"] * 3), pa.array([b"1", b"2", b"3"])
        pairs = pa.StructArray.from_arrays(given, fields=list(HEADERS.value_type))
        offsets, nulls = pa.array([0, 1, 2, 3], pa.int32()), pa.array([False, True, False])
        headers = pa.ListArray.from_arrays(offsets, pairs, type=HEADERS, mask=nulls)
        data = table(["t"] * 3, [b""] * 3, headers=headers)
        runs = read_runs(io.BytesIO(stream_of(data)), b"")
        found = [own for run in runs for own in run.headers or [{}] * run.columns.count]
        assert found == [{"k": b"1"}, {}, {"k": b"3"}]

    def test_headers_are_bytes_of_a_run(self) -> None:
        large = [{"key": "k", "value": bytes(100_000)}]
        data = table(["t"] * 5, [b""] * 5, headers=pa.array([large] * 5, HEADERS))
        runs = list(read_runs(io.BytesIO(stream_of(data)), b""))
        assert [run.columns.count for run in runs] == [2, 2, 1]
        found = [own for run in runs for own in run.headers or ()]
        assert found == [{"k": bytes(100_000)}] * 5

    def test_the_headers_of_a_part_are_bounded(self) -> None:
        self.patch(staged_parts, "_MAX_HEADERS", 10)  # type: ignore[no-untyped-call]
        one = {"key": "", "value": b""}
        for count, fits in ((5, True), (6, False)):
            headers = pa.array([[one] * 5, [one] * count], HEADERS)
            file = io.BytesIO(stream_of(table(["t"] * 2, [b""] * 2, headers=headers)))
            if fits:
                assert summarize(file, b"").messages == 2
                continue
            with pytest.raises(ApiError) as raised:
                summarize(file, b"")
            assert (raised.value.status, raised.value.code) == (413, "too-large")

    def test_the_estimate_of_memory_grows_with_the_contents_of_a_part(self) -> None:
        def memory(count: int, **columns: Any) -> int:
            part = table(["t"] * count, [b"x"] * count, **columns)
            return summarize(io.BytesIO(stream_of(part)), b"").memory

        few, many = memory(1), memory(1000)
        assert many > few + 1000 * 64
        keys = pa.array([b"%d" % number for number in range(1000)], pa.binary())
        assert memory(1000, key=keys) > many + 1000 * 700
        headers = pa.array([[{"key": "", "value": b""}]] * 1000, HEADERS)
        assert many + 1000 * 30 < memory(1000, headers=headers) < many + 1000 * 200

    def test_offsets_that_do_not_begin_at_zero(self) -> None:
        """Writers of other languages send a slice of a larger column so."""
        good = stream_of(table(["t", "t"], [b"--ab", b"cde"]))
        offsets = struct.pack("<3i", 0, 4, 7)
        assert good.count(offsets) == 1
        part = good.replace(offsets, struct.pack("<3i", 2, 4, 7))
        (run,) = read_runs(io.BytesIO(part), b"")
        assert run.columns.payloads() == [b"ab", b"cde"]

    def test_invalid_parts(self) -> None:
        with pytest.raises(ApiError):
            summarize(io.BytesIO(b"?"), b"")

    def test_altered_parts_are_read_or_refused(self) -> None:
        """Arrow's own reader crashes the process on such input."""
        pairs = pa.array([[{"key": "k", "value": b"v"}], None, []], HEADERS)
        good = stream_of(table(["a", "b", "c"], [b"1", b"22", b""], headers=pairs))
        chance = random.Random(1)
        read, refused = 0, set()
        for _ in range(1500):
            changed = bytearray(good)
            for _ in range(chance.randint(1, 4)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            try:
                read += len(list(read_runs(io.BytesIO(changed), b""))) > 0
            except ApiError as error:
                refused.add(error.status)
        assert read
        assert refused <= {400, 415}
