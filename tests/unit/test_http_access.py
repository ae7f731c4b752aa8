"""HTTP: access rights, and ranges that cannot be read."""

from __future__ import annotations

import json
import sys
from ipaddress import ip_network
from unittest import mock
from urllib.parse import quote

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_table import AccessRule, AccessTable, Who
from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.store.memory_store import MemoryStore
from pubsub.store.records.parcel import Parcel
from tests.unit.access_rules import rule
from tests.unit.house_case import HouseCase
from tests.unit.web import Answer, WebHouse


class AccessTests(HouseCase):
    """Access rights"""

    def setUp(self) -> None:
        super().setUp()
        self.house.lock("a", b"k")

    def test_a_topic_with_a_key_is_left_out_or_refused(self) -> None:
        assert self.values("/v1/history?start=0") == [b"3"]
        answer = self.house.get("/v1/history?start=0&topic=a")
        assert answer.error == (403, "not-authorized")
        assert answer.json["topic"] == "a"

    def test_a_token_opens_it(self) -> None:
        for permission in ("history", "admin", "*"):
            token = self.house.token(permission)
            assert self.values("/v1/history?start=0&topic=a", token=token) == [b"1", b"\xff2"]
            assert len(self.values("/v1/history?start=0", token=token)) == 3

    def test_the_key_alone_does_not_open_it(self) -> None:
        token = self.house.token("subscribe", "publish", key="k")
        answer = self.house.get("/v1/history?start=0&topic=a", token=token)
        assert answer.error == (403, "not-authorized")

    def test_grant_opens_it_for_every_client(self) -> None:
        house = WebHouse(grant="a")
        house.publish("a", b"1")
        house.lock("a", b"k")
        assert [row["value"] for row in house.get("/v1/history?start=0&topic=a").rows] == [b"1"]

    def test_only_its_creator_reads_an_exclusive_topic(self) -> None:
        self.house.broker.queue_keys.exclusive.add("b")
        token = self.house.token("admin")
        assert self.values("/v1/history?start=2", token=token) == []

    def test_a_request_has_one_token(self) -> None:
        client = self.house.connect()
        token = self.house.token("admin").decode()
        head = f"GET /v1/bounds HTTP/1.1\r\nAuthorization: Bearer {token}\r\n"
        client.send(head.encode() + b"authorization: Bearer x\r\n\r\n")
        assert client.answer().error == (400, "invalid-request")

    def test_a_bad_token_opens_nothing_that_anonymous_clients_may_not_read(self) -> None:
        house = WebHouse(allow_anonymous="off")
        for path in ("/v1/openapi.json", "/v1/limits", "/v1/bounds"):
            assert house.get(path).error == (401, "authentication-required")
            assert house.get(path, token=b"x").error == (401, "bad-token")
            assert house.get(path, token=house.token()).status == 200

    def test_a_forwarded_request_does_not_count_as_local(self) -> None:
        house = WebHouse()
        house.broker.tokens.replace(SecretRing())
        for path in ("/v1/configuration", "/v1/status"):
            assert house.connect("127.0.0.1").get(path).status == 200
            for name in ("Forwarded", "Via", "X-Forwarded-For", "X-Real-IP"):
                answer = house.connect("127.0.0.1").get(path, **{name: "192.0.2.7"})
                assert answer.error == (403, "not-authorized")

    def test_no_token_overrides_the_listener(self) -> None:
        house = WebHouse(allow_subscribe="b*")
        house.publish("a", b"1")
        house.publish("b", b"2")
        token = house.token("admin")
        assert [row["topic"] for row in house.get("/v1/history?start=0", token=token).rows] == ["b"]
        assert house.get("/v1/history?start=0&topic=a", token=token).error[0] == 403

    def test_reserved_topics_must_be_named(self) -> None:
        self.house.publish("$SYS/events", b"e")
        token = self.house.token("history")
        assert b"e" not in self.values("/v1/history?start=0", token=token)
        named = f"/v1/history?start=0&topic={quote('$SYS/events')}"
        assert self.values(named, token=token) == [b"e"]

    def test_reserved_topics_need_more_than_a_subscription(self) -> None:
        self.house.publish("$SYS/events", b"e")
        path = f"/v1/topics/{quote('$SYS/events', safe='')}/messages?follow=1"
        for permission, status in (("subscribe", 403), ("history", 200), ("admin", 200)):
            client = self.house.connect()
            client.ask("HEAD", path, None, self.house.token(permission, key=""))
            assert client.answer("HEAD").status == status

    def test_bad_tokens(self) -> None:
        expired = self.house.token("history", lasts=-1)
        forged = self.house.token("history")[:-4] + b"AAAA"
        for token in (b"x", b"", expired, forged):
            answer = self.house.get("/v1/history?start=0", token=token)
            assert answer.error == (401, "bad-token")
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        basic = self.house.get("/v1/history?start=0", Authorization="Basic eDp5")
        assert basic.error == (401, "bad-token")

    def test_a_flood_of_forged_tokens_is_throttled(self) -> None:
        verifications = self.house.listener.verifications
        verifications.take(verifications.available() - 10)
        answers = [self.house.get("/v1/topics", token=b"%d" % number) for number in range(12)]
        assert [answer.status for answer in answers] == [401] * 10 + [429] * 2
        self.house.pass_time(1)
        assert self.house.get("/v1/topics", token=self.house.token("history")).status == 200

    def test_good_tokens_do_not_count(self) -> None:
        verifications = self.house.listener.verifications
        verifications.take(verifications.available() - 1)
        for number in range(5):
            token = self.house.token("history", sub=f"user {number}")
            assert self.house.get("/v1/topics", token=token).status == 200
        answers = [self.house.get("/v1/topics", token=b"%d" % number) for number in range(2)]
        assert [answer.status for answer in answers] == [401, 429]

    def test_all_protocols_share_the_throttle(self) -> None:
        verifications = self.house.listener.verifications
        verifications.take(verifications.available())
        assert self.house.get("/v1/topics", token=b"forged").error == (429, "rate-limited")


