"""Draining and the configuration over HTTP."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.broker.listeners.listener_settings import SETTINGS
from pubsub.settings import read_all
from tests.unit.fakes import START, Guest
from tests.unit.streams import logged
from tests.unit.tokens import token
from tests.unit.web import WebHouse


def made(subject: str, permission: str) -> bytes:
    """Return a token with this permission."""
    claims = {"sub": subject, "queue_key": "k", "permissions": [permission]}
    return token({**claims, "exp": START + 3600})


ADMIN, READER = made("ada", "admin"), made("eve", "history")


class OperationsCase(SynchronousTestCase):
    """A broker with an HTTP listener and one of a protocol, which has a client."""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.broker = self.house.broker
        self.toy = self.broker.make_listener("toy", read_all(SETTINGS, {}), "tcp:7")
        self.broker.add_listener(self.toy)
        self.guest = Guest(self.broker)
        self.guest.accepted_by = self.toy
        self.stops: list[bool] = []
        self.broker.drainage.stop = lambda: self.stops.append(True)
        self.web = self.house.connect()
        self.lines = logged(self)

    def served(self) -> list[str]:
        return [one.protocol for one in self.broker.listeners]


class DrainTests(OperationsCase):
    """POST /v1/drain"""

    def test_the_process_stops_after_the_answer(self) -> None:
        answer = self.web.post("/v1/drain", {}, token=ADMIN)
        assert answer.status == 202
        assert answer.json == {
            "drained": [{"protocol": "toy", "endpoint": "tcp:7"}],
            "stops": True,
            "stop_timeout": 10.0,
        }
        self.house.clock.advance(0)
        assert self.stops == [True]
        assert self.broker.draining
        assert "draining by request: toy tcp:7" in self.lines

    def test_one_listener(self) -> None:
        for name in ("toy", "tcp:7", "toy tcp:7", "toy=tcp:7"):
            if self.toy not in self.broker.listeners:
                self.broker.add_listener(self.toy)
            answer = self.web.post("/v1/drain", {"listener": name}, token=ADMIN)
            assert answer.json["stops"] is False
            self.house.clock.advance(0)
            assert self.served() == ["admin"], name
        assert self.guest.calls == ["drain"]
        assert self.stops == []
        assert not self.broker.draining

    def test_the_http_listener_itself(self) -> None:
        answer = self.web.post("/v1/drain", {"listener": "http"}, token=ADMIN)
        assert answer.status == 202
        self.house.clock.advance(0)
        assert self.served() == ["toy"]
        self.house.clock.advance(0)
        assert self.web.closed

    def test_every_protocol_without_a_stop(self) -> None:
        assert self.web.post("/v1/drain", {"keep_running": True}, token=ADMIN).status == 202
        self.house.clock.advance(0)
        assert self.served() == ["admin"]
        assert self.guest.calls == ["drain"]
        assert self.broker.draining
        assert self.stops == []
        assert self.web.get("/readyz").body == b"not ready: drained\n"
        shown = self.web.get("/v1/status", token=ADMIN).json["attention"][0]["what"]
        assert shown == "the listeners are drained by request; SIGHUP starts them"
        self.broker.stopService()
        assert [one.kind for one in self.broker.readiness.obstacles()] == ["stopping"]

    def test_twice(self) -> None:
        for _ in range(2):
            self.web.post("/v1/drain", {"keep_running": True}, token=ADMIN)
        self.web.post("/v1/drain", {"keep_running": True}, token=ADMIN)
        self.house.clock.advance(0)
        assert self.served() == ["admin"]

    def test_an_unknown_listener(self) -> None:
        answer = self.web.post("/v1/drain", {"listener": "nsd"}, token=ADMIN)
        assert answer.error == (404, "unknown-listener")
        assert answer.json["message"] == "no listener 'nsd'; there are http, toy"

    def test_a_program_that_embeds_the_broker_is_not_stopped(self) -> None:
        self.broker.drainage.stop = None
        assert self.web.post("/v1/drain", {}, token=ADMIN).error == (409, "embedded")
        assert self.web.post("/v1/drain", {"listener": "toy"}, token=ADMIN).status == 202

    def test_only_administrators(self) -> None:
        for given in (READER, None):
            answer = self.web.post("/v1/drain", {}, token=given)
            assert answer.error == (403, "not-authorized")
        self.house.clock.advance(0)
        assert self.stops == []
        assert self.served() == ["admin", "toy"]

    def test_wrong_parameters(self) -> None:
        wrong: list[object] = [[], {"listner": "toy"}, {"keep_running": 5}, b"{"]
        for body in wrong:
            assert self.web.post("/v1/drain", body, token=ADMIN).status == 400

    def test_it_is_audited(self) -> None:
        self.web.post("/v1/drain", {"listener": "toy"}, token=ADMIN)
        (line,) = [line for line in self.lines if line.startswith("audit: ")]
        record = json.loads(line.removeprefix("audit: "))
        assert (record["event"], record["listener"], record["subject"]) == ("drain", "toy", "ada")


class ConfigurationTests(OperationsCase):
    """GET /v1/configuration"""

    def test_administrators_see_it(self) -> None:
        self.broker.configuration.content = {"broker": {"max-topics": "5"}}
        answer = self.web.get("/v1/configuration", token=ADMIN)
        assert answer.json == {"broker": {"max-topics": "5"}}
        assert self.web.get("/v1/configuration", token=READER).status == 403
        assert self.web.get("/v1/configuration").status == 403

    def test_without_secrets_clients_of_this_machine_do(self) -> None:
        self.broker.tokens.replace(SecretRing())
        assert self.web.get("/v1/configuration").status == 403
        local = self.house.connect("127.0.0.1")
        assert local.get("/v1/configuration").status == 200
