"""The client library with tokens that are denied, with a real broker."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pubsub.client import ConnectFailed
from tests.integration.broker import HOST, Start, listen
from tests.integration.client_shells import Connect, collect, run
from tests.integration.fast_client import make_secret, make_token


class _Tokens:
    """A broker that denies the subjects in a file, and the file of a client's token."""

    def __init__(self, start: Start, directory: Path) -> None:
        self._secret = make_secret(directory / "secret")
        self._denied = directory / "denied"
        self._denied.touch()
        self.file = directory / "token"
        self._broker = start(
            *listen("cafe"),
            f"--admin-port=tcp:0:interface={HOST}",
            f"--secret-file={self._secret}",
            f"--token-deny-file={self._denied}",
        )
        self.url = f"http://{HOST}:{self._broker.port('http')}"

    def make(self, subject: str) -> str:
        """Return a token."""
        return make_token(self._secret, f"--sub={subject}").decode()

    def deny(self, subject: str) -> None:
        """Have the broker deny a subject from now on."""
        self._denied.write_text(f"sub {subject}\n")
        os.kill(self._broker.pid, signal.SIGHUP)
        self._broker.wait_line("reloaded: subscriptions kept: 0, ended: 1")


@pytest.fixture
def tokens(start: Start, tmp_path: Path) -> _Tokens:
    return _Tokens(start, tmp_path)


def test_a_subscription_continues_with_another_token(tokens: _Tokens) -> None:
    tokens.file.write_text(tokens.make("first"))

    async def scenario(connect: Connect) -> list[bytes]:
        async with (
            connect(tokens.url, token_file=tokens.file) as client,
            connect(tokens.url, token=tokens.make("other")) as other,
            client.subscribe("news") as messages,
        ):
            await other.publish("news", b"1", confirm=True)
            found = await collect(messages, 1)
            tokens.file.write_text(tokens.make("second"))
            tokens.deny("first")
            await other.publish("news", b"2", confirm=True)
            await other.publish("news", b"3", confirm=True)
            found += await collect(messages, 2)
            return [one.payload for one in found]

    assert run("asyncio", scenario) == [b"1", b"2", b"3"]


def test_without_another_token_the_error_has_the_reason(tokens: _Tokens) -> None:
    tokens.file.write_text(tokens.make("first"))

    async def scenario(connect: Connect) -> None:
        async with (
            connect(tokens.url, token_file=tokens.file) as client,
            client.subscribe("news") as messages,
        ):
            tokens.deny("first")
            with pytest.raises(ConnectFailed, match="the token is not valid any more") as caught:
                await collect(messages, 1)
            assert caught.value.refused

    run("asyncio", scenario)
