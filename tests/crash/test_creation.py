"""Topics of fast that are created shortly before the broker is killed: CREATE has no reply."""

from __future__ import annotations

import json
import os
from http.client import HTTPConnection
from pathlib import Path

from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.fast_client import Fast, create, publish, topic_id
from tests.unit.fast_wire import DURABLE
from tests.unit.tokens import KEY, token

LIVES = max(int(os.environ.get("PUBSUB_CRASHES", "30")) // 3, 1)
WRONG_KEY = 2


def claims(key: str) -> bytes:
    return token({"queue_key": key, "permissions": "*"})


def ask(broker: Broker, method: str, path: str, body: bytes | None = None) -> bytes:
    """Return the body of a response to a client with the right key."""
    connection = HTTPConnection(HOST, broker.port("http"), timeout=TIMEOUT)
    try:
        headers = {"Authorization": f"Bearer {claims('right').decode()}"}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        data = response.read()
        assert response.status == 200, data
        return data
    finally:
        connection.close()


def opens(client: Fast, name: str, key: str) -> list[int]:
    """Return the codes of the errors for a publish with this key."""
    raw = claims(key)
    client.send(publish(raw, b"x", topic=topic_id(name)))
    return [packet.code for packet in client.sync(raw)]


def test_a_topic_with_an_acknowledged_message_keeps_its_key(start: Start, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_bytes(KEY)
    options = (
        *listen("fast"), f"--admin-port=tcp:0:interface={HOST}",
        f"--store=log:{tmp_path / 'history'}", f"--secret-file={secret}",
    )  # fmt: skip
    broker = start(*options)
    for number in range(LIVES):
        name = f"t{number}"
        with Fast(broker.port("fast")) as owner:
            # The reply to the last request shows that the broker has created the topic.
            owner.send(create(claims("right"), name, DURABLE if number % 2 else 0))
            assert owner.sync(claims("right")) == []
            ask(broker, "POST", f"/v1/topics/{name}/messages", b"m")
            broker.kill()
        broker = start(*options)
        with Fast(broker.port("fast")) as client:
            assert opens(client, name, "wrong") == [WRONG_KEY]
            assert opens(client, name, "right") == []
        lines = ask(broker, "GET", f"/v1/history?topic={name}&start=0&format=jsonl").splitlines()
        assert [json.loads(line)["value"] for line in lines][:1] == ["m"]
