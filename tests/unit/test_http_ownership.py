"""HTTP: queries, parts and readers belong to the subject of the token, or are anonymous."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

from pubsub.broker.memory_budget import MemoryBudget
from pubsub.http_api.exactly_once import committed_batches
from pubsub.http_api.exactly_once.committed_batches import COMMITS, UNOWNED_COMMITS
from pubsub.http_api.readers.reader_positions import READERS, _KnownReaders
from pubsub.store.memory_store import MemoryStore
from tests.unit.web import Answer, WebHouse, stream_of
from tests.unit.writing_case import WritingCase, table

LAST = 2**62


class OwnershipCase(WritingCase):
    """A broker with the clients ada, bob and one without a token"""

    def setUp(self) -> None:
        super().setUp()
        self.ada = self.house.token(sub="ada")
        self.bob = self.house.token(sub="bob")

    def write(self, value: bytes, batch: int = 0, **given: Any) -> Answer:
        """Stage and commit a batch of one message."""
        return self.commit(self.part(value, batch=batch, **given), batch=batch, **given)


class QueryTests(OwnershipCase):
    """Committed batches"""

    def test_commits_of_others_do_not_make_a_batch_a_duplicate(self) -> None:
        assert self.write(b"anonymous", LAST).json["duplicate"] is False
        assert self.write(b"bob", LAST, token=self.bob).json["duplicate"] is False
        assert self.write(b"ada", 0, token=self.ada).json["duplicate"] is False
        assert self.write(b"again", 0, token=self.ada).json["duplicate"] is True
        assert self.values() == [b"anonymous", b"bob", b"ada"]

    def test_another_token_of_the_subject_continues_its_queries(self) -> None:
        self.write(b"1", token=self.ada)
        renewed = self.house.token(sub="ada", lasts=7200)
        assert renewed != self.ada
        assert self.write(b"1", token=renewed).json["duplicate"] is True

    def test_a_commit_without_messages_is_not_remembered(self) -> None:
        assert self.commit(batch=LAST).json["messages"] == 0
        assert self.commit(self.part(batch=LAST), batch=LAST).json["messages"] == 0
        assert self.write(b"1").json["duplicate"] is False
        assert list(self.house.store.items(COMMITS)) != []
        assert self.values() == [b"1"]

    def test_other_clients_do_not_push_queries_out(self) -> None:
        with patch.object(committed_batches, "MAX_QUERIES", 3):
            self.write(b"ada", token=self.ada)
            self.write(b"anonymous")
            for number in range(9):
                self.write(b"bob", query=f"b{number}", token=self.bob)
            connect = self.house.connect
            with patch.object(self.house, "connect", lambda: connect("198.51.100.9")):
                for number in range(9):
                    self.write(b"intruder", query=f"i{number}")
        assert self.write(b"ada", token=self.ada).json["duplicate"] is True
        assert self.write(b"anonymous").json["duplicate"] is True
        assert self.write(b"bob", query="b0", token=self.bob).json["duplicate"] is False
        assert self.write(b"bob", query="b8", token=self.bob).json["duplicate"] is True
        assert len(list(self.house.store.items(COMMITS))) == 1 + 3 + 3 + 1

    def test_the_queries_of_all_clients_are_bounded(self) -> None:
        """Those that have committed last stay: any number of subjects may come over time."""
        with patch.object(MemoryBudget, "part", lambda _memory, number: 8 * 4500 // number):
            for number in range(3):
                self.write(b"1", query=f"q{number}", token=self.house.token(sub=f"s{number}"))
            self.write(b"2", query="q0", batch=1, token=self.house.token(sub="s0"))
            before = self.held()
            self.write(b"3", token=self.ada)
            assert self.held() == before
        found = [json.loads(key)[0] for key, _ in self.house.store.items(COMMITS)]
        assert sorted(found) == ["ada", "s0", "s2"]
        again = self.write(b"2", query="q0", batch=1, token=self.house.token(sub="s0"))
        assert again.json["duplicate"] is True

    def test_memory_is_charged(self) -> None:
        self.write(b"1", token=self.ada)
        before = self.held()
        self.write(b"2", batch=1, token=self.ada)
        assert self.held() == before
        self.write(b"1", token=self.bob)
        assert self.held() == before + 1500


class RestartTests(OwnershipCase):
    """The next broker on the same history"""

    def restart(self) -> None:
        store = self.house.store
        assert isinstance(store, MemoryStore)
        self.house = WebHouse(store=store)

    def test_owners_are_restored(self) -> None:
        self.write(b"1", 5, token=self.ada)
        self.write(b"2", 7)
        self.restart()
        assert self.write(b"x", 5, token=self.ada).json["duplicate"] is True
        assert self.write(b"x", 7).json["duplicate"] is True
        assert self.write(b"3", 0, token=self.bob).json["duplicate"] is False

    def test_commits_of_earlier_versions_count_for_every_owner(self) -> None:
        row = {"batch": 3, "first": 0, "next": 1, "messages": 1, "at": 1}
        self.house.store.put(UNOWNED_COMMITS, "q", json.dumps(row).encode())
        self.restart()
        assert self.write(b"4").json["duplicate"] is True
        assert self.write(b"x", 3, token=self.ada).json["first"] == 0
        # No client can change such a commit for others.
        self.write(b"5", LAST)
        assert self.write(b"x", 3, token=self.ada).json["duplicate"] is True
        assert self.write(b"6", 4, token=self.ada).json["duplicate"] is False


class PartTests(OwnershipCase):
    """Staged parts"""

    def test_parts_of_others_cannot_be_committed(self) -> None:
        id = self.part(b"1", token=self.ada)
        for token in (None, self.bob):
            assert self.commit(id, token=token).error == (409, "unknown-part")
        assert self.commit(id, token=self.ada).json["messages"] == 1

    def test_parts_of_others_cannot_be_dropped(self) -> None:
        id = self.part(b"1", token=self.ada)
        for token in (None, self.bob):
            body = {"query": "q", "batch": 0}
            assert self.house.post("/v1/abort", body, token=token).status == 204
            stream = stream_of(table(["a"], [b"x"]))
            self.house.post("/v1/stage?query=q&batch=0&run=new", stream, token=token)
            self.write(b"x", 9, token=token)
        assert self.commit(id, token=self.ada).json["messages"] == 1

    def test_the_owner_can_drop_them(self) -> None:
        id = self.part(b"1", token=self.ada)
        self.house.post("/v1/abort", {"query": "q", "batch": 0}, token=self.ada)
        assert self.commit(id, token=self.ada).error == (409, "unknown-part")

    def test_an_invalid_token_drops_nothing(self) -> None:
        id = self.part(b"1")
        body = {"query": "q", "batch": 0}
        assert self.house.post("/v1/abort", body, token=b"eyJ").error == (401, "bad-token")
        assert self.commit(id).json["messages"] == 1


class ReaderTests(OwnershipCase):
    """Positions of readers"""

    def setUp(self) -> None:
        super().setUp()
        self.house = WebHouse(max_readers=2)
        self.admin = self.house.token("admin", sub="root")
        self.house.publish("a", b"1", b"2", b"3")

    def ask(self, method: str, name: str, **given: Any) -> Answer:
        client = self.house.connect()
        client.ask(method, f"/v1/readers/{name}", **given)
        return client.answer(method)

    def put(self, name: str, offset: int, **given: Any) -> Answer:
        return self.ask("PUT", name, body={"offset": offset}, **given)

    def found(self, **given: Any) -> list[tuple[str, str | None, int]]:
        rows = self.house.get("/v1/readers", **given).json["items"]
        return [(row["name"], row["owner"], row["offset"]) for row in rows]

    def test_each_owner_has_its_own_positions(self) -> None:
        self.put("r", 1)
        self.put("r", 2, token=self.ada)
        self.put("r", 3, token=self.bob)
        assert self.found() == [("r", None, 1)]
        assert self.found(token=self.ada) == [("r", None, 1), ("r", "ada", 2)]
        assert self.found(token=self.admin) == [("r", None, 1), ("r", "ada", 2), ("r", "bob", 3)]

    def test_others_cannot_delete_them(self) -> None:
        self.put("r", 2, token=self.ada)
        assert self.ask("DELETE", "r").status == 204
        assert self.ask("DELETE", "r", token=self.bob).status == 204
        refused = self.ask("DELETE", "r?owner=ada", token=self.bob)
        assert refused.error == (403, "not-authorized")
        assert self.found(token=self.ada) == [("r", "ada", 2)]
        assert self.ask("DELETE", "r?owner=ada", token=self.admin).status == 204
        assert self.found(token=self.ada) == []

    def test_others_do_not_use_up_the_limit(self) -> None:
        for name in "ab":
            assert self.put(name, 0).status == 204
        assert self.put("c", 0).error == (507, "limit-reached")
        assert self.put("c", 0, token=self.ada).status == 204

    def test_nothing_is_kept_of_owners_without_one(self) -> None:
        kept = self.house.listener.shared(_KnownReaders, _KnownReaders)
        for owner in (self.ada, self.bob):
            self.put("r", 1, token=owner)
            self.put("s", 1, token=owner)
        assert kept.counts == {"ada": 2, "bob": 2}
        for name in "rrs":
            self.ask("DELETE", name, token=self.ada)
        assert list(kept.counts.items()) == [("bob", 2)]

    def test_they_are_restored(self) -> None:
        self.put("r", 1)
        self.put("r", 2, token=self.ada)
        assert [name for name, _ in self.house.store.items(READERS)] == ["r"]
        store = self.house.store
        assert isinstance(store, MemoryStore)
        self.house = WebHouse(store=store, max_readers=1)
        assert self.found(token=self.ada) == [("r", None, 1), ("r", "ada", 2)]
        assert self.put("s", 0, token=self.ada).error == (507, "limit-reached")

    def test_the_readers_of_all_owners_are_bounded(self) -> None:
        """Any number of subjects may come over time, and their positions stay."""
        with patch.object(MemoryBudget, "part", lambda _memory, number: 4 * 3000 // number):
            for owner in (self.ada, self.bob):
                assert self.put("r", 1, token=owner).status == 204
            refused = self.put("r", 1)
            assert refused.error == (507, "limit-reached")
            assert "all owners" in refused.json["message"]
            assert self.put("r", 2, token=self.ada).status == 204
            self.ask("DELETE", "r", token=self.bob)
            assert self.put("r", 1).status == 204

    def test_memory_is_charged(self) -> None:
        before = self.held()
        self.put("r", 1, token=self.ada)
        self.put("r", 2, token=self.ada)
        assert self.held() == before + 1500
        self.ask("DELETE", "r", token=self.ada)
        assert self.held() == before
