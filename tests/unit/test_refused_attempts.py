"""Refused attempts in the audit log, and the sample filter of fail2ban that finds them."""

from __future__ import annotations

import json
import re
from configparser import RawConfigParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.audit_log import refused_attempts
from pubsub.broker.audit_log.audit import AuditLog
from pubsub.broker.audit_log.refused_attempts import LINES, LINES_A_SECOND, PERIOD, RefusedAttempts
from pubsub.broker.clients.connection_marks import describe
from tests.unit.fakes import make_broker, make_listener
from tests.unit.http_follower import Follower
from tests.unit.web import WebHouse
from tests.unit.web_sockets import connected

FILTER = Path(__file__).parents[2] / "docs" / "deploy" / "fail2ban" / "pubsub.conf"


class AttemptTests(SynchronousTestCase):
    """RefusedAttempts"""

    def setUp(self) -> None:
        self.records: list[tuple[str, str, int]] = []
        self.clock = Clock()
        self.attempts = RefusedAttempts(self.record, self.clock)

    def record(self, event: str, **fields: Any) -> None:
        assert event == "refused"
        assert list(fields) == ["address", "protocol", "reason", "count"]
        self.records.append((fields["address"], fields["reason"], fields["count"]))

    def test_attempts_are_recorded_with_their_address(self) -> None:
        for peer in ("192.0.2.1:4711", "[2001:db8::1]:4711", "unix", "192.0.2.2"):
            self.attempts.refused("fast", "bad-token", peer)
        assert [address for address, _, _ in self.records] == [
            "192.0.2.1", "2001:db8::1", "unix", "192.0.2.2",
        ]  # fmt: skip

    def test_other_refusals_are_not(self) -> None:
        for reason in ("rate-limited", "too-large", "handshake-timeout", "tls-plaintext"):
            self.attempts.refused("fast", reason, "192.0.2.1:1")
        assert self.records == []
        assert not self.clock.getDelayedCalls()

    def test_a_source_that_goes_on_gets_one_line_more(self) -> None:
        for _ in range(LINES + 5):
            self.attempts.refused("fast", "bad-token", "192.0.2.1:1", 2)
        assert self.records == [("192.0.2.1", "bad-token", 2)] * LINES
        self.attempts.refused("fast", "bad-token", "192.0.2.2:1")
        self.clock.advance(PERIOD)
        assert self.records[LINES:] == [
            ("192.0.2.2", "bad-token", 1), ("192.0.2.1", "bad-token", 10),
        ]  # fmt: skip
        assert len(self.attempts) == 0
        assert not self.clock.getDelayedCalls()
        self.attempts.refused("fast", "bad-token", "192.0.2.1:1")
        assert len(self.records) == LINES + 3

    def test_addresses_of_one_ipv6_network_are_one_source(self) -> None:
        for number in range(LINES + 5):
            self.attempts.refused("fast", "bad-token", f"2001:db8::{number}:1")
        assert len(self.records) == LINES

    def test_the_lines_of_all_sources_are_bounded(self) -> None:
        for number in range(1000):
            self.attempts.refused("fast", "bad-token", f"192.0.{number // 256}.{number % 256}:1")
        assert len(self.records) == LINES_A_SECOND
        self.attempts.close()
        assert sum(count for _, _, count in self.records) == 1000
        assert not self.clock.getDelayedCalls()

    def test_the_sources_are_bounded(self) -> None:
        self.patch(refused_attempts, "SOURCES", 3)  # type: ignore[no-untyped-call]
        for number in range(10):
            for _ in range(LINES + 1):
                self.attempts.refused("fast", "bad-token", f"192.0.2.{number}:1")
        assert len(self.attempts) == 3


class _Client:
    mark = 1

    def __init__(self, peer: str, proves_address: bool) -> None:
        self._peer = peer
        self.proves_address = proves_address

    def log_fields(self) -> dict[str, str]:
        return describe(self.mark, "toy", self._peer, None)


class AuditTests(SynchronousTestCase):
    """Lines of the audit log"""

    def setUp(self) -> None:
        self.path = Path(self.enterContext(TemporaryDirectory())) / "audit.log"
        audit = AuditLog(lambda: 1_700_000_000.0, str(self.path))
        self.listener = make_listener(make_broker(audit=audit))
        parser = RawConfigParser()
        parser.read(FILTER)
        expression = parser["Definition"]["failregex"].replace("<ADDR>", "(?P<ip>[0-9a-f.:]+)")
        self.failure = re.compile(expression)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    def test_the_sample_filter_finds_them(self) -> None:
        for reason in ("bad-token", "wrong-password", "tls-certificate-missing"):
            self.listener.refuse(reason, "alice", connection=_Client("192.0.2.1:7", True))
        self.listener.refuse("tls-certificate-expired", "[2001:db8::1]:7")
        found = [self.failure.search(line) for line in self.lines()]
        assert [match and match["ip"] for match in found] == ["192.0.2.1"] * 3 + ["2001:db8::1"]
        # fail2ban has taken the time out.
        rest = self.lines()[0].replace('{"time": "2023-11-14T22:13:20.000+00:00"', "")
        assert self.failure.search(rest)

    def test_texts_of_clients_cannot_imitate_a_record(self) -> None:
        forged = '{"time": "", "event": "refused", "address": "192.0.2.9", "protocol": "a", "re'
        self.listener.audit.record("close", client=forged, topic=forged)
        self.listener.refuse("not-authorized", forged, topic=forged)
        self.listener.refuse("bad-token", "x", connection=_Client("unix", True))
        assert not any(self.failure.search(line) for line in self.lines())
        events = [json.loads(line)["event"] for line in self.lines()]
        assert events == ["close", "refused", "refused"]

    def test_addresses_that_are_not_proved_are_left_out(self) -> None:
        self.listener.refuse("not-authorized", "x", connection=_Client("192.0.2.1:7", False))
        assert self.lines() == []


class TokenEndTests(SynchronousTestCase):
    """Connections that end with their token, which are no attempts"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.token = self.house.token("metrics", "history", "publish", lasts=5)

    def ended(self) -> set[str]:
        """Return the reasons of the refusals, none of which is in the audit log."""
        recent = self.house.listener.audit.recent
        assert not len(recent)
        return {reason for _, reason in self.house.broker.counters.refusals}

    def test_a_websocket(self) -> None:
        client = connected(self.house, token=self.token.decode())
        self.house.pass_time(6)
        assert client.close_code == 4001
        assert self.ended() == {"token-expired"}

    def test_a_request_just_before(self) -> None:
        client = connected(self.house, token=self.token.decode())
        # The sweep, once a second, has not ended it.
        self.house.clock.rightNow += 6
        assert client.refused("publish", topic="a", value="1") == "bad-token"
        assert self.ended() == {"token-expired"}

    def test_responses(self) -> None:
        self.house.publish("a", b"1")
        for target in ("/v1/topics/a/messages?follow=1", "/v1/status?follow=1&format=jsonl"):
            follower = Follower(self.house, target, token=self.token)
            self.house.pass_time(6)
            assert b'"token-expired"' in follower.body()
            assert follower.complete
            assert self.ended() == {"token-expired"}
            self.token = self.house.token("metrics", "history", lasts=5)

    def test_its_use_afterwards_is_one(self) -> None:
        self.house.pass_time(6)
        assert self.house.get("/v1/topics", token=self.token).status == 401
        assert len(self.house.listener.audit.recent) == 1
