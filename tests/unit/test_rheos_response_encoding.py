"""rheos responses: their encoding and their senders."""

from __future__ import annotations

from uuid import UUID, uuid5

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch
from pubsub.broker.topic_space.topics import Topic
from pubsub.protocols.rheos.codec import MAX_PAYLOAD, Codec, Response
from pubsub.protocols.rheos.response_encoding import client_name, encoding_of, sender_id
from tests.unit.fakes import batch_of, encoded
from tests.unit.rheos_wire import ALICE, SENDERS, body, response


def from_alice(*payloads: bytes) -> Batch:
    """Return a batch that a rheos client published."""
    batch = batch_of(payloads)
    batch.protocol, batch.sender = "rheos", client_name(ALICE).encode()
    return batch


class SenderTests(SynchronousTestCase):
    """rheos §5.5"""

    def test_a_client_is_its_id(self) -> None:
        assert client_name(ALICE) == "a11ce000-a11c-e000-a11c-e000a11ce000"
        assert sender_id("rheos", b"a11ce000-a11c-e000-a11c-e000a11ce000") == ALICE

    @given(st.binary(min_size=16, max_size=16))
    def test_any_id_is_restored_from_its_text(self, client_id: bytes) -> None:
        assert sender_id("rheos", client_name(client_id).encode()) == client_id

    def test_other_senders_are_the_uuid5_of_their_name(self) -> None:
        assert sender_id("nsd", b"alice") == uuid5(SENDERS, "alice").bytes
        assert sender_id("cafe", "zoë".encode()) == uuid5(SENDERS, "zoë").bytes
        assert sender_id("cafe", b"") == uuid5(SENDERS, "").bytes

    def test_a_name_that_is_not_text_has_an_id(self) -> None:
        one, other = sender_id("cafe", b"\xff"), sender_id("cafe", b"\xfe")
        assert one != other
        assert UUID(bytes=one).version == 5


class EncodingTests(SynchronousTestCase):
    """rheos §5.4, §7.3"""

    def test_data_without_an_envelope(self) -> None:
        encoding = encoding_of(Topic("news"), Codec(), envelope=False)
        assert encoded(encoding, from_alice(b"hi", b"ho")) == response(ALICE, b"hi", b"ho")
        assert encoded(encoding, from_alice(b"", b"hey")) == response(ALICE, b"", b"hey")
        assert encoding.limit == MAX_PAYLOAD

    def test_in_an_envelope(self) -> None:
        for layout, length in (("spec", "<H"), ("original", "<I")):
            encoding = encoding_of(Topic("zoë"), Codec(layout), envelope=True)
            wanted = [body("zoë".encode(), data, length) for data in (b"hi", b"", b"hey")]
            assert encoded(encoding, from_alice(b"hi", b"", b"hey")) == response(ALICE, *wanted)
            assert encoded(encoding, from_alice(b"hi")) == response(ALICE, wanted[0])

    def test_the_limits_are_the_largest_sizes_that_fit(self) -> None:
        for layout, limit in (("spec", 65_535), ("original", MAX_PAYLOAD - 6 - 4)):
            encoding = encoding_of(Topic("news"), Codec(layout), envelope=True)
            assert encoding.limit == limit
            packet = encoded(encoding, from_alice(b"x" * limit))
            decoded = Codec().decode_answer(packet)
            assert decoded is not None
            assert decoded[1] == len(packet)

    def test_topics_share_an_encoding_only_without_envelopes(self) -> None:
        news, sport = Topic("news"), Topic("sport")
        for codec in (Codec(), Codec("original"), Codec(checksum=True)):
            assert encoding_of(news, codec, False) == encoding_of(sport, Codec(), False)
            assert encoding_of(news, codec, True) == encoding_of(Topic("news"), codec, True)
            assert encoding_of(news, codec, True) != encoding_of(sport, codec, True)

    @given(st.lists(st.binary(max_size=5), min_size=1), st.sampled_from(["spec", "original"]))
    def test_clients_read_the_published_messages(self, payloads: list[bytes], layout: str) -> None:
        codec = Codec(layout)
        for envelope in (False, True):
            data = encoded(encoding_of(Topic("t"), codec, envelope), from_alice(*payloads))
            at = 0
            for payload in payloads:
                decoded = codec.decode_answer(data, at)
                assert decoded is not None
                wanted = codec.topic(b"t", payload) if envelope else payload
                assert decoded[0] == Response(ALICE, wanted)
                at = decoded[1]
            assert at == len(data)
