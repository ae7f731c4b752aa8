"""The spot client of the library with libzmq as the other side, in place of a broker."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from pubsub.client import Level, Message, connect
from tests.integration.broker import HOST, TIMEOUT

PUBLISH, SUBSCRIBE, UNSUBSCRIBE, QUERY, QUERY_RESP = b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"


class Router:
    """A ROUTER socket at which the client's commands arrive."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self.port = socket.bind_to_random_port(f"tcp://{HOST}")
        socket.setsockopt(zmq.RCVTIMEO, round(TIMEOUT * 1000))

    async def receive(self) -> tuple[bytes, list[bytes]]:
        """Return the identity of the client, and the frames of the next command."""
        frames = await asyncio.to_thread(self._socket.recv_multipart)
        identity, delimiter, *command = frames
        assert delimiter == b""
        return identity, command

    def send(self, identity: bytes, *command: bytes) -> None:
        self._socket.send_multipart([identity, b"", *command])


@pytest.fixture
def router() -> Iterator[Router]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        yield Router(socket)


def run(body: Any) -> None:
    asyncio.run(asyncio.wait_for(body, TIMEOUT))


def test_messages_and_their_confirmation(router: Router) -> None:
    """libzmq itself replies to PING; the first confirmation of a topic is the reply to a QUERY."""
    payloads = [b"one", b"", b"x" * 255, b"x" * 256, b"x" * 100_000]

    received: list[list[bytes]] = []

    async def serve() -> None:
        """Collect commands, and reply to QUERY."""
        while len(received) < len(payloads) + 2:
            identity, command = await router.receive()
            assert identity == b"ada"
            if command == [QUERY]:
                router.send(identity, QUERY_RESP, struct.pack("<I", 1), b"news")
            else:
                received.append(command)

    async def body() -> None:
        serving = asyncio.create_task(serve())
        async with connect(f"spot://{HOST}:{router.port}", client_id="ada") as client:
            await client.publish_many("news", payloads)
            for payload in (b"first", b"second"):
                assert await client.publish("news", payload, confirm=True) is Level.HANDLED
            await serving
        sent = [*payloads, b"first", b"second"]
        assert received == [[PUBLISH, b"news", payload] for payload in sent]

    run(body())


def test_subscriptions(router: Router) -> None:
    async def body() -> None:
        async with connect(f"spot://{HOST}:{router.port}", client_id="bob") as client:
            messages = client.subscribe("news", prefixes=["game:"])
            commands = [await router.receive() for _ in range(2)]
            identity = commands[0][0]
            assert identity.startswith(b"bob.")
            expected = [(identity, [SUBSCRIBE, b"news"]), (identity, [SUBSCRIBE, b"game:*"])]
            assert commands == expected
            await messages.accepted()
            router.send(identity, PUBLISH, b"news", b"hi")
            router.send(identity, PUBLISH, b"origin", b"game:p1", b"x" * 300)
            found = [await anext(messages) for _ in range(2)]
            assert found == [
                Message("news", b"hi"),
                Message("game:p1", b"x" * 300, b"origin"),
            ]
            messages.close()
            ended = [(await router.receive())[1] for _ in range(2)]
            assert ended == [[UNSUBSCRIBE, b"news"], [UNSUBSCRIBE, b"game:*"]]

    run(body())


def test_heartbeats_of_libzmq_are_answered() -> None:
    """Without PONG, libzmq would close the connection after the time to live."""
    # A busy machine may delay a reply for longer than the first time.
    assert any(stays_connected(milliseconds) for milliseconds in (1000, 10_000))


def stays_connected(milliseconds: int) -> bool:
    """Return whether libzmq, which waits so long for a PONG, keeps a connection for longer."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 50)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, milliseconds)
        strict = Router(socket)

        async def body() -> bool:
            async with connect(f"spot://{HOST}:{strict.port}") as client:
                messages = client.subscribe("news", events=True)
                identity, _command = await strict.receive()
                await messages.accepted()
                # The only way to see that nothing happens.
                await asyncio.sleep(2 * milliseconds / 1000)
                strict.send(identity, PUBLISH, b"news", b"hi")
                return await anext(messages) == Message("news", b"hi")

        return asyncio.run(asyncio.wait_for(body(), TIMEOUT))
