"""Brokers that share a history through a nats-server, each of which can be started again."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.clients import Nsd, message
from tests.integration.nats_server import NatsServer
from tests.waiting import until


class Place:
    """A broker that is started again and again in one directory."""

    def __init__(
        self, start: Start, url: str, store: Path, *options: str, protocols: Sequence[str] = ()
    ) -> None:
        self._start = start
        self.name = store.name
        self._options = (
            *listen("nsd", "http", *protocols), f"--backplane={url}", "--backplane-history=shared",
            f"--store=log:{store}", *options,
        )  # fmt: skip
        self.broker: Broker
        self.begin()

    def begin(self) -> None:
        """Start it."""
        self.broker = self._start(*self._options)
        self.publisher = Nsd.to(self.broker)
        self.publisher.do("Open", self.name)

    def get(self, path: str) -> str:
        """Return a page of the broker."""
        url = f"http://{HOST}:{self.broker.port('http')}{path}"
        with urllib.request.urlopen(url) as answer:
            found: str = answer.read().decode()
            return found

    def figure(self, name: str) -> float:
        """Return a figure of the shared history."""
        found: float = json.loads(self.get("/v1/status"))["stats"]["backplane"][f"history_{name}"]
        return found

    def publish(self, body: str) -> bool:
        """Publish a message; return whether it was acknowledged."""
        answer = self.publisher.ask("Publish", self.name, message=message(body))
        return bool(answer["_class"] == "SuccessResponse")

    def messages(self) -> list[tuple[str, str]]:
        """Return the body and the id of each message in the history."""
        rows: list[dict[str, Any]] = [
            json.loads(line) for line in self.get("/v1/history?start=0&format=jsonl").splitlines()
        ]
        found = [row for row in rows if "value" in row and not row["topic"].startswith("$")]
        return [(body_of(row["value"]), row["message_id"]) for row in found]


def body_of(value: str) -> str:
    """Return the body of a message of nsd."""
    found = json.loads(value) if value.startswith("{") else value
    return str(found["body"]) if isinstance(found, dict) else found


def settle(*places: Place) -> None:
    """Wait until everything is shared."""
    until(lambda: all(one.figure("connected") == 1 for one in places), "all are connected")
    until(lambda: all(one.figure("unreplicated") == 0 for one in places), "all is shared")
    # The same messages: of two brokers, each may lack as many messages of the other.
    until(
        lambda: len({frozenset(one.messages()) for one in places}) == 1,
        "all have the same messages",
    )


def two_places(start: Start, server: NatsServer, directory: Path) -> tuple[Place, Place]:
    """Start two brokers that share a history."""
    first = Place(start, server.url, directory / "a")
    second = Place(start, server.url, directory / "b")
    settle(first, second)
    return first, second


def same(*places: Place) -> list[str]:
    """Return the bodies, which are the same everywhere, with the same ids."""
    settle(*places)
    first, *others = [one.messages() for one in places]
    for other in others:
        assert sorted(other) == sorted(first)
    assert len({id for _, id in first}) == len(first)
    return [body for body, _ in first]


class Load:
    """Publishes numbers at a place until it is ended; ``done`` were acknowledged."""

    def __init__(self, place: Place, first: int = 0) -> None:
        self._place = place
        self._ends = False
        self.sent = first
        self.done: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ends:
                body = f"{self._place.name}-{self.sent}"
                self.sent += 1
                if self._place.publish(body):
                    self.done.append(body)
        except (OSError, EOFError):
            return

    def wait(self, more: int) -> None:
        """Wait until this number of further messages was acknowledged."""
        goal = len(self.done) + more
        until(lambda: len(self.done) >= goal or not self._thread.is_alive(), f"{goal} messages")

    def end(self) -> None:
        """End it."""
        self._ends = True
        self._thread.join(TIMEOUT)

    def check(self, bodies: list[str]) -> None:
        """Everything acknowledged is there, and nothing is there twice."""
        counts = Counter(bodies)
        assert [body for body in self.done if counts[body] != 1] == []
        own = [body for body in bodies if body.startswith(f"{self._place.name}-")]
        assert len(own) == len(set(own)) <= self.sent
