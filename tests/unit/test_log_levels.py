"""The setting log-level."""

from __future__ import annotations

from twisted.logger import LogLevel, LogLevelFilterPredicate, PredicateResult
from twisted.trial.unittest import SynchronousTestCase

from pubsub.server.log_levels import LOG_LEVEL, set_levels
from tests.unit.raising import raised


def passes(predicate: LogLevelFilterPredicate, namespace: str, level: str) -> bool:
    event = {"log_namespace": namespace, "log_level": LogLevel.lookupByName(level)}
    return predicate(event) is not PredicateResult.no


class LevelTests(SynchronousTestCase):
    """log-level"""

    def test_levels_by_namespace(self) -> None:
        predicate = LogLevelFilterPredicate()
        set_levels(predicate, LOG_LEVEL.parse("store=debug, cafe=error,twisted=error,warn"))
        assert passes(predicate, "pubsub.store.opening.recovery", "debug")
        assert not passes(predicate, "pubsub.broker.service", "info")
        assert passes(predicate, "pubsub.broker.service", "warn")
        assert not passes(predicate, "pubsub.protocols.cafe.server", "warn")
        assert not passes(predicate, "twisted.web.http", "warn")
        assert not passes(predicate, "log_legacy", "info")

    def test_other_levels_replace_them(self) -> None:
        predicate = LogLevelFilterPredicate()
        set_levels(predicate, LOG_LEVEL.parse("store=debug,error"))
        set_levels(predicate, LOG_LEVEL.parse(["wire.connection_log=debug"]))
        assert not passes(predicate, "pubsub.store", "debug")
        assert passes(predicate, "pubsub.store", "info")
        assert passes(predicate, "pubsub.wire.connection_log", "debug")

    def test_the_names_of_other_packages(self) -> None:
        assert LOG_LEVEL.parse("pubsub.store=warn") == {"": "info", "pubsub.store": "warn"}
        assert LOG_LEVEL.parse("twisted.web=warn") == {"": "info", "twisted.web": "warn"}

    def test_mistakes(self) -> None:
        message = str(raised(ValueError, LOG_LEVEL.parse, "loud"))
        assert message == "expected one of debug, info, warn, error, critical, not 'loud'"
        for name in ("stoer", "store.nothing", ".", "a..b", "wire "):
            message = str(raised(ValueError, LOG_LEVEL.parse, f"{name}=debug"))
            assert message.startswith("no module is called ")
        for name in ("admin", "pubsub.admin.server"):
            message = str(raised(ValueError, LOG_LEVEL.parse, f"{name}=debug"))
            assert message == f"the module {name!r} of earlier versions is in http_api now"
        assert "separated by commas" in str(raised(ValueError, LOG_LEVEL.parse, 3))
        assert "expected one of" in str(raised(ValueError, LOG_LEVEL.parse, ""))
