"""Credentials in unexpected places: none is in events, logs or audit records."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.figures.events import TOPIC
from tests.unit.cafe_udp import Udp
from tests.unit.cafe_wire import hs_pub
from tests.unit.fakes import scratch
from tests.unit.fast_wire import subscribe as fast_subscribe
from tests.unit.streams import House, logged
from tests.unit.tokens import KEY, token
from tests.unit.user_files import user_file
from tests.unit.web import WebHouse

SECRET = "Open5esame7"
RAW = SECRET.encode()
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00"
JWT = token({"sub": "ada", "secret": SECRET}, lambda data: b"x" * 32)
HELLO = b"\x05HELLO\x03bob" + bytes([len(RAW)]) + RAW
BASIC = b64encode(b"bob:" + RAW)


def greeting(mechanism: bytes) -> bytes:
    """Return a greeting of ZMTP."""
    return GREETING + mechanism.ljust(20, b"\0") + bytes(32)


def command(body: bytes, flags: int = 4) -> bytes:
    """Return a command of ZMTP."""
    return bytes([flags, len(body)]) + body


READY = command(b"\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB")
HANDSHAKE = hs_pub(1, b"bob:" + RAW)
LINE = json.dumps({"identity": "bob", "password": SECRET, "command": "Get"}).encode()
PYTHON = str({"identity": "bob", "password": SECRET}).encode()
REQUEST = b"GET /v1/ws?token=" + JWT + b" HTTP/1.1\r\nAuthorization: Basic " + BASIC + b"\r\n\r\n"

INPUTS: dict[str, list[bytes]] = {
    "cafe": [
        HANDSHAKE,
        HANDSHAKE[1:],
        HANDSHAKE[2:],
        b"\x00" + HANDSHAKE,
        HANDSHAKE[:2] + b"\x09" + HANDSHAKE[3:],
        HANDSHAKE[:3] + b"\x00\x00\x00\xff" + HANDSHAKE[7:],
        HANDSHAKE[:3] + b"\xff\xff\xff\xff" + HANDSHAKE[7:],
        HANDSHAKE[:-1] + b"\xff",
        HANDSHAKE + HANDSHAKE,
        hs_pub(1, b"bob") + HANDSHAKE[1:],
    ],
    "spot": [
        greeting(b"PLAIN") + command(HELLO),
        greeting(b"PLAIN") + command(HELLO + b"x"),
        greeting(b"PLAIN") + command(HELLO[:-1]),
        greeting(b"PLAIN") + command(HELLO, 0),
        greeting(b"PLAIN") + command(HELLO, 0x7F),
        greeting(b"PLAIN") + command(HELLO[1:]),
        greeting(b"NULL") + command(HELLO),
        greeting(b"NULL") + READY + command(HELLO),
        greeting(b"NULL") + READY + command(HELLO, 0),
        greeting(b"NULL") + READY + command(HELLO, 1) + command(HELLO, 0),
        greeting(b"NULL") + READY + command(HELLO[1:], 0),
        greeting(b"NULL") + READY + command(HELLO[6:], 0),
        greeting(b"GSSAPI") + command(HELLO),
        greeting(b"PLAIN")[:40] + command(HELLO),
        command(HELLO) + greeting(b"PLAIN"),
    ],
    "nsd": [
        LINE + b"\n",
        PYTHON + b"\n",
        LINE[:-1] + b"\n",
        LINE[1:] + b"\n",
        b64encode(LINE) + b"\n",
        b64encode(LINE[:-1]) + b"\n",
        b64encode(PYTHON) + b"\n",
        LINE.upper().replace(SECRET.upper().encode(), RAW) + b"\n",
        b"password=" + RAW + b"\n",
    ],
    "fast": [
        fast_subscribe(JWT[:250]),
        b"\x99" + fast_subscribe(JWT[:250]),
        fast_subscribe(RAW),
        fast_subscribe(RAW)[1:],
    ],
    "rheos": [b"GET / HTTP/1.1\r\nCookie: session=" + RAW + b"\r\n\r\n"],
    "admin": [REQUEST, REQUEST.replace(b"GET ", b"GET\t"), REQUEST[:-4] + b"\x00\r\n\r\n"],
}
"""Credentials as each wire has them, the first well-formed, the others damaged or out of place.

