"""Malformed frames, decoded as far as possible."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from pubsub.pipeline.jobs.dissect import dissect, dissectors
from pubsub.protocols.cafe import codec as cafe
from pubsub.protocols.fast import codec as fast
from pubsub.protocols.rheos import codec as rheos
from pubsub.protocols.spot import commands as spot

KNOWN = dissectors()
PROTOCOLS = ("cafe", "fast", "nsd", "rheos", "spot")
UUID = bytes(range(1, 17))


class DissectTests(TestCase):
    """One test for each protocol: complete frames, and the errors of others."""

    def test_cafe(self) -> None:
        whole = cafe.encode(cafe.HandshakePub(7, b"alice"))
        found = dissect(KNOWN, "cafe", whole)
        assert (found.kind, found.fault, found.understood) == ("HandshakePub", "", len(whole))
        assert found.fields == {"opcode": 1, "length": 7, "channel": 7, "client_id": "alice"}
        assert dissect(KNOWN, "cafe", whole[:-2]).fault == "client_id: 5 bytes at byte 9 of 12"
        assert dissect(KNOWN, "cafe", whole[:5]).fault == "5 bytes; a header has 7"
        assert (
            dissect(KNOWN, "cafe", b"\xca\xfe" + whole[2:]).fault
            == "magic 0xfeca instead of 0xcafe"
        )
        assert dissect(KNOWN, "cafe", b"\xfe\xca\x99\0\0\0\0").fault == "unknown opcode 0x99"
        long = cafe.HEADER.pack(cafe.MAGIC, 0x10, 2**31)
        assert dissect(KNOWN, "cafe", long).fault.startswith("a payload of 2147483648 bytes; ")
        more = cafe.HEADER.pack(cafe.MAGIC, 0x20, 2) + b"ab"
        assert dissect(KNOWN, "cafe", more).fault == "2 bytes too many"
        cut = cafe.HEADER.pack(cafe.MAGIC, 0x10, 50) + b"\x07hello"
        found = dissect(KNOWN, "cafe", cut)
        assert (found.kind, found.fields["payload"]) == ("Publish", "hello")
        assert found.fault == "44 bytes of the frame are missing"

    def test_fast_without_its_secrets(self) -> None:
        found = dissect(KNOWN, "fast", fast.encode(fast.RotateKey(b"a.b.c", 9, b"new key")))
        assert (found.kind, found.fault) == ("RotateKey", "")
        assert found.fields == {
            "type": 7, "token": "(5 bytes)", "topic_id": 9, "key": "(7 bytes)"
        }  # fmt: skip
        cut = fast.encode(fast.Publish(b"a.b.c", 9, b"hello"))[:-2]
        assert dissect(KNOWN, "fast", cut).fault.startswith("payload: 5 bytes at byte ")
        assert dissect(KNOWN, "fast", b"\x55").fault == "there is no type 0x55"

    def test_rheos_in_both_layouts(self) -> None:
        for name in ("spec", "original"):
            packet = rheos.Codec(name).encode(rheos.Request(2, UUID, b"news", b"hello"))
            found = dissect(KNOWN, "rheos", packet)
            assert (found.kind, found.fault) == ("Publish", "")
            assert (found.fields["name"], found.fields["data"]) == ("news", "hello")
        assert dissect(KNOWN, "rheos", b"\x01").fault == "magic 0x01 instead of 0xfa"
        assert dissect(KNOWN, "rheos", packet[:30]).fault != ""

    def test_nsd(self) -> None:
        found = dissect(KNOWN, "nsd", b'{"_class":"GetRequest","identity":"bob","after":1}\n')
        assert (found.kind, found.fault) == ("GetRequest", "")
        found = dissect(KNOWN, "nsd", b'{"_class":"GetRequest","identity":"bob","after":"x"}\n')
        assert (found.fault, found.fields["after"]) == ("an object, but not a request", "x")
        assert dissect(KNOWN, "nsd", b"[1]").fault == "JSON, but not an object"
        assert dissect(KNOWN, "nsd", b'{"a":').fault.startswith("not JSON: ")

    def test_spot(self) -> None:
        message = spot.encode_request(spot.Publish(b"news", b"hello"))
        found = dissect(KNOWN, "spot", message)
        assert (found.kind, found.fault) == ("Publish", "")
        assert found.fields == {"topic": "news", "data": "hello"}
        assert dissect(KNOWN, "spot", message[:-1]).fault.endswith("bytes are needed")
        assert dissect(KNOWN, "spot", b"\x00\x01x").fault == "a message, but not a command"
        assert dissect(KNOWN, "spot", b"\x80abc").fault == "malformed-frame"

    def test_unknown_protocols_and_empty_frames(self) -> None:
        assert dissect(KNOWN, "amqp", b"x").fault == "no protocol 'amqp' is known"
        assert dissect(KNOWN, "cafe", b"").fault == "no bytes are shown"

    def test_bytes_that_are_not_text_are_shown_in_hexadecimal(self) -> None:
        found = dissect(KNOWN, "cafe", cafe.encode(cafe.Publish(7, b"\xff\x00" * 200)))
        assert found.fields["payload"] == "0x" + "ff00" * 128 + "..."

    @given(st.sampled_from(PROTOCOLS), st.binary(max_size=200))
    @example("cafe", b"\xfe\xca\x10\xff\xff\xff\xff")
    @example("rheos", b"\xfa" + b"\xff" * 25)
    @example("fast", b"\x03\xff")
    @example("nsd", b"[" * 200)
    @example("nsd", b'{"_class":"\\ud800"}')
    @example("spot", b"\x02" + b"\xff" * 8)
    def test_any_bytes_are_dissected(self, protocol: str, data: bytes) -> None:
        assert 0 <= dissect(KNOWN, protocol, data).understood <= max(len(data), 1)

    @given(st.sampled_from((b"\xfe\xca", b"\xfa", b"\x03", b'{"')), st.binary(max_size=100))
    def test_any_bytes_after_a_valid_beginning_are_dissected(
        self, start: bytes, data: bytes
    ) -> None:
        for protocol in PROTOCOLS:
            dissect(KNOWN, protocol, start + data)
