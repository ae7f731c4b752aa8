"""The table of the effects of a reload, by setting."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.listener_settings import SETTINGS as LISTENER_SETTINGS
from pubsub.plugin import ADMIN, installed_protocols
from pubsub.server.broker_settings import BROKER_SETTINGS
from pubsub.server.reload_effects import BROKER, EFFECTS, LISTENER, Effect, effect_of


class TableTests(SynchronousTestCase):
    """EFFECTS"""

    def test_every_setting_is_in_it_and_nothing_else(self) -> None:
        protocols = {one.name: one.settings for one in (*installed_protocols().values(), ADMIN)}
        scopes = {BROKER: BROKER_SETTINGS, LISTENER: LISTENER_SETTINGS, **protocols}
        for scope, settings in scopes.items():
            expected = {setting.name for setting in settings}
            assert set(EFFECTS[scope]) == expected, f"{scope}: see pubsub/server/reload_effects.py"
        assert set(EFFECTS) == set(scopes)

    def test_a_setting_is_that_of_its_protocol_or_of_all_listeners(self) -> None:
        assert effect_of("cafe", "channels") is Effect.RESTART
        assert effect_of("cafe", "allow-publish") is Effect.NOW
        assert effect_of("cafe", "slow-bytes") is Effect.NEW

    def test_settings_of_other_packages_need_a_restart(self) -> None:
        assert effect_of("other", "size") is Effect.RESTART