The well-formed ones, and lines of nsd in other spellings, are sent to all wires by mistake.
"""


WHOLE = [some[0] for some in INPUTS.values()] + [INPUTS["nsd"][1], INPUTS["nsd"][4]]


class SecretCase(SynchronousTestCase):
    """A broker with every wire, whose users have passwords."""

    def setUp(self) -> None:
        directory = scratch(self)
        secret = directory / "secret"
        secret.write_bytes(KEY)
        secret.chmod(0o600)
        self.lines = logged(self)
        self.house = House(
            {
                "cafe": {"client-id-password": "optional"},
                "spot": {"mechanism": "null,plain"},
                "nsd": {"identity-password": "optional"},
                "fast": {"errors": True},
                "rheos": {},
            },
            top={
                "password-file": user_file(directory),
                "secret-file": str(secret),
                "events": True,
            },
        )
        self.house.broker.startService()
        self.addCleanup(self.house.broker.stopService)

    def events(self) -> list[dict[str, Any]]:
        """Return all events."""
        self.house.pump()
        store = self.house.store
        page = self.successResultOf(store.read(0, frozenset({TOPIC}), 2**24))
        return [json.loads(data) for batch in page.batches for data in batch.payloads()]

    def shown(self) -> str:
        """Return everything that operators and other programs can see."""
        broker = self.house.broker
        events = self.events()
        frames = [b64decode(str(event.get("frame", ""))).decode("latin-1") for event in events]
        records = [str(record) for record in broker._audit.recent.before(None)]
        labels = [str(getattr(client, "label", "")) for client in broker.clients]
        figures = json.dumps(broker.statistics.snapshot())
        return "\n".join([*self.lines, json.dumps(events), *frames, *records, *labels, figures])

    def assert_hidden(self, sent: bytes, wire: str) -> None:
        found = self.shown()
        encoded = b64encode(RAW).decode().rstrip("=")[:-1]
        # The claims and the signature of a token are enough to use it.
        _, claims, signature = JWT.decode().split(".")
        for form in (SECRET, encoded, BASIC.decode()[:-4], claims[:20], signature[:20]):
            assert form not in found, f"{sent!r} in {_around(found, form)!r}"


def _around(text: str, part: str) -> str:
    at = text.find(part)
    return text[max(at - 200, 0) : at + 100]


class WireTests(SecretCase):
    """Each wire gets the credentials of all, whole and byte by byte"""

    def try_all(self, wire: str) -> None:
        for sent in [*INPUTS[wire], *WHOLE]:
            client = self.house.connect(wire)
            client.send(sent)
            self.house.advance(1)
            client.stream.lose()
            other = self.house.connect(wire)
            for at in range(0, len(sent), 7):
                other.send(sent[at : at + 7])
            other.send(b"\r\n\r\n")
            self.house.advance(1)
            other.stream.lose()
            self.assert_hidden(sent, wire)

    def test_cafe(self) -> None:
        self.try_all("cafe")
        assert any(event.get("frame") for event in self.events())

    def test_spot(self) -> None:
        self.try_all("spot")
        assert any(event["event"] == "malformed" for event in self.events())

    def test_nsd(self) -> None:
        self.try_all("nsd")
        assert any(event["event"] == "malformed" for event in self.events())

    def test_fast(self) -> None:
        self.try_all("fast")

    def test_rheos(self) -> None:
        self.try_all("rheos")
        assert any(event.get("frame") for event in self.events())


class DatagramTests(SynchronousTestCase):
    """cafe over UDP"""

    def test_damaged_handshakes(self) -> None:
        lines = logged(self)
        top = {"password-file": user_file(scratch(self)), "events": True}
        udp = Udp(top=top, client_id_password="optional")
        udp.start()
        for number, sent in enumerate(INPUTS["cafe"]):
            udp.send(("192.0.2.7", 40_000 + number), sent)
        udp.pump()
        page = self.successResultOf(udp.store.read(0, frozenset({TOPIC}), 2**24))
        events = [json.loads(data) for batch in page.batches for data in batch.payloads()]
        frames = [b64decode(str(event.get("frame", ""))).decode("latin-1") for event in events]
        assert any(event["event"] == "malformed" for event in events)
        found = "\n".join([*lines, json.dumps(events), *frames])
        assert SECRET not in found, _around(found, SECRET)


OF_OPERATORS = ("/v1/audit", "/v1/sessions", "/v1/refusals", "/v1/status", "/v1/listeners")


class HttpTests(SynchronousTestCase):
    """The HTTP API gets them in every part of a request"""

    def test_requests(self) -> None:
        lines = logged(self)
        house = WebHouse(events=True)
        for sent in [*INPUTS["admin"], *WHOLE]:
            for piece in (sent, b"POST /v1/stage?" + sent + b"\r\n\r\n"):
                client = house.connect()
                client.stream.feed(piece)
                house.pass_time(1)
                client.stream.lose()
        for path in ("/v1/topics", f"/v1/history?access_token={JWT.decode()}", "/v1/nothing"):
            for value in (f"Bearer {SECRET}", f"Basic {BASIC.decode()}", JWT.decode(), SECRET):
                house.get(path, Authorization=value)
        house.pass_time(1)
        page = self.successResultOf(house.store.read(0, frozenset({TOPIC}), 2**24))
        events = [data.decode() for batch in page.batches for data in batch.payloads()]
        shown = [house.get(path, token=house.token("admin")) for path in OF_OPERATORS]
        found = "\n".join([*lines, *events, *(str(answer.body) for answer in shown)])
        assert "bad-token" in found
        for form in (SECRET, BASIC.decode()[:-4], JWT.decode()[40:60]):
            assert form not in found, _around(found, form)
