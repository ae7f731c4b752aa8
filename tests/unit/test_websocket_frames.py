"""Frames of the WebSocket by themselves: lengths, binary requests, ids."""

from __future__ import annotations

import json

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.http_api.requests.api_error import ApiError
from pubsub.http_api.websocket.websocket_frames import frame, id_of, request_of


class LengthTests(SynchronousTestCase):
    """The head of a frame (RFC 6455, section 5.2)"""

    def test_each_length_takes_the_fewest_bytes(self) -> None:
        for size, head in (
            (0, "81 00"),
            (125, "81 7d"),
            (126, "81 7e 007e"),
            (65_535, "81 7e ffff"),
            (65_536, "81 7f 0000000000010000"),
        ):
            data = bytes(size)
            assert frame(0x81, data) == bytes.fromhex(head) + data


class RequestTests(SynchronousTestCase):
    """Requests with a payload"""

    def test_a_binary_frame_has_an_object_and_a_payload(self) -> None:
        head = json.dumps({"id": 1}).encode()
        for payload in (b"", b"x", b"\0" * 100):
            data = len(head).to_bytes(4, "big") + head + payload
            assert request_of(data, True) == ({"id": 1}, payload)
            for size in range(4 + len(head)):
                with pytest.raises(ApiError, match="shorter than its length says"):
                    request_of(data[:size], True)
        assert request_of(head, False) == ({"id": 1}, None)

    def test_an_id_is_text_or_a_number(self) -> None:
        for good in ("", "a", 0, -1, 1.5, None):
            request = {"id": good, "more": 1}
            assert id_of(request) == good
            assert request == {"more": 1}
        assert id_of({}) is None
        wrong: list[object] = [True, False, [], {}, float("nan"), float("inf")]
        for bad in wrong:
            with pytest.raises(ApiError, match="id: expected text or a number"):
                id_of({"id": bad})
