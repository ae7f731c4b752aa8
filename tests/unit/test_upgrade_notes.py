"""The reports of the first start on a history of version 0.1."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pubsub.plugin import installed_protocols
from pubsub.server.configuration import CommandLine, merge
from pubsub.server.upgrade_notes import is_upgrade, report_upgrade
from pubsub.store.history_location import StoreLocation
from tests.unit.fakes import scratch
from tests.unit.streams import logged


class ReportTests(SynchronousTestCase):
    """Lines of the log"""

    def reported(self, **document: object) -> list[str]:
        """Return the changes that are reported for a configuration file."""
        config = merge(installed_protocols(), CommandLine(), {"store": "memory", **document})
        lines = logged(self)
        report_upgrade(config)
        return [line.removeprefix("upgrade from 0.1: ").partition(";")[0] for line in lines]

    def test_each_default_is_reported_once(self) -> None:
        listen = [{"protocol": name, "port": 0} for name in ("cafe", "nsd")]
        assert self.reported(listen=listen) == [
            "allow-anonymous is auto, and was on",
            "slow-consumer is auto, and was pause",
        ]

    def test_old_values_that_are_kept_are_not(self) -> None:
        kept = {"allow-anonymous": True, "slow-consumer": "pause", "admin": {"max-streams": 16}}
        assert self.reported(**kept) == []

    def test_datagrams_sockets_and_http(self) -> None:
        listen = [
            {"protocol": "cafe", "port": 0, "udp": True, "slow-consumer": "drop"},
            {"protocol": "nsd", "endpoint": "unix:a", "slow-consumer": "drop"},
            {"protocol": "nsd", "endpoint": "unix:b:mode=666", "slow-consumer": "drop"},
        ]
        assert self.reported(listen=listen, **{"admin-port": 0, "slow-consumer": "drop"}) == [
            "UNIX sockets have mode 660, and had 666",
            "admin max-streams is 32, and was 16",
            "allow-anonymous is auto, and was on",
            "cafe udp-packing is off, and was on",
        ]

    def test_only_a_migration_is_an_upgrade(self) -> None:
        directory = scratch(self)
        old, new = directory / "history.db", directory / "history"
        assert not is_upgrade(None)
        assert not is_upgrade(StoreLocation(new))
        assert not is_upgrade(StoreLocation(new, old))
        old.touch()
        assert is_upgrade(StoreLocation(new, old))
        new.mkdir()
        assert not is_upgrade(StoreLocation(new, Path(old)))
