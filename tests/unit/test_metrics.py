"""The metrics: their text, the access to it, and the figures behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.broker.figures.histogram import BOUNDS
from pubsub.broker.figures.statistics import Statistics
from pubsub.http_api.metrics.metric_families import FAMILIES
from pubsub.http_api.metrics.metric_family import COUNTER, HISTOGRAM, OTHERS, Family, Reading, read
from pubsub.http_api.metrics.metrics_exposition import names, render
from tests.unit.streams import House
from tests.unit.web import Answer, WebHouse

BUILD = {"version": "1.2", "kernel": "compiled", "python": "3.11.7", "name": "a"}
# Only with a backplane (tests/integration/test_backplane.py).
_BACKPLANE = "pubsub_backplane_"
LOCAL, REMOTE = "127.0.0.1", "192.0.2.1"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def parsed(text: bytes) -> Iterable[Metric]:
    """Parse Prometheus's text format."""
    found: Iterable[Metric] = parse_text(text.decode())
    return found


def parsed_openmetrics(text: bytes) -> Iterable[Metric]:
    """Parse OpenMetrics, whose rules are stricter."""
    found: Iterable[Metric] = parse_openmetrics(text.decode())  # type: ignore[no-untyped-call]
    return found


class MetricsCase(SynchronousTestCase):
    """A broker in memory and its statistics."""

    def setUp(self) -> None:
        keys = {"corp": {"jwks-url": "https://login.example.com/keys"}}
        self.broker = House(
            {"cafe": {}}, top={"keys": keys}, fetch_keys=lambda one: succeed([])
        ).broker
        self.broker.issuer_key_refresh.start()
        self.addCleanup(self.broker.issuer_key_refresh.stop)
        self.statistics: Statistics = self.broker.statistics
        end = {"protocol": "cafe", "setting": "tls-cert", "subject": "a.example", "expires": 2e9}
        self.statistics.certificates = lambda: [end]
        self.statistics.peers = lambda: {"connected": 2, "connecting": 0, "lost": 1}

    def reading(self) -> Reading:
        return read(self.statistics, BUILD)

    def samples(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """The values by name and labels, as Prometheus reads them."""
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in parsed(render(self.reading(), "")[0]):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[labels] = sample.value
        return found


class TextTests(MetricsCase):
    """render"""

    def test_every_family_is_there_with_its_kind_and_labels(self) -> None:
        self.broker.counters.drop("bob", "t", "slow-consumer", 1)
        self.broker.counters.evict("memory bound")
        self.broker.counters.refuse("cafe", "no-handshake", "bob")
        text = render(self.reading(), OPENMETRICS)[0]
        found = {family.name: family for family in parsed_openmetrics(text)}
        disk = {
            family.name
            for family in FAMILIES
            if family.name.startswith("pubsub_history_") and family.name not in _IN_MEMORY
        }
        for family in FAMILIES:
            assert family.name in found, family.name
            assert found[family.name].type == family.kind
            assert found[family.name].documentation == family.help
            if family.name not in disk and not family.name.startswith(_BACKPLANE):
                self.assert_labels(family, found[family.name])

    def assert_labels(self, family: Family, found: Metric) -> None:
        assert found.samples, family.name
        for sample in found.samples:
            assert set(sample.labels) - {"le"} == set(family.labels)

    def test_the_names_in_queries_are_those_of_samples(self) -> None:
        found = self.samples()
        for family in FAMILIES:
            if family.kind == HISTOGRAM:
                for suffix in ("_bucket", "_count", "_sum"):
                    assert family.name + suffix in found
            elif family.name.startswith(_BACKPLANE):
                assert family.shown not in found
            elif family.name in _IN_MEMORY or "history" not in family.name:
                reasons = {"reason"} & set(family.labels)
                assert reasons or family.shown in found, family.shown
        assert names(parsed(render(self.reading(), "")[0])) == set(found)

    def test_the_standard_metrics_of_the_process_are_there(self) -> None:
        found = self.samples()
        assert found["process_resident_memory_bytes"][()] > 0
        assert found["process_open_fds"][()] > 0

    def test_values_are_those_of_the_snapshot(self) -> None:
        traffic = self.broker.counters.traffic["cafe"]
        traffic.accepted.messages, traffic.written.nbytes = 7, 2**53
        self.broker.counters.refuse("cafe", 'a "reason"\n', "bob", 3)
        found = self.samples()
        cafe = (("protocol", "cafe"),)
        assert found["pubsub_received_messages_total"][cafe] == 7
        assert found["pubsub_sent_bytes_total"][cafe] == 2**53
        labels = (("protocol", "cafe"), ("reason", 'a "reason"\n'))
        assert found["pubsub_refusals_total"][labels] == 3
        assert found["pubsub_build_info"] == {tuple(sorted(BUILD.items())): 1}

    def test_evictions_begin_with_zero(self) -> None:
        # Prometheus sees no increase in a counter that begins with 1, so no alert would fire.
        before = self.samples()["pubsub_evictions_total"]
        self.broker.counters.evict("memory bound")
        self.broker.counters.evict("slow consumer: behind for 30 s")
        after = self.samples()["pubsub_evictions_total"]
        assert {*before.values()} == {0}
        assert before.keys() == after.keys()
        assert after[("reason", "memory-bound"),] == after[("reason", "slow-consumer"),] == 1

    def test_drops_begin_with_zero(self) -> None:
        before = self.samples()["pubsub_dropped_messages_total"]
        self.broker.counters.drop("bob", "t", "slow-consumer", 3)
        self.broker.counters.drop("bob", "t", "too-large", 1)
        after = self.samples()["pubsub_dropped_messages_total"]
        assert {*before.values()} == {0}
        assert before.keys() == after.keys()
        assert after[("reason", "slow-consumer"),] == 3

    def test_a_history_is_not_shared_while_its_sessions_fail(self) -> None:
        reading, name = self.reading(), "pubsub_backplane_history_connected"
        for connected, trouble, shown in (
            (True, "", b"1.0"), (True, "no storage", b"0.0"), (False, "", b"0.0"),
        ):  # fmt: skip
            backplane = {"history_connected": connected, "history_trouble": trouble}
            given = replace(reading, figures={**reading.figures, "backplane": backplane})
            assert b"\n%s %s\n" % (name.encode(), shown) in render(given, "")[0]
        for figures in ({}, {"backplane": {"connected": True}}):
            given = replace(reading, figures={**reading.figures, **figures})
            assert b"\n%s " % name.encode() not in render(given, "")[0]

    def test_a_backplane_that_is_cut_off_is_not_connected(self) -> None:
        reading = self.reading()
        for is_cut_off, shown in ((False, b"1.0"), (True, b"0.0")):
            backplane = {"connected": True, "cut_off": is_cut_off}
            given = replace(reading, figures={**reading.figures, "backplane": backplane})
            assert b"\npubsub_backplane_connected %s\n" % shown in render(given, "")[0]

    def test_peers_have_a_sample_for_each_state(self) -> None:
        states = {labels[0][1]: n for labels, n in self.samples()["pubsub_peers"].items()}
        assert states == {"connected": 2, "connecting": 0, "lost": 1}

    def test_a_histogram_has_all_buckets(self) -> None:
        times = self.broker.router.flush_times
        for seconds in (0.00005, 0.003, 100.0):
            times.observe(seconds)
        found = self.samples()
        buckets = found["pubsub_flush_seconds_bucket"]
        assert len(buckets) == len(BOUNDS) + 1
        assert buckets[("le", "0.0001"),] == 1
        assert buckets[("le", "0.005"),] == 2
        assert buckets[("le", "+Inf"),] == 3
        assert found["pubsub_flush_seconds_count"][()] == 3
        assert round(found["pubsub_flush_seconds_sum"][()], 3) == 100.003

    def test_the_values_of_a_label_are_bounded_and_counters_never_decrease(self) -> None:
        counters = self.broker.counters
        for number in range(150):
            counters.refuse("cafe", f"reason-{number}", "bob")
        before = self.samples()["pubsub_refusals_total"]
        assert len(before) == 101
        assert before[("protocol", OTHERS), ("reason", OTHERS)] == 50
        for number in reversed(range(200)):
            counters.refuse("cafe", f"reason-{number}", "bob")
        after = self.samples()["pubsub_refusals_total"]
        assert all(after[labels] > value for labels, value in before.items())

    def test_accounts_add_up_to_the_memory_used(self) -> None:
        self.broker.memory.add(1000)
        found = self.samples()["pubsub_memory_bytes"]
        assert sum(found.values()) == self.broker.memory.used

    def test_counters_are_named_as_openmetrics_demands(self) -> None:
        for family in FAMILIES:
            assert family.name.startswith("pubsub_")
            assert not family.name.endswith("_total")
            assert family.shown.endswith("_total") is (family.kind == COUNTER)
        assert len({family.name for family in FAMILIES}) == len(FAMILIES)


class PageTests(SynchronousTestCase):
    """GET /metrics"""

    def setUp(self) -> None:
        self.house = WebHouse()

    def get(self, **given: Any) -> Answer:
        return self.house.connect(LOCAL).get("/metrics", **given)

    def test_prometheus_gets_its_text_format(self) -> None:
        answer = self.get()
        assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-store")
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert b"# TYPE pubsub_connections gauge\n" in answer.body
        assert b'pubsub_connections{protocol="http"} 1.0\n' in answer.body

    def test_openmetrics_is_sent_if_the_request_accepts_it(self) -> None:
        answer = self.get(Accept=f"{OPENMETRICS},text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert answer.body.endswith(b"# EOF\n")
        assert list(parsed_openmetrics(answer.body))

    def test_the_text_is_made_in_a_thread_of_the_figures_of_one_moment(self) -> None:
        waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = []

        def run_in_thread(call: Callable[[], Any]) -> Deferred[Any]:
            done: Deferred[Any] = Deferred()
            waiting.append((call, done))
            return done

        self.house.run_in_thread = run_in_thread
        client = self.house.connect(LOCAL)
        client.ask("GET", "/metrics")
        ((call, done),) = waiting
        self.house.broker.counters.evict("later")
        with patch.object(Statistics, "snapshot", side_effect=AssertionError):
            done.callback(call())
        assert b"later" not in client.answer().body

    def test_a_client_that_leaves_meanwhile_does_no_harm(self) -> None:
        done: Deferred[Any] = Deferred()
        self.house.run_in_thread = lambda call: done
        client = self.house.connect(LOCAL)
        client.ask("GET", "/metrics")
        client.stream.lose()
        done.callback((b"", "text/plain"))
        assert client.stream.received == b""
        assert self.house.broker.counters.connections == 0

    def test_head(self) -> None:
        client = self.house.connect(LOCAL)
        client.ask("HEAD", "/metrics")
        answer = client.answer("HEAD")
        assert (answer.status, answer.body) == (200, b"")

    def test_other_methods_are_refused(self) -> None:
        client = self.house.connect(LOCAL)
        client.ask("POST", "/metrics", b"")
        assert client.answer().status == 405


class AccessTests(SynchronousTestCase):
    """The right to read them"""

    def setUp(self) -> None:
        self.house = WebHouse()

    def status(self, host: str, given: bytes | None = None) -> int:
        return self.house.connect(host).get("/metrics", token=given).status

    def test_the_same_machine_needs_no_token(self) -> None:
        assert (self.status(LOCAL), self.status(REMOTE)) == (200, 403)
        self.house.broker.tokens.replace(SecretRing())
        assert (self.status(LOCAL), self.status(REMOTE)) == (200, 403)

    def test_others_need_a_permission(self) -> None:
        for permission, status in (("metrics", 200), ("admin", 200), ("history", 403)):
            assert self.status(REMOTE, self.house.token(permission)) == status
        assert self.status(REMOTE, b"forged") == 401

    def test_a_token_without_the_permission_is_no_help_on_the_same_machine(self) -> None:
        assert self.status(LOCAL, self.house.token("history")) == 403


_IN_MEMORY = {
    "pubsub_history_first_offset",
    "pubsub_history_next_offset",
    "pubsub_history_committed_offset",
    "pubsub_history_bytes",
}
