"""The nsd wire: lines of JSON, each with a reply; subscribers poll for new messages."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench import BenchError
from tests.bench.wires.frame import Frame
from tests.bench.wires.preparation import Preparation
from tests.bench.wires.traits import BrokerTraits

SUCCESS = b'{"_class":"SuccessResponse"}\n'
MAX_PAYLOAD = 1 << 20
# By default the body of a message is limited to 1,000 characters.
PREPARATION = Preparation([f"--nsd-max-body={MAX_PAYLOAD}"])


class NsdWire:
    """A channel is ``bench/<number>``, and so is the identity of its publishers."""

    name = "nsd"
    max_payload = MAX_PAYLOAD
    topics = 1000

    def publisher_hello(self, topics: Sequence[int], client: str) -> bytes:
        # Twice, so that publishers and subscribers get the same reply.
        return b"".join(_open(_channel(topic)) * 2 for topic in topics)

    def subscriber_hello(self, topics: Sequence[int], client: str) -> bytes:
        return b"".join(_open(_channel(topic)) + _subscribe(client, topic) for topic in topics)

    def welcomed(self, answer: bytes, topics: int = 1) -> bool:
        expected = 2 * topics * SUCCESS
        if not expected.startswith(answer):
            raise BenchError(f"the broker answered nsd requests with {answer!r}")
        return answer == expected

    def publication(self, topic: int, payload: int) -> Frame:
        before = (
            b'{"_class":"PublishRequest","identity":"%b","message":'
            b'{"_class":"Message","from":"bench","when":0,"body":"' % _channel(topic)
        )
        answer = Frame(SUCCESS, 0, fixed=len(SUCCESS))
        return Frame(before, payload, b'"}}\n', fixed=len(before), answer=answer, text=True)

    def delivery(self, topic: int, payload: int) -> Frame:
        # With the shortest number, as deliveries are found by their text.
        before = b'{"_class":"Message","from":"bench","when":1,"body":"'
        return Frame(before, payload, b'"},', fixed=before.index(b"1"), text=True)


def poll_request(client: str, after: int) -> bytes:
    """Return the request for the messages after number ``after``."""
    return b'{"_class":"GetRequest","identity":"%b","after":%d}\n' % (client.encode(), after)


TRAITS = BrokerTraits(poll_request=poll_request)


def _open(identity: bytes) -> bytes:
    return b'{"_class":"OpenRequest","identity":"%b"}\n' % identity


def _subscribe(client: str, topic: int) -> bytes:
    return b'{"_class":"SubscribeRequest","identity":"%b","channel":"%b"}\n' % (
        client.encode(),
        _channel(topic),
    )


def _channel(number: int) -> bytes:
    return b"bench/%d" % number