class DamagedStore(MemoryStore):
    """A history with a damaged range."""

    def read_parcel(
        self, start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
    ) -> Deferred[Parcel]:
        """See IStore."""
        if start < 2:
            return succeed(Parcel(start, 2, 0, (), (start, 2)))
        return super().read_parcel(start, stop, topics, max_bytes)


class DamageTests(SynchronousTestCase):
    """Damaged ranges are reported"""

    def answer(self, query: str) -> Answer:
        house = WebHouse(DamagedStore(100, 2**20))
        house.publish("a", b"1", b"2", b"3")
        return house.get(f"/v1/history?{query}")

    def test_arrow_reports_damage_in_an_empty_batch(self) -> None:
        import pyarrow as pa

        reader = pa.ipc.open_stream(self.answer("start=1").body)
        batch, metadata = reader.read_next_batch_with_custom_metadata()
        assert (batch.num_rows, json.loads(metadata[b"damaged"])) == (0, [1, 2])
        batch, metadata = reader.read_next_batch_with_custom_metadata()
        assert (batch["value"].to_pylist(), metadata) == ([b"3"], None)

    def test_json_reports_damage_in_a_line(self) -> None:
        first, second = self.answer("start=0&format=jsonl").lines
        assert first == {"damaged": [0, 2]}
        assert second["value"] == "3"


class WithoutArrowTests(HouseCase):
    """The extra arrow is not installed"""

    def setUp(self) -> None:
        super().setUp()
        hidden = mock.patch.dict(sys.modules, {"pyarrow": None, "pyarrow.ipc": None})
        hidden.start()
        self.addCleanup(hidden.stop)

    def test_requests_that_need_arrow_name_the_extra(self) -> None:
        for answer in (
            self.house.get("/v1/history?start=0"),
            self.house.post("/v1/stage?query=q&batch=0", b"x"),
        ):
            assert answer.error == (501, "no-arrow")
            assert "pubsub-broker[arrow]" in answer.json["message"]

    def test_the_rest_works(self) -> None:
        assert len(self.house.get("/v1/history?start=0&format=jsonl").lines) == 3


