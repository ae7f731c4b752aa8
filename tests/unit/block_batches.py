"""Batches of messages for blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hypothesis import strategies as st

from pubsub.broker.routing.batch import Batch
from tests.unit.fakes import batch_of

TOPICS = ("a", "bé", "c/d")
HEADERS = st.dictionaries(st.text(max_size=3), st.binary(max_size=3), max_size=2)


@st.composite
def plain_batches(draw: st.DrawFn, topics: Sequence[str] = TOPICS) -> Batch:
    """A batch of payloads of one length or of several, with headers or without."""
    if draw(st.booleans()):
        size = draw(st.integers(0, 40))
        payload = st.binary(min_size=size, max_size=size)
    else:
        payload = st.binary(max_size=40)
    payloads = draw(st.lists(payload, min_size=1, max_size=8))
    count = len(payloads)
    headers = draw(st.none() | st.lists(HEADERS, min_size=count, max_size=count))
    return batch_of(payloads, draw(st.sampled_from(topics)), headers)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """A batch as it is stored: with an offset, a sender, a protocol and a timestamp."""
    batch = draw(plain_batches())
    sequence = draw(st.integers(0, 2**50))
    return dataclasses.replace(
        batch,
        sequence=sequence,
        sender=draw(st.binary(max_size=5)),
        protocol=draw(st.sampled_from(["cafe", "nsd"])),
        timestamp=draw(st.integers(0, 2**60)),
    )
