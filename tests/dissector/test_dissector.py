"""The dissector as a whole: its fields, preferences and ports, TLS, and long captures."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from pubsub.dissector.generator import display_filters, generate
from pubsub.plugin import installed_protocols
from tests.dissector.captures import Capture, address
from tests.dissector.played import Segment
from tests.dissector.tshark import columns, dissect, run, tshark
from tests.vectors import load_vectors

PUBLISH = bytes.fromhex("fe ca 10 03 00 00 00 01 68 69")
QUERY = bytes.fromhex("01 00 00 01 04")
GREETING = bytes.fromhex("ff 00 00 00 00 00 00 00 00 7f 03 01") + b"NULL" + bytes(48)
MANY = 100_000


def test_fields_are_registered() -> None:
    rows = [line.split("\t") for line in run(["-G", "fields"]).decode().splitlines()]
    registered = {row[2] for row in rows if row[0] == "F" and row[2].startswith("pubsub.")}
    declared = {
        f"pubsub.{name}.{field.name}"
        for name, protocol in installed_protocols().items()
        for field in display_filters(protocol)
    }
    assert declared <= registered
    further = {name for name in registered - declared if ".expert." not in name}
    assert further == {f"pubsub.{name}.undecoded" for name in installed_protocols()}


@pytest.mark.parametrize("removed", sorted(installed_protocols()))
def test_without_any_one_protocol_the_others_work(removed: str) -> None:
    left = {name: each for name, each in installed_protocols().items() if name != removed}
    capture = Capture()
    capture.stream(7070, [(True, PUBLISH)])
    capture.stream(7071, [(True, b'{"_class":"SuccessResponse"}\n')])
    arguments = ["-T", "fields", "-e", "frame.protocols"]
    shown = tshark(bytes(capture), arguments, generate(left)).decode().splitlines()
    expected = [f":pubsub.{name}" if name in left else "" for name in ("cafe", "nsd")]
    assert [line.partition("tcp")[2].replace(":data", "") for line in shown] == expected


def test_display_filters_and_info() -> None:
    capture = Capture()
    capture.stream(7070, [(True, 10 * PUBLISH), (True, PUBLISH)])
    capture.stream(7073, [(True, QUERY)])
    chosen = ["-Y", "pubsub.cafe.channel == 1 && pubsub.cafe.payload == 68:69"]
    fields = ["_ws.col.Protocol", "_ws.col.Info"]
    publish = "PUBLISH channel=1 2 bytes"
    assert list(columns(capture, chosen, fields)) == [
        ["CAFE", f"{', '.join(8 * [publish])}, and 2 more"],
        ["CAFE", publish],
    ]
    assert list(columns(capture, ["-Y", "pubsub.spot"], fields)) == [["SPOT", "QUERY"]]


def test_a_frame_that_ends_in_the_next_segment_is_in_its_info() -> None:
    capture = Capture()
    capture.stream(7070, [(True, PUBLISH + PUBLISH[:4]), (True, PUBLISH[4:] + PUBLISH)])
    first, second = columns(capture, fields=["_ws.col.Info"])
    assert first[0].startswith("PUBLISH channel=1 2 bytes")
    assert second[0] == "PUBLISH channel=1 2 bytes, PUBLISH channel=1 2 bytes"


class TestPorts:
    """Preferences for ports"""

    def test_other_ports(self) -> None:
        capture = Capture()
        clients = [capture.stream(port, [(True, PUBLISH)]) for port in (7070, 9001, 9003)]
        clients.append(capture.datagrams(9002, [(True, PUBLISH)]))
        ports = {"pubsub.cafe.tcp_ports": "9000-9001", "pubsub.cafe.udp_ports": "9002"}
        found = dissect(capture, "cafe", ports)
        assert [len(found[address(client)]) for client in clients] == [0, 1, 0, 1]

    def test_other_ports_are_looked_at_only_if_that_is_chosen(self) -> None:
        capture = Capture()
        tcp = capture.stream(9001, [(True, PUBLISH), (False, PUBLISH), (True, PUBLISH[:7])])
        udp = capture.datagrams(9001, [(True, PUBLISH)])
        other = capture.stream(9001, [(True, b"GET / HTTP/1.1\r\n\r\n")])
        assert not dissect(capture, "cafe")
        found = dissect(capture, "cafe", {"pubsub.cafe.heuristic": "TRUE"})
        counts = [len(found[address(client)]) for client in (tcp, udp, other)]
        assert counts == [2, 1, 0]

    @pytest.mark.parametrize(
        ("protocol", "data"),
        [
            ("nsd", b'{"_class":"OpenRequest","identity":"a"}\n'),
            ("rheos", bytes.fromhex(load_vectors("rheos-frames")["frames"][0]["hex"])),
            ("spot", GREETING),
            ("fast", bytes.fromhex("02 00 00 00 00 07")),
        ],
    )
    def test_every_protocol_is_recognised(self, protocol: str, data: bytes) -> None:
        capture = Capture()
        clients = [capture.stream(9001, [(True, one)]) for one in (data, b"SSH-2.0-x\r\n")]
        found = dissect(capture, protocol, {f"pubsub.{protocol}.heuristic": "TRUE"})
        assert [len(found[address(client)]) for client in clients] == [1, 0]

    def test_one_can_be_chosen_for_a_port(self) -> None:
        capture = Capture()
        capture.stream(9001, [(True, PUBLISH)])
        shown = columns(capture, ["-d", "tcp.port==9001,pubsub.cafe"], ["pubsub.cafe.channel"])
        assert list(shown) == [["1"]]


class TestLimits:
    """Frames that are not reassembled"""

    def test_frames_over_the_preference(self) -> None:
        capture = Capture()
        data = bytes.fromhex("04 00 00 00 07 00 20 00 00") + bytes(1000)
        client = capture.stream(7074, [(False, data), (False, bytes(1000))])
        units = dissect(capture, "fast", {"pubsub.fast.longest": "1"})[address(client)]
        assert units[0].experts == ["truncated"]
        assert not dissect(capture, "fast", {"pubsub.fast.longest": "3"})

    def test_a_frame_as_long_as_allowed(self) -> None:
        size = 1_048_576
        frame = bytes.fromhex("fe ca 13") + size.to_bytes(4, "little") + bytes(size)
        capture = Capture()
        capture.stream(7070, [(False, frame[at : at + 1400]) for at in range(0, len(frame), 1400)])
        lengths = [row[0] for row in columns(capture, fields=["pubsub.cafe.length"]) if row[0]]
        assert lengths == [str(size)]


def test_many_frames() -> None:
    message = bytes.fromhex("fe ca 13 19 00 00 00 07 00 68 e5 cf 8b 01 00 00") + bytes(16)
    data = MANY * message
    capture = Capture()
    capture.stream(7070, [(False, data[at : at + 1448]) for at in range(0, len(data), 1448)])
    counted = "io,stat,0,COUNT(pubsub.cafe.timestamp)pubsub.cafe.timestamp"
    shown = tshark(bytes(capture), ["-q", "-z", counted]).decode()
    assert f"| {MANY} |" in shown.replace("  ", " ")


class Secured:
    """A TLS session in memory, and its keys in a file."""

    def __init__(self, folder: Path) -> None:
        self.keys = folder / "keys"
        certificate = folder / "certificate.pem"
        certificate.write_bytes(_certificate())
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        client.keylog_filename = str(self.keys)
        self._pipes = {side: (ssl.MemoryBIO(), ssl.MemoryBIO()) for side in (True, False)}
        self._ends = {
            True: client.wrap_bio(*self._pipes[True]),
            False: server.wrap_bio(*self._pipes[False], server_side=True),
        }

    def segments(self, *sent: Segment) -> Iterator[Segment]:
        """Yield the encrypted segments of the handshake and of the data."""
        for _ in range(4):
            for side, end in self._ends.items():
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
                yield from self._moved(side)
        for side, data in sent:
            self._ends[side].write(data)
            yield from self._moved(side)

    def _moved(self, side: bool) -> Iterator[Segment]:
        data = self._pipes[side][1].read()
        if data:
            self._pipes[not side][0].write(data)
            yield side, data


def _certificate() -> bytes:
    """Return a key and a certificate of its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + certificate.public_bytes(Encoding.PEM)


