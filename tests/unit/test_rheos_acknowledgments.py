"""rheos acknowledgments: encoded together they equal those of the codec."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import message_id
from pubsub.broker.topic_space.durability import Durability
from pubsub.protocols.rheos.acknowledgments import Acks, encode_acks
from pubsub.protocols.rheos.codec import FAILED, SUCCESS, Ack, Codec

SYNC = Durability.SYNC


class AckTests(SynchronousTestCase):
    """encode_acks"""

    def test_ids_count_up(self) -> None:
        assert encode_acks(bytes(15) + b"\xfe", 3, False) == (
            b"\xac" + bytes(15) + b"\xfe\0\xac" + bytes(15) + b"\xff\0\xac" + bytes(14) + b"\1\0\0"
        )

    def test_no_acknowledgments(self) -> None:
        assert encode_acks(bytes(16), 0, False) == b""

    @given(
        st.integers(0, 2**60 - 1),
        st.one_of(st.integers(0, 2**62 - 2000), st.sampled_from([255, 256, 65_535, 2**32 - 1])),
        st.integers(0, 1500),
        st.booleans(),
    )
    def test_they_equal_those_of_the_codec(
        self, run: int, sequence: int, count: int, checksum: bool
    ) -> None:
        codec = Codec(checksum=checksum)
        ids = [message_id(run, sequence + index).bytes for index in range(count)]
        for code in (SUCCESS, FAILED):
            wanted = b"".join(codec.encode(Ack(one, code)) for one in ids)
            assert encode_acks(message_id(run, sequence).bytes, count, checksum, code) == wanted


class ReplyTests(SynchronousTestCase):
    """Acks"""

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["accepted", "refused", "skip", "add"]),
                st.integers(1, 300),
                st.booleans(),
            ),
            max_size=20,
        ),
        st.booleans(),
    )
    def test_each_request_has_one_reply_in_order(
        self, steps: list[tuple[str, int, bool]], checksum: bool
    ) -> None:
        codec = Codec(checksum=checksum)
        replies = Acks(codec, 7)
        stored: list[bytes] = []
        failed: list[bytes] = []
        sequence = 5
        for step, count, sync in steps:
            if step == "accepted":
                acks, unconfirmed = [
                    [
                        codec.encode(Ack(message_id(7, sequence + n).bytes, code))
                        for n in range(count)
                    ]
                    for code in (SUCCESS, FAILED)
                ]
                replies.accepted(sequence, count, SYNC if sync else Durability.NONE)
                stored += acks
                failed += unconfirmed if sync else acks
                sequence += count
            elif step == "refused":
                replies.refused(count)
                stored.append(codec.failed * count)
                failed.append(codec.failed * count)
            elif step == "skip":
                sequence += count
            else:
                replies.add(b"reply", SYNC if sync else Durability.NONE)
                stored.append(b"reply")
                failed.append(codec.failed if sync else b"reply")
        assert bool(replies) == bool(stored)
        if stored:
            reply, failure = replies.take()
            reply_if_failed = failure if isinstance(failure, bytes) else failure()
            assert (reply, reply_if_failed) == (b"".join(stored), b"".join(failed))
        waits = replies.durability is SYNC
        assert waits == any(sync for step, _, sync in steps if step in ("accepted", "add"))
