"""HTTP in memory: a broker with only the admin listener, and its clients."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from http.client import HTTPResponse, IncompleteRead
from typing import Any

import pyarrow as pa
import pyarrow.ipc
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IPushProducer, ITCPTransport
from twisted.internet.task import Clock

from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.broker.listeners.listener_settings import SETTINGS
from pubsub.broker.routing.batch import Headers
from pubsub.http_api.server import SETTINGS as OWN
from pubsub.http_api.server import HttpApiFactory
from pubsub.interfaces import IStore
from pubsub.kernel import Columns
from pubsub.settings import read_all
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import clock_at, make_broker
from tests.unit.streams import Stream
from tests.unit.tokens import hmac_secret, token

HOME = IPv4Address("TCP", "192.0.2.1", 7080)


class WebStream(Stream):
    """A transport that twisted.web can use."""

    # As in Twisted, a protocol that does not provide the interface is not notified.
    _write_lost = True

    def getHost(self) -> IPv4Address:
        return HOME

    @property
    def disconnecting(self) -> bool:
        """True if it is being closed."""
        return self.losing

    def setTcpNoDelay(self, enabled: bool) -> None: ...

    def writeSequence(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def stopProducing(self) -> None:
        self.loseConnection()


class _Open(io.BytesIO):
    """Bytes that are kept for the next response."""

    def close(self) -> None: ...


class Answer:
    """A response; ``complete`` if it has arrived in full."""

    def __init__(self, data: bytes, method: str) -> None:
        self._data = _Open(data)
        response = HTTPResponse(self, method=method)  # type: ignore[arg-type]
        response.begin()
        self.status = response.status
        self.headers = response.headers
        try:
            self.body = response.read()
            self.complete = True
        except IncompleteRead as short:
            self.body = short.partial
            self.complete = False
        self.rest = self._data.read()

    def makefile(self, mode: str) -> io.BytesIO:
        """Return a file, as a socket does."""
        return self._data

    @property
    def json(self) -> Any:
        """The body, as JSON."""
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        """The body, as lines of JSON."""
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The body, as an Arrow stream."""
        rows: list[dict[str, Any]] = pa.ipc.open_stream(self.body).read_all().to_pylist()
        return rows

    @property
    def error(self) -> tuple[int, str]:
        """The status and the code."""
        return self.status, self.json["error"]


class WebClient:
    """One connection."""

    def __init__(
        self,
        factory: HttpApiFactory,
        clock: Clock,
        address: IPv4Address | IPv6Address | UNIXAddress,
    ) -> None:
        self._clock = clock
        self.channel = factory.buildProtocol(address)
        self.stream = WebStream(clock, address, (ITCPTransport, IPushProducer))
        self.stream.protocol = self.channel  # type: ignore[assignment]
        self.channel.makeConnection(self.stream)  # type: ignore[no-untyped-call]

    def send(self, data: bytes) -> None:
        """Send these bytes."""
        self.stream.feed(data)
        self._clock.advance(0)

    def ask(
        self,
        method: str,
        target: str,
        body: object = None,
        token: bytes | None = None,
        **headers: str,
    ) -> None:
        """Send a request."""
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        given = {
            "Host": "localhost",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        if body is not None:
            given.setdefault("Content-Length", str(len(data)))
        if token is not None:
            given["Authorization"] = f"Bearer {token.decode()}"
        head = [f"{method} {target} HTTP/1.1", *[f"{k}: {v}" for k, v in given.items()], "", ""]
        self.send("\r\n".join(head).encode() + data)

    def answer(self, method: str = "GET") -> Answer:
        """Return the response that has arrived."""
        data = bytes(self.stream.received)
        self.stream.received.clear()
        return Answer(data, method)

    def read_on(self) -> None:
        """Receive what waits in the transport, and all that follows."""
        self.stream.read()
        self._clock.advance(0)

    def get(self, target: str, **given: Any) -> Answer:
        """GET."""
        self.ask("GET", target, **given)
        return self.answer()

    def post(self, target: str, body: object, **given: Any) -> Answer:
        """POST."""
        self.ask("POST", target, body, **given)
        return self.answer("POST")

    @property
    def closed(self) -> bool:
        """True if the broker has closed the connection."""
        return self.stream.closed


def admin_settings(**settings: object) -> dict[str, object]:
    """Return the settings of an admin listener."""
    # Clients of tests are at other addresses than loopback.
    given: dict[str, object] = {"allow-anonymous": "on"}
    given |= {name.replace("_", "-"): value for name, value in settings.items()}
    return {**read_all(SETTINGS, given), **read_all(OWN, given)}


class WebHouse:
    """A broker with the admin listener; ``run`` replaces its threads."""

    def __init__(
        self,
        store: IStore | None = None,
        run: Callable[[Callable[[], Any]], Deferred[Any]] = maybeDeferred,
        clock: Clock | None = None,
        events: bool = False,
        **settings: object,
    ) -> None:
        self.clock = clock or clock_at()
        self.store = MemoryStore(10_000, 2**26) if store is None else store
        ring = SecretRing([hmac_secret()])
        self.broker = make_broker(self.clock, store=self.store, ring=ring, events=events)
        self.listener = self.broker.make_listener("admin", admin_settings(**settings))
        self.broker.add_listener(self.listener)
        self.run_in_thread = run
        self.factory = HttpApiFactory(self.listener, lambda call: self.run_in_thread(call))
        self.broker.startService()
        self._port = 40_000

    @property
    def body_bytes(self) -> int:
        """The bytes of all bodies there are."""
        return self.factory.staged_shares.used + self.factory.body_shares.used

    def connect(self, host: str = "192.0.2.7") -> WebClient:
        """Return a new client."""
        self._port += 1
        return WebClient(self.factory, self.clock, IPv4Address("TCP", host, self._port))

    def get(self, target: str, **given: Any) -> Answer:
        """GET over a connection of its own."""
        return self.connect().get(target, **given)

    def post(self, target: str, body: object, **given: Any) -> Answer:
        """POST over a connection of its own."""
        return self.connect().post(target, body, **given)

    def publish(self, topic: str, *payloads: bytes, headers: list[Headers] | None = None) -> None:
        """Publish messages of alice."""
        found = self.broker.topics.create(topic)
        self.broker.dispatcher.publish(found, Columns.of(list(payloads)), b"alice", "toy", headers)

    def lock(self, topic: str, key: bytes) -> None:
        """Set the topic's queue key."""
        found = self.broker.topics.create(topic)
        self.broker.queue_keys.close(found, key, "owner", "owner")

    def pass_time(self, seconds: float) -> None:
        """Advance the clock in steps of half a second."""
        while seconds > 0:
            self.clock.advance(min(seconds, 0.5))
            seconds -= 0.5

    def token(
        self, *permissions: str, key: str = "k", lasts: float = 3600.0, sub: str = "bob"
    ) -> bytes:
        """Return a token for ``sub``."""
        ends = self.clock.seconds() + lasts
        return token({"sub": sub, "queue_key": key, "permissions": list(permissions), "exp": ends})


def stream_of(table: pa.Table, **options: Any) -> bytes:
    """Return a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(
        sink, table.schema, options=pyarrow.ipc.IpcWriteOptions(**options)
    ) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data