class TestTls:
    """Listeners with TLS"""

    @pytest.fixture
    def session(self) -> Iterator[Secured]:
        """Yield a session that has not begun."""
        with tempfile.TemporaryDirectory() as folder:
            # For tshark, which does not run as root.
            os.chmod(folder, 0o755)
            yield Secured(Path(folder))

    def test_frames_in_a_decrypted_stream(self, session: Secured) -> None:
        capture = Capture()
        segments = session.segments((True, PUBLISH[:5]), (True, PUBLISH[5:]), (False, PUBLISH))
        client = capture.stream(7070, list(segments))
        options = {
            "tls.keylog_file": os.fspath(session.keys),
            "pubsub.cafe.tcp_ports": "",
            "pubsub.cafe.tls_ports": "7070",
        }
        units = dissect(capture, "cafe", options)[address(client)]
        assert [unit.shown["payload"] for unit in units] == [["68:69"], ["68:69"]]
        assert [unit.experts for unit in units] == [[], ["sender"]]

    def test_one_can_be_chosen_for_a_port(self, session: Secured) -> None:
        capture = Capture()
        capture.stream(9443, list(session.segments((True, PUBLISH))))
        arguments = [
            *("-d", "tcp.port==9443,tls", "-d", "tls.port==9443,pubsub.cafe"),
            f"-otls.keylog_file:{session.keys}",
            *("-Y", "pubsub.cafe"),
        ]
        assert list(columns(capture, arguments, ["pubsub.cafe.channel"])) == [["1"]]
