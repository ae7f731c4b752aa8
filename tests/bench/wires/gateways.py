"""Wires whose publishers are gateways: the messages of each topic have a sender of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.bench.wires.fast import FastWire, fast_publication, token
from tests.bench.wires.frame import Frame
from tests.bench.wires.nsd import NsdWire
from tests.bench.wires.rheos import RESPONSE_HEADER, RheosWire, client_id, publish_request
from tests.bench.wires.spot import SpotWire, spot_publication

if TYPE_CHECKING:
    from tests.bench.wires import Wire


def _device(topic: int) -> str:
    return f"device-{topic}"


class FastGateway(FastWire):
    """Each sender has a token."""

    def publication(self, topic: int, payload: int) -> Frame:
        return fast_publication(token(_device(topic)), topic, payload)


class RheosGateway(RheosWire):
    """Each sender has a client id, which its messages are delivered with."""

    def publication(self, topic: int, payload: int) -> Frame:
        return publish_request(client_id(_device(topic)), topic, payload)

    def delivery(self, topic: int, payload: int) -> Frame:
        sender = client_id(_device(topic))
        before = RESPONSE_HEADER.pack(RESPONSE_HEADER.size, payload, sender)
        return Frame(before, payload, fixed=len(before))


class SpotGateway(SpotWire):
    """Each sender is an origin, which stands before the topic."""

    def publication(self, topic: int, payload: int) -> Frame:
        return spot_publication(topic, payload, _device(topic).encode())

    def delivery(self, topic: int, payload: int) -> Frame:
        return spot_publication(topic, payload)


class NsdGateway(NsdWire):
    """Each sender is a name, which its messages are delivered with."""

    def publication(self, topic: int, payload: int) -> Frame:
        return _from(_device(topic), super().publication(topic, payload))

    def delivery(self, topic: int, payload: int) -> Frame:
        return _from(_device(topic), super().delivery(topic, payload))


def _from(sender: str, frame: Frame) -> Frame:
    before = frame.before.replace(b'"bench"', b'"%b"' % sender.encode())
    return replace(frame, before=before, fixed=frame.fixed + len(before) - len(frame.before))


GATEWAYS: Mapping[str, Wire] = {
    wire.name: wire for wire in (FastGateway(), NsdGateway(), RheosGateway(), SpotGateway())
}
"""The wires over whose connections messages of several senders can come."""
