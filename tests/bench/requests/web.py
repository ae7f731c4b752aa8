"""The requests of fast and of the HTTP API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.ipc

from tests.bench import BenchError
from tests.unit import fast_wire as fast

if TYPE_CHECKING:
    from tests.bench.requests.catalogue import Catalogue
    from tests.bench.requests.site import Peer, Site

_TOKEN = fast.grant()
_OTHER = fast.grant(key="k2")


def exchange(site: Site, peer: Peer, data: bytes) -> bytes:
    """Send a request and return the answer, when the broker has nothing more to do for it."""
    peer.take()
    peer.send(data)
    peer.wait()
    site.settle()
    answer = peer.take()
    if not answer.startswith(b"HTTP/1.1 20"):
        raise BenchError(f"{data[:40]!r} was answered {answer[:200]!r}")
    return answer


def http(method: str, target: str, body: bytes | object = b"") -> bytes:
    """Return a request; a body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}"]
    token = f"Authorization: Bearer {_TOKEN.decode()}"
    return "\r\n".join([*lines, token, "", ""]).encode() + data


def part_of(topics: list[str], senders: list[bytes] | None = None) -> bytes:
    """Return an Arrow stream with a message for each of these topics, of its sender."""
    table = pa.table({"topic": topics, "value": pa.array([b"x"] * len(topics), pa.binary())})
    if senders is not None:
        table = table.append_column("key", pa.array(senders, pa.binary()))
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


class FastAndHttp:
    """A part of the ``Catalogue``."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._site = catalogue.site
        self._scale = catalogue.scale

    def run(self) -> None:
        """Send every request."""
        self._fast()
        self._http()

    def _fast(self) -> None:
        measure = self._catalogue.measure
        peer = self._catalogue.connect("fast")
        topics = [f"fast/{number}" for number in range(self._scale.rounds)]
        ids = [fast.topic_id(name) for name in topics]
        for request, packet in (
            ("CREATE", lambda n: fast.create(_TOKEN, topics[n])),
            ("SUBSCRIBE", lambda n: fast.subscribe(_TOKEN, ids[n])),
            ("PUBLISH", lambda n: fast.publish(_TOKEN, b"x", topic=ids[n])),
            ("UNSUBSCRIBE", lambda n: fast.unsubscribe(_TOKEN, ids[n])),
            ("ROTATE_KEY", lambda n: fast.rotate(_TOKEN, b"k2", ids[n])),
        ):
            measure("fast", request, lambda n, packet=packet: peer.send(packet(n)))  # type: ignore[misc]
        owners: list[Peer] = []

        def own(number: int) -> None:
            owners.append(self._catalogue.connect("fast"))
            names = [f"own/{number}/{at}" for at in range(self._scale.exclusive_topics)]
            self._catalogue.send_all(
                owners[-1],
                (fast.create(_TOKEN, name, fast.EXCLUSIVE) for name in names),
            )

        measure("fast", "connection lost, 1,000 exclusive topics", lambda _: owners[-1].lose(), own)

    def _http(self) -> None:
        measure = self._catalogue.measure
        peer = self._catalogue.connect("http")
        reader = {"offset": 0}

        def ask(data: bytes) -> bytes:
            return exchange(self._site, peer, data)

        for request, data in (
            ("GET /", http("GET", "/")),
            ("GET /metrics", http("GET", "/metrics")),
            ("GET /v1/bounds", http("GET", "/v1/bounds")),
            ("GET /v1/history, jsonl", http("GET", "/v1/history?start=0&format=jsonl")),
            ("GET /v1/history, arrow", http("GET", "/v1/history?start=0")),
            ("POST /v1/history", http("POST", "/v1/history", {"start": 0, "topics": ["t/000001"]})),
            ("PUT /v1/readers/NAME", http("PUT", "/v1/readers/bob", reader)),
            ("GET /v1/readers", http("GET", "/v1/readers")),
            ("DELETE /v1/readers/NAME", http("DELETE", "/v1/readers/bob")),
        ):
            measure("http", request, lambda _, data=data: ask(data))  # type: ignore[misc]
        self._commits(ask)
        measure("http", "GET /v1/topics", lambda _: ask(http("GET", "/v1/topics")))
        for request, path in (
            ("DELETE /v1/topics/NAME", "/v1/topics/t%%2F%06d"),
            ("DELETE /v1/identities/NAME, many subscriptions", "/v1/identities/reader-%d"),
        ):
            measure("http", request, lambda n, path=path: ask(http("DELETE", path % n)))  # type: ignore[misc]

    def _commits(self, ask: Callable[[bytes], bytes]) -> None:
        measure = self._catalogue.measure
        count = self._scale.commit_topics
        label = f"{count:,} new topics"
        commits: list[object] = []

        def stage(number: int) -> bytes:
            part = part_of([f"commit/{number}/{at}" for at in range(count)])
            return ask(http("POST", f"/v1/stage?query=q&batch={number}", part))

        def staged(number: int) -> None:
            part = json.loads(stage(number).partition(b"\r\n\r\n")[2])["part"]
            commits.append({"query": "q", "batch": number, "parts": [part]})

        def abort(number: int) -> None:
            ask(http("POST", "/v1/abort", {"query": "q", "batch": number}))

        measure("http", f"POST /v1/stage, {label}", stage)
        measure("http", "POST /v1/abort", abort)
        measure(
            "http",
            f"POST /v1/commit, {label}",
            lambda _: ask(http("POST", "/v1/commit", commits[-1])),
            staged,
        )
        self._commit_of_many_senders(ask)

    def _commit_of_many_senders(self, ask: Callable[[bytes], bytes]) -> None:
        count = self._scale.commit_senders
        commits: list[object] = []

        def staged(number: int) -> None:
            part = part_of(["t/000001"] * count, [b"%d" % sender for sender in range(count)])
            answer = ask(http("POST", f"/v1/stage?query=s&batch={number}", part))
            id = json.loads(answer.partition(b"\r\n\r\n")[2])["part"]
            commits.append({"query": "s", "batch": number, "parts": [id]})

        self._catalogue.measure(
            "http",
            f"POST /v1/commit, {count:,} senders",
            lambda _: ask(http("POST", "/v1/commit", commits[-1])),
            staged,
        )
