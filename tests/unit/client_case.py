"""Commands that connect, in this process, with a fake client and a fake API."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, redirect_stderr
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

from pubsub.client import Level, Message, MessageBatch, NotExpressible
from pubsub.commands import api_client, broker_client
from pubsub.commands.command import main
from pubsub.kernel import Columns
from pubsub.wire.client_events import Messages
from tests.unit.command_case import CommandCase

API = "--api=http://127.0.0.1:7080"
CAFE = ("--url=cafe://127.0.0.1:7070", API)


class FakeClient:
    """A broker in memory: published messages arrive at its subscriptions.

    ``requests`` are the bytes of each; ``errors`` those to raise after a number of messages.
    """

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes, Any]] = []
        self.requests: list[int] = []
        self.errors: dict[int, Exception] = {}
        self.notices: list[Any] = []
        self.starts: list[int | None] = []
        self.readers: list[str | None] = []
        self.commits: list[int] = []
        """The numbers of messages that were taken before each commit."""
        self.most = 1000
        self.flushed = 0
        self.drops = 0
        self.ends = False
        self.queues: list[asyncio.Queue[MessageBatch]] = []
        self.stored: list[MessageBatch] = []
        self.noise: list[MessageBatch] = []
        """What others publish, in turn, while nothing else arrives."""

    async def publish_many(
        self, topic: str, payloads: Sequence[bytes], confirm: bool, headers: Any = None
    ) -> Level | None:
        """See Client."""
        if any(len(payload) > self.most for payload in payloads):
            raise NotExpressible(f"more than {self.most} bytes")
        error = self.errors.pop(len(self.published), None)
        if error is not None:
            raise error
        self.requests.append(sum(map(len, payloads)))
        self.published += [(topic, payload, headers) for payload in payloads]
        kept = payloads[self.drops :]
        self.drops = 0
        if kept:
            self.deliver(topic, *kept)
        # The turn of a real connection.
        await asyncio.sleep(0)
        return Level.HANDLED if confirm else None

    async def flush(self) -> None:
        """See Client."""
        self.flushed = len(self.published)

    def deliver(self, topic: str, *payloads: bytes) -> None:
        batch = MessageBatch(Messages(topic, Columns.of(list(payloads))))
        for queue in self.queues:
            queue.put_nowait(batch)

    def subscribe(
        self,
        *topics: str,
        prefixes: Sequence[str],
        start: int | None,
        events: bool,
        reader: str | None = None,
    ) -> FakeSubscription:
        """See Client."""
        self.starts.append(start)
        self.readers.append(reader)
        self.topics, self.prefixes = topics, prefixes
        queue: asyncio.Queue[MessageBatch] = asyncio.Queue()
        for batch in self.stored:
            queue.put_nowait(batch)
        self.queues.append(queue)
        return FakeSubscription(queue, self.ends, self.noise, self.commits)


class FakeSubscription:
    def __init__(
        self,
        queue: asyncio.Queue[MessageBatch],
        ends: bool,
        noise: list[MessageBatch],
        commits: list[int],
    ) -> None:
        self._commits = commits
        self._taken = 0
        self.taken = self
        self._queue = queue
        self._ends = ends
        self._noise = noise

    async def __aenter__(self) -> FakeSubscription:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def next_whole(self) -> MessageBatch | None:
        if self._noise and self._queue.empty():
            await asyncio.sleep(0.01)
            return self._noise.pop()
        return None if self._ends and self._queue.empty() else await self._queue.get()

    next_untaken = next_whole

    def each_of(self, batch: MessageBatch) -> Iterator[Message]:
        for message in batch:
            self._taken += 1
            yield message

    async def commit(self) -> None:
        self._commits.append(self._taken)

    async def batches(self) -> AsyncIterator[MessageBatch]:
        while (batch := await self.next_whole()) is not None:
            yield batch


class FakeApi:
    """Answers the requests of ``Api`` from the messages of one history."""

    sock = None

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self.requests: list[tuple[str, str]] = []
        self.starts_at: int | None = None
        """The offset at which replies with messages begin, if they show it."""
        self.cut: int | None = None
        """The bytes of the next reply that arrive, and of the reply after it."""
        self.then_cut: int | None = None

    def __call__(self, host: str, port: int, **_options: object) -> FakeApi:
        self.port = port
        return self

    def request(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str]
    ) -> None:
        self.requests.append((method, target))
        self.headers = headers

    def getresponse(self) -> HTTPResponse:
        method, target = self.requests[-1]
        parts = urlsplit(target)
        status, rows = self.answer(method, parts.path, parse_qs(parts.query))
        body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        length = len(body)
        if self.cut is not None and parts.path == "/v1/history":
            body, self.cut, self.then_cut = body[: self.cut], self.then_cut, None
        start = "" if self.starts_at is None else f"Pubsub-Start: {self.starts_at}\r\n"
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n{start}\r\n".encode()
        found = HTTPResponse(FakeSocket(head + body))  # type: ignore[arg-type]
        found.begin()
        return found

    def answer(
        self, method: str, path: str, query: dict[str, list[str]]
    ) -> tuple[int, list[dict[str, Any]]]:
        stop = len(self.messages)
        if path == "/v1/bounds":
            return 200, [{"first": 0, "next": stop, "epoch": "1", "offset": 1}]
        if method == "DELETE":
            known = {topic for topic, _ in self.messages}
            if path.removeprefix("/v1/topics/").replace("%2F", "/") in known:
                return 204, []
            return 404, [{"error": "unknown-topic", "message": "there is no such topic"}]
        if path == "/v1/topics":
            start, stop = (
                int(query.get(name, [d])[0]) for name, d in (("start", "0"), ("stop", str(stop)))
            )
            sizes: dict[str, list[int]] = {}
            for topic, payload in self.messages[start:stop]:
                sizes.setdefault(topic, []).append(len(payload))
            rows = [
                {"name": name, "messages": len(sizes[name]), "bytes": sum(sizes[name])}
                for name in sorted(sizes)
            ]
            return 200, [{"topics": rows}]
        if path != "/v1/history":
            return 500, []
        wanted = query.get("topic")
        return 200, [
            {"damaged": [offset, offset + 1]}
            if not topic
            else {
                "offset": offset, "timestamp": offset, "topic": topic, "key": "",
                "value": payload.decode(), "headers": [],
            }
            for offset, (topic, payload) in enumerate(self.messages)
            if int(query["start"][0]) <= offset < int(query["stop"][0])
            and (not wanted or topic in wanted or not topic)
        ]  # fmt: skip


class FakeSocket:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._data)


class ClientCase(CommandCase):
    """Runs commands with descriptors of files, as they write to descriptors."""

    def setUp(self) -> None:
        super().setUp()
        self.client = FakeClient()
        self.api = FakeApi()
        self.error: Exception | None = None
        for patched in (
            patch.object(broker_client, "connected", self.connected),
            patch.object(api_client, "HTTPConnection", self.api),
            patch.dict(os.environ, {"XDG_CONFIG_HOME": str(self.directory)}),
        ):
            patched.start()
            self.addCleanup(patched.stop)

    @asynccontextmanager
    async def connected(self, where: Any, on_event: Any = None) -> AsyncIterator[FakeClient]:
        self.where = where
        with broker_client.advice(where):
            if self.error is not None:
                raise self.error
            for notice in self.client.notices:
                on_event(notice)
            yield self.client

    @contextmanager
    def stdout(self, path: Path) -> Iterator[None]:
        with path.open("w") as file, patch.object(sys, "stdout", file):
            yield

    def run_it(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        out, err = self.directory / "out", io.StringIO()
        given = self.directory / "in"
        given.write_text(stdin)
        file = given.open()
        # Not before: the thread that reads may go on, and would read what another test opens.
        self.addCleanup(file.close)
        with (
            patch.object(sys, "stdin", file),
            self.stdout(out),
            redirect_stderr(err),
            patch("pubsub.commands.pub._STDIN", file.fileno()),
        ):
            code = main(arguments)
        return code, out.read_text(), err.getvalue()

    def store(self, *messages: tuple[str, str]) -> None:
        self.api.messages += [(topic, text.encode()) for topic, text in messages]

    def usage(self, *arguments: str) -> str:
        code, out, err = self.run_it(*arguments)
        assert (code, out) == (2, "")
        return err