class FailingArrowTests(HouseCase):
    """The extra arrow is installed, and cannot be imported for lack of memory"""

    def test_the_import_is_tried_again(self) -> None:
        for error in (ImportError("libarrow.so: cannot map"), MemoryError()):
            finder = mock.Mock()
            finder.find_spec.side_effect = error
            loaded = {k: v for k, v in sys.modules.items() if k != "pubsub.store.reading.arrow"}
            with (
                mock.patch.dict(sys.modules, loaded, clear=True),
                mock.patch.object(sys, "meta_path", [finder]),
            ):
                answer = self.house.get("/v1/history?start=0")
            assert answer.error == (503, "arrow-failed")
        assert self.house.get("/v1/history?start=0").status == 200


class RuleTests(SynchronousTestCase):
    """The table [[access]]"""

    def house(self, *rules: AccessRule) -> WebHouse:
        house = WebHouse()
        house.publish("a", b"1")
        house.publish("b", b"2")
        house.broker.set_access(AccessTable(rules))
        return house

    def test_identities_of_tokens_and_anonymous_clients(self) -> None:
        eve = Who(("eve",), proofs=("token",))
        house = self.house(rule(True, "history", "a", eve), rule(True, "history", "b"))
        token = house.token("history", sub="eve")
        rows = house.get("/v1/history?start=0", token=token).rows
        assert [row["topic"] for row in rows] == ["a", "b"]
        rows = house.get("/v1/history?start=0").rows
        assert [row["topic"] for row in rows] == ["b"]
        assert house.get("/v1/history?start=0&topic=a").error == (403, "not-authorized")

    def test_a_token_does_not_hide_the_network_of_its_client(self) -> None:
        for network, status in (("192.0.2.0/24", 200), ("198.51.100.0/24", 403)):
            who = Who(("eve",), networks=(ip_network(network),))
            house = self.house(rule(True, "history", "a", who))
            token = house.token("history", sub="eve")
            assert house.get("/v1/history?start=0&topic=a", token=token).status == status

    def test_a_token_needs_its_permission_and_the_rule(self) -> None:
        house = self.house(rule(True, "admin"))
        assert house.get("/v1/configuration", token=house.token("admin")).status == 200
        assert house.get("/v1/configuration", token=house.token("history")).status == 403
        assert house.get("/v1/configuration").status == 200
        house = self.house(rule(True, "history"))
        assert house.get("/v1/configuration", token=house.token("admin")).status == 403

    def test_a_token_needs_the_permission_for_messages_too(self) -> None:
        bob = Who(("bob",))
        house = self.house(rule(True, "publish history subscribe admin", "a", bob))
        reading = ("/v1/history?start=0&topic=a", "/v1/topics/a/messages")
        for permission, reads, writes in (
            ("history", 200, 403),
            ("publish", 403, 200),
            ("subscribe", 403, 403),
            ("metrics", 403, 403),
            ("admin", 200, 200),
        ):
            token = house.token(permission)
            assert [house.get(path, token=token).status for path in reading] == [reads] * 2
            assert house.post("/v1/topics/a/messages", b"x", token=token).status == writes
            aborted = house.post("/v1/abort", {"query": "q", "batch": 0}, token=token).status
            assert aborted == (204 if writes == 200 else 403)
        assert self.reader(house, "PUT", house.token("publish")).error == (403, "not-authorized")

    def test_without_rules_a_token_takes_nothing_away(self) -> None:
        house = WebHouse()
        house.publish("a", b"1")
        token = house.token("metrics")
        assert house.get("/v1/history?start=0&topic=a", token=token).status == 200
        assert house.post("/v1/topics/a/messages", b"x", token=token).status == 200

    def test_a_new_topic_has_to_be_created(self) -> None:
        house = self.house(rule(True, "publish"))
        assert house.post("/v1/topics/a/messages", b"x").status == 200
        assert house.post("/v1/topics/new/messages", b"x").error == (403, "not-authorized")
        house.broker.set_access(AccessTable([rule(True, "publish create")]))
        assert house.post("/v1/topics/new/messages", b"x").status == 200

    def test_creating(self) -> None:
        house = self.house(rule(True, "create", "new*"))
        for name, status in (("new", 201), ("other", 403)):
            client = house.connect()
            client.ask("PUT", f"/v1/topics/{name}", {})
            assert client.answer().status == status

    def test_creating_with_a_token(self) -> None:
        house = self.house(rule(True, "create", "new*"))
        keyed = {"queue_key": "k"}
        for name, body, permission, status in (
            ("new", {}, "create", 201),
            ("new2", keyed, "create", 201),
            ("new3", {}, "publish", 403),
            ("other", {}, "*", 403),
            # The rules allow no administrators, so the permission is one of a client.
            ("new4", keyed, "*", 201),
            ("new5", {"queue_key": "other"}, "*", 403),
        ):
            client = house.connect()
            client.ask("PUT", f"/v1/topics/{name}", body, house.token(permission, key="k"))
            assert client.answer().status == status, name
        house.broker.set_access(AccessTable([rule(True, "create admin")]))
        client = house.connect()
        client.ask("PUT", "/v1/topics/new5", {"queue_key": "other"}, house.token("*", key="k"))
        assert client.answer().status == 201

    def test_rotating_a_queue_key(self) -> None:
        house = self.house(rule(True, "rotate", "b"), rule(True, "publish"))
        for name, status in (("a", 403), ("b", 200)):
            house.lock(name, b"k")
            client = house.connect()
            token = house.token("*", key="k")
            client.ask("POST", f"/v1/topics/{name}/key", {"queue_key": "k2"}, token)
            assert client.answer("POST").status == status

    def test_deleting(self) -> None:
        house = self.house(rule(True, "delete", "a"))
        assert self.deleted(house, "b").error == (403, "not-authorized")
        assert self.deleted(house, "a").status == 204

    def test_readers_need_the_permission_to_read_some_history(self) -> None:
        house = self.house(rule(True, "subscribe publish"), rule(True, "history", "%u"))
        ada = house.token("history", sub="ada")
        assert self.reader(house, "PUT").error == (403, "not-authorized")
        assert self.reader(house, "PUT", ada).status == 204
        assert [row["owner"] for row in self.readers(house, ada)] == ["ada"]
        house.broker.set_access(AccessTable([rule(True, "subscribe")]))
        assert self.reader(house, "PUT", ada).error == (403, "not-authorized")
        assert self.reader(house, "DELETE", ada).error == (403, "not-authorized")
        assert self.readers(house, ada) == []
        house.broker.set_access(AccessTable([rule(True, "admin")]))
        admin = house.token("admin", sub="root")
        assert [row["owner"] for row in self.readers(house, admin)] == ["ada"]
        assert self.reader(house, "DELETE", admin, "?owner=ada").status == 204
        assert self.readers(house, admin) == []

    @staticmethod
    def reader(house: WebHouse, method: str, token: bytes | None = None, query: str = "") -> Answer:
        client = house.connect()
        body = {"offset": 1} if method == "PUT" else None
        client.ask(method, f"/v1/readers/r{query}", body, token)
        return client.answer(method)

    @staticmethod
    def readers(house: WebHouse, token: bytes) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = house.get("/v1/readers", token=token).json["items"]
        return rows

    @staticmethod
    def deleted(house: WebHouse, name: str) -> Answer:
        client = house.connect()
        client.ask("DELETE", f"/v1/topics/{name}")
        return client.answer()
