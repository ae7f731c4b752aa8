"""Rows of the metadata that another version has written."""

from __future__ import annotations

import json

from twisted.trial.unittest import TestCase

from pubsub.broker.stored_rows import read_row
from pubsub.http_api.exactly_once.committed_batches import Commit
from pubsub.protocols.spot.topic_copies import TopicCopy


class ReadRow(TestCase):
    """``read_row``."""

    def test_an_earlier_version_did_not_know_a_member(self) -> None:
        row = b'{"batch": 3, "first": 10, "next": 12, "messages": 2, "at": 7}'
        assert read_row(Commit, row) == Commit(3, 10, 12, 2, 7)

    def test_a_later_version_has_further_members(self) -> None:
        row = {"epoch": "1-2", "offset": 5, "live_from": 4, "later": [1]}
        assert read_row(TopicCopy, json.dumps(row).encode()) == TopicCopy("1-2", 5, 4)
