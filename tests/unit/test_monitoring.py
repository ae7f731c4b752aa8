"""The dashboard and the alert rules of the package: the names in them exist."""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from pubsub.http_api.metrics.metric_families import FAMILIES
from pubsub.http_api.metrics.metric_family import HISTOGRAM
from tests.unit.monitoring_files import DASHBOARD, MONITORING, ROOT

ALERTS = (MONITORING / "alerts.yml").read_text()
_METRIC = re.compile(r"\b(?:pubsub|process)_\w+")
# Metrics of prometheus_client, for the process.
_STANDARD = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_max_fds",
}


def known() -> set[str]:
    """The names that a query may use."""
    found = set(_STANDARD)
    for family in FAMILIES:
        suffixes = ("_bucket", "_sum", "_count") if family.kind == HISTOGRAM else ("",)
        found |= {family.shown + suffix for suffix in suffixes}
    return found


def queries() -> list[str]:
    """The queries of all panels."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


class AlertTests(SynchronousTestCase):
    """alerts.yml"""

    def setUp(self) -> None:
        self.names = re.findall(r"- alert: (\w+)", ALERTS)

    def test_they_use_metrics_that_exist(self) -> None:
        used = {name for expr in re.findall(r"expr: >-\n(.*)", ALERTS) for name in _names(expr)}
        assert used - known() == set()
        assert len(used) > 10

    def test_each_has_its_section_in_the_documents(self) -> None:
        text = (ROOT / "docs/operating.md").read_text()
        sections = re.findall(r"^### (Pubsub\w+)\n\n(.+)", text, re.MULTILINE)
        assert [name for name, _ in sections] == self.names
        assert all(len(body) > 40 for _, body in sections)

    def test_each_links_to_its_section(self) -> None:
        links = re.findall(r"runbook: docs/operating\.md#(\w+)", ALERTS)
        assert links == [name.lower() for name in self.names]

    def test_each_has_a_test(self) -> None:
        tests = (ROOT / "tests/integration/alert_tests.yml").read_text()
        assert re.findall(r"alertname: (\w+)", tests) == self.names


class DashboardTests(SynchronousTestCase):
    """dashboard.json"""

    def test_it_uses_metrics_that_exist(self) -> None:
        used = {name for query in queries() for name in _names(query)}
        assert used - known() == set()

    def test_it_shows_every_family(self) -> None:
        used = {name for query in queries() for name in _names(query)}
        for family in FAMILIES:
            shown = family.shown + ("_bucket" if family.kind == HISTOGRAM else "")
            assert shown in used, shown

    def test_every_query_is_of_the_brokers_that_were_chosen(self) -> None:
        for query in queries():
            # This keeps the brokers among all processes, of which the left side has chosen some.
            chosen = query.replace(" and on (instance, job) pubsub_build_info", "")
            for name in _names(chosen):
                assert f'{name}{{instance=~"$instance"}}' in chosen, query

    def test_panels_do_not_overlap(self) -> None:
        taken: set[tuple[int, int]] = set()
        for panel in DASHBOARD["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= 24
            assert not cells & taken, panel["title"]
            taken |= cells
        numbers = [panel["id"] for panel in DASHBOARD["panels"]]
        assert len(set(numbers)) == len(numbers)

    def test_it_names_no_data_source_of_ours(self) -> None:
        for panel in DASHBOARD["panels"]:
            if panel["type"] != "row":
                assert panel["datasource"]["uid"] == "${datasource}"
                assert panel["title"]


def _names(query: str) -> list[str]:
    return _METRIC.findall(query)
