"""Runs the conversations of ``seeds/vectors`` in memory, as ``seeds/README.md`` describes."""

from __future__ import annotations

import base64
import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pubsub.server.broker_settings import BROKER_SETTINGS
from tests.unit.streams import Client, House
from tests.vectors import load_vectors

# After each send the clock advances by this much; no step waits for longer.
STEP = 0.025
# A step with more repetitions than this is not sent byte by byte.
_LARGE = 50_000
_WHOLE_BROKER = {setting.name for setting in BROKER_SETTINGS}
_SESSION = re.compile(r"\{session:(\w+)\}")
_TOKEN = re.compile(r"\{token:([\w-]+)\}")
_ACK = bytes.fromhex("fe ca 03 09 00 00 00 00")

Conversation = Mapping[str, Any]
Step = Mapping[str, Any]


def load(protocol: str) -> list[Conversation]:
    """Return the conversations of ``protocol``."""
    document = load_vectors(f"{protocol}-conversations")
    assert document["protocol"] == protocol
    # Shared by all conversations: fast's secret and tokens.
    common = {key: document[key] for key in ("secret", "tokens") if key in document}
    return [{**common, **conversation} for conversation in document["conversations"]]


def is_large(conversation: Conversation) -> bool:
    """Return whether the input is too large to send byte by byte."""
    return any(
        step["send_repeat"]["count"] > _LARGE
        for step in conversation["steps"]
        if "send_repeat" in step
    )


class Talk:
    """One conversation with a fresh broker; ``split`` feeds the input byte by byte."""

    def __init__(self, protocol: str, conversation: Conversation, split: bool) -> None:
        self._protocol = protocol
        self._conversation = conversation
        self._split = split
        self._clients: dict[str, Client] = {}
        self._sessions: dict[str, int] = {}
        listen = {protocol: conversation["options"], **conversation.get("also", {})}
        own = {
            name: {key: value for key, value in options.items() if key not in _WHOLE_BROKER}
            for name, options in listen.items()
        }
        top = {key: value for key, value in listen[protocol].items() if key in _WHOLE_BROKER}
        with TemporaryDirectory() as directory:
            if "secret" in conversation:
                secret = Path(directory, "secret")
                secret.touch(mode=0o600)
                secret.write_text(conversation["secret"])
                top["secret-file"] = str(secret)
            self._house = House(own, top=top)

    def run(self) -> None:
        """Run every step, then check that nothing is held any more."""
        for index, step in enumerate(self._conversation["steps"]):
            try:
                self._step(step)
            except AssertionError as failure:
                shown = f"step {index} {json.dumps(step)[:300]}"
                raise AssertionError(f"{shown}: {failure}") from failure
        for name, client in self._clients.items():
            assert client.take() == b"", f"left for {name}"
        self._check_nothing_is_held()

    def _step(self, step: Step) -> None:
        name = step["client"]
        if name not in self._clients:
            self._clients[name] = self._house.connect(self._protocol)
        client = self._clients[name]
        (kind,) = step.keys() - {"client", "dialect"}
        in_base64 = step.get("dialect", "plain") == "base64"
        match kind:
            case "send" if self._protocol == "nsd":
                line = step["send"].encode()
                self._send(client, (base64.b64encode(line) if in_base64 else line) + b"\n")
            case "send":
                self._send(client, self._bytes(step["send"]))
            case "send_raw":
                self._send(client, bytes.fromhex(step["send_raw"]))
            case "send_repeat":
                repeat = step["send_repeat"]
                data = bytes.fromhex(repeat["prefix"])
                self._send(client, data + bytes.fromhex(repeat["byte"]) * repeat["count"])
            case "expect":
                self._expect(name, step["expect"].split())
            case "expect_repeat":
                repeat = step["expect_repeat"]
                self._expect(name, repeat["prefix"].split())
                self._take_exactly(client, bytes.fromhex(repeat["byte"]) * repeat["count"])
            case "expect_json":
                line = self._take_line(client)
                if in_base64:
                    line = base64.b64decode(line, validate=True)
                _equal(json.loads(line), step["expect_json"])
            case "expect_text":
                _equal(self._take_line(client).decode(), step["expect_text"])
            case "closed":
                _equal(bytes(client.stream.received), b"")
                assert client.closed, "the connection is open"
            case "open":
                _equal(bytes(client.stream.received), b"")
                assert not client.closed, "the connection is closed"
            case "abort":
                client.stream.lose()
                self._house.turn()
            case _:
                raise AssertionError(f"no such step: {kind}")

    def _bytes(self, text: str) -> bytes:
        def session(match: re.Match[str]) -> str:
            return (b"%016x" % self._sessions[match[1]]).hex()

        def token(match: re.Match[str]) -> str:
            raw: bytes = self._conversation["tokens"][match[1]]["text"].encode()
            return (bytes([len(raw)]) + raw).hex()

        return bytes.fromhex(_TOKEN.sub(token, _SESSION.sub(session, text)))

    def _send(self, client: Client, data: bytes) -> None:
        if self._split:
            for at in range(len(data)):
                client.send(data[at : at + 1])
        else:
            client.send(data)
        self._house.clock.advance(STEP)

    def _expect(self, name: str, pattern: list[str]) -> None:
        received = self._clients[name].stream.received
        data = bytes(received[: len(pattern)])
        del received[: len(pattern)]
        shown = [
            "??" if want == "??" else f"{byte:02x}"
            for want, byte in zip(pattern, data, strict=False)
        ]
        _equal(" ".join(shown), " ".join(pattern).lower())
        if data.startswith(_ACK):
            self._sessions[name] = int.from_bytes(data[8:16], "little")

    def _take_exactly(self, client: Client, want: bytes) -> None:
        received = client.stream.received
        assert received[: len(want)] == want, f"{len(received)} bytes came"
        del received[: len(want)]

    def _take_line(self, client: Client) -> bytes:
        line, end, rest = bytes(client.stream.received).partition(b"\n")
        assert end, f"no line, but {line!r}"
        client.stream.received[:] = rest
        return line

    def _check_nothing_is_held(self) -> None:
        """Check that nothing is held once all clients have gone and the sessions have expired."""
        house = self._house
        broker = house.broker
        for client in self._clients.values():
            client.stream.lose()
        house.clock.advance(61)
        deque(broker.sessions.expire(), maxlen=0)
        assert not broker.clients
        assert not broker.memory.holders
        assert not broker.router.slow
        assert not len(broker.sessions)
        assert broker.counters.connections == 0
        assert not any(listener.quota.open for listener in house.listeners.values())
        assert not any(topic.groups or topic.waiting for topic in broker.topics)
        assert not house.clock.getDelayedCalls()


def _equal(found: object, wanted: object) -> None:
    assert found == wanted, f"found {found!r:.500}, wanted {wanted!r:.500}"


def methods(protocol: str) -> dict[str, Callable[[Any], None]]:
    """Return the test methods: each conversation whole, and byte by byte unless it is large."""

    def method(conversation: Conversation, split: bool) -> Callable[[Any], None]:
        def test(_case: Any) -> None:
            Talk(protocol, conversation, split).run()

        test.__doc__ = f"{protocol} §{conversation['section']}"
        return test

    made: dict[str, Callable[[Any], None]] = {}
    for conversation in load(protocol):
        name = f"test_{re.sub(r'[^a-z0-9]', '_', conversation['name'])}"
        assert name not in made, f"two conversations are called {name}"
        made[name] = method(conversation, split=False)
        if not is_large(conversation):
            made[f"{name}__byte_by_byte"] = method(conversation, split=True)
    return made
