"""A token that ends while requests of its WebSocket publish."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.clients.connection_marks import mark_text
from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.http_api.requests.flow_control import WAIT_SECONDS
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import Held, recheck_all
from tests.unit.slow_store import Slow
from tests.unit.web import WebClient, WebHouse
from tests.unit.web_sockets import SocketClient, connected, request_of

ENDED = "the token is not valid any more"


class EndTests(SynchronousTestCase):
    """A token of five seconds"""

    def start(self, store: MemoryStore | None = None) -> SocketClient:
        self.house = WebHouse(store)
        self.topics = [self.house.broker.topics.create(name) for name in "ab"]
        token = self.house.token("publish", "subscribe", "history", lasts=5).decode()
        return connected(self.house, token=token)

    def refusals(self) -> dict[str, int]:
        return {name: count for (_, name), count in self.house.broker.counters.refusals.items()}

    def split(self, found: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the replies and the other objects."""
        return [one for one in found if "id" in one], [one for one in found if "id" not in one]

    def test_what_was_published_is_answered_before_the_close(self) -> None:
        client, holder = self.start(), Held()
        self.topics[1].block(holder)
        client.ask("subscribe", topic="a")
        client.send_binary(b"12", **request_of(["a", "b"], [("a", b"1"), ("b", b"2")]))
        self.house.pass_time(6)
        answers, others = self.split(client.pull())
        assert (answers, client.close_code) == ([], None)
        assert [next(iter(one)) for one in others] == ["message"]
        # Nothing more is read or delivered.
        client.send("publish", topic="a", value="3")
        self.house.publish("a", b"4")
        self.topics[1].unblock(holder)
        answers, others = self.split(client.pull())
        (answer,) = answers
        assert others == []
        assert (answer["ok"]["messages"], answer["ok"]["refused"]) == (1, 1)
        assert answer["ok"]["error"]["code"] == "bad-token"
        assert (client.close_code, client.close_reason) == (4001, ENDED)
        assert self.house.store.next_offset == 2
        assert self.refusals() == {"bad-token": 1, "revoked": 1, "token-expired": 1}

    def test_a_confirmation_that_waits_for_the_disk(self) -> None:
        store = Slow()
        for sends_another in (False, True):
            client = self.start(store)
            number = client.send("publish", topic="a", value="1")
            self.house.clock.rightNow += 6
            if sends_another:
                other = client.send("publish", topic="a", value="2")
                (refused,) = client.pull()
                assert (refused["id"], refused["error"]["code"]) == (other, "bad-token")
            self.house.pass_time(2)
            assert client.close_code is None
            while store.waiting:
                store.waiting.pop(0)(True)
            (answer,) = client.pull()
            assert (answer["id"], answer["ok"]["messages"]) == (number, 1)
            assert client.close_code == 4001
            assert self.refusals() == {"token-expired": 1}

    def test_a_disk_that_does_not_answer(self) -> None:
        client = self.start(Slow())
        client.send("publish", topic="a", value="1")
        self.house.pass_time(WAIT_SECONDS - 1)
        assert client.close_code is None
        self.house.pass_time(2)
        (answer,) = client.pull()
        assert answer["error"]["code"] == "unconfirmed"
        assert client.close_code == 4001

    def test_a_request_that_waits_for_too_much(self) -> None:
        """First for a subscriber, then for the disk."""
        client = self.start(Slow())
        self.topics[1].block(Held())
        client.send_binary(b"12", **request_of(["a", "b"], [("a", b"1"), ("b", b"2")]))
        self.house.pass_time(WAIT_SECONDS + 4)
        assert client.close_code is None
        self.house.pass_time(3)
        assert client.pull() == []
        assert client.close_code == 4001

    def test_a_token_that_is_revoked(self) -> None:
        """The subscription ends at once, and the close says why."""
        client = self.start()
        client.ask("subscribe", topic="a")
        self.house.broker.tokens.replace(SecretRing([]))
        assert recheck_all(self.house.broker.router, self.house.broker.topics) == (0, 1)
        self.house.publish("a", b"1")
        assert client.pull() == []
        self.house.pass_time(1)
        assert client.pull() == []
        assert (client.close_code, client.close_reason) == (4001, ENDED)

    def test_without_a_request_it_is_closed_at_once(self) -> None:
        client = self.start()
        client.ask("subscribe", topic="a")
        self.house.pass_time(6)
        assert client.pull() == []
        assert client.close_code == 4001


class SessionIdentityTests(SynchronousTestCase):
    """The name that lists of sessions and lines of the log show"""

    def setUp(self) -> None:
        self.house = WebHouse()

    def identity(self, client: WebClient) -> str:
        """Return the identity of the connection of ``client``, as administrators see it."""
        path = f"/v1/sessions/{mark_text(client.channel.mark)}"
        name: str = self.house.get(path, token=self.house.token("admin")).json["identity"]
        assert client.channel.log_fields().get("identity", "") == name
        return name

    def test_it_is_that_of_the_last_connect(self) -> None:
        socket = connected(self.house, token=self.house.token(sub="ada").decode())
        assert self.identity(socket.client) == "ada"
        socket.ask("connect", token=self.house.token(sub="eve").decode())
        assert self.identity(socket.client) == "eve"
        socket.send("connect", token="forged")
        assert "error" in socket.pull()[0]
        assert self.identity(socket.client) == "eve"
        socket.ask("connect")
        assert self.identity(socket.client) == ""

    def test_that_of_a_request_is_not_kept(self) -> None:
        client = self.house.connect()
        assert client.get("/v1/topics", token=self.house.token(sub="ada")).status == 200
        assert self.identity(client) == ""
