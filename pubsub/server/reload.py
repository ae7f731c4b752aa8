"""SIGHUP: read the configuration again and apply settings that can change under live clients.

``reload_effects.py`` lists them. Listeners are added, moved and removed without touching
others, and every live subscription is rechecked. Changes that need a restart are logged. A
configuration with an error changes nothing: changes made before the error was found are reverted.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Never, cast

from twisted.application.service import Service
from twisted.internet.defer import Deferred, execute
from twisted.internet.interfaces import IReactorFromThreads, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.broker.credentials.password_changes import changed_users, end_connections
from pubsub.errors import ConfigurationError, StartError
from pubsub.server.configuration_changes import (
    Changes,
    carried,
    compare,
    cut_both,
    describe,
    entries,
    hidden_changes,
)
from pubsub.server.early_reload import early_reload
from pubsub.server.history_settings import check_history
from pubsub.server.listener_set import ListenerSet, Prepared
from pubsub.server.memory_limit import warn_beyond_limit

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.service import BrokerService
    from pubsub.server.configuration import Config, ListenerConfig
    from pubsub.tuning import Tuning

log = Logger()
# Seconds that the files of the configuration may take: those of a file system in the network that
# does not answer never come.
_READ_SECONDS = 60.0


class LiveConfiguration:
    """The configuration of ``broker``, which was made from ``config``.

    ``applied`` is called with other settings of the broker.
    """

    def __init__(
        self,
        broker: BrokerService,
        config: Config,
        reactor: object,
        tuning: Tuning,
        applied: Callable[[Mapping[str, Any]], object] = lambda settings: None,
    ) -> None:
        self._broker = broker
        self._applied = applied
        self._running = config
        self._listeners = ListenerSet(broker, reactor, tuning)
        self._is_exchanging = False
        broker.configuration.content = describe(config)

    def apply(self, config: Config) -> Deferred[tuple[int, int]]:
        """Apply the settings that can change; fires with how many subscriptions stay and end.

        By then the listeners are exchanged, too. Raises ConfigurationError, also until the
        listeners of the reload before are exchanged; nothing has changed in that case, nor after
        any other exception.
        """
        if self._is_exchanging:
            # Those that it will add would be added once more.
            raise ConfigurationError(
                "the reload before has not closed its ports yet; reload again when it is done"
            )
        check_history(config.broker, self._broker.memory.aside)
        new = carried(self._running, config)
        changes = compare(self._broker.configuration.content, describe(config))
        wanted = entries(new)
        leaving = self._listeners.others(wanted)
        free = list(leaving)
        users = self._broker.passwords.hashes
        coming: list[Prepared] = []
        undo = self._undo(users, coming)
        try:
            rechecked = self._replace(new, wanted, free, coming, undo)
        except BaseException as error:
            for step in reversed(undo):
                _attempt(step)
            if isinstance(error, OSError):
                raise ConfigurationError(str(error)) from error
            raise
        changed = changed_users(users, config.passwords)
        if changed:
            self._broker.slices.run(end_connections(self._broker.clients, changed))
        self._report(changes)
        if new.broker["max-memory"] != self._running.broker["max-memory"]:
            warn_beyond_limit(new.broker)
        for name in hidden_changes(self._running, config):
            log.warn(
                "reload: the credentials in {setting} stay until a restart",
                setting=name,
                unlimited=True,
            )
        self._running = new
        self._broker.configuration.content = describe(new)
        self._broker.drainage.draining = False
        exchanged = self._exchange(leaving, free, coming)
        return rechecked.addCallback(lambda counts: exchanged.addCallback(lambda _: counts))

    def _undo(
        self, users: Mapping[str, str] | None, coming: list[Prepared]
    ) -> list[Callable[[], object]]:
        """Return the calls that restore the present state, the last first."""
        broker, running = self._broker, self._running
        return [
            partial(broker.tokens.replace, broker.tokens.ring),
            partial(broker.set_access, running.access),
            partial(broker.passwords.replace, users),
            lambda: self._listeners.keep(coming),
        ]

    def _replace(
        self,
        new: Config,
        wanted: list[ListenerConfig],
        free: list[Listener],
        coming: list[Prepared],
        undo: list[Callable[[], object]],
    ) -> Deferred[tuple[int, int]]:
        """Prepare the listeners that are ``coming``, and replace all settings."""
        broker, before = self._broker, self._broker.tokens.ring
        ring = new.ring.carrying(before)
        # Before listeners are made: a protocol may require a secret, or users.
        broker.tokens.replace(ring)
        broker.set_access(new.access)
        broker.passwords.replace(new.passwords)
        for one in wanted:
            if self._listeners.find(one.protocol.name, one.endpoint) is None:
                prepared = self._listeners.prepare(one, free)
                coming += [] if prepared is None else [prepared]
        broker.tokens.replace(before)
        running = self._running
        undo.append(partial(broker.put_back, before, _settings(entries(running)), running.broker))
        undo.append(partial(self._applied, running.broker))
        self._applied(new.broker)
        return broker.reconfigure(ring, _settings(wanted), new.broker)

    def _exchange(
        self, leaving: list[Listener], free: list[Listener], coming: list[Prepared]
    ) -> Deferred[Any]:
        """Remove and add listeners; fires when that is done."""
        self._is_exchanging = True
        moving = [listener for listener in leaving if listener not in free]
        # A port may be taken by the listener that leaves.
        closed = self._listeners.remove(leaving, moving)
        closed.addCallback(lambda _: self._add(coming))
        closed.addErrback(lambda failure: log.failure("adding listeners failed", failure))
        return closed.addCallback(lambda _: self._exchanged())

    def _exchanged(self) -> None:
        self._is_exchanging = False

    def _add(self, coming: list[Prepared]) -> None:
        missing = []
        for prepared in coming:
            try:
                self._listeners.add(prepared)
            except StartError as error:
                missing.append(str(error))
                log.error("reload: {reason}; correct it and reload again", reason=error)
        self._broker.readiness.missing = missing
        self._broker.configuration.reloaded()

    def _report(self, changes: Changes) -> None:
        for one in changes.settings:
            old, new = cut_both(one.old, one.new)
            values = {"setting": one.setting, "old": old, "new": new, "unlimited": True}
            if one.needs_restart:
                log.warn("reload: {setting} stays {old} until a restart makes it {new}", **values)
            else:
                log.info("reload: {setting} is {new}, and was {old}", **values)
        for name in changes.added:
            log.info("reload: listener {name} is added", name=name, unlimited=True)
        for name in changes.removed:
            log.info(
                "reload: listener {name} is removed; its clients are drained",
                name=name,
                unlimited=True,
            )


def _settings(entries: list[ListenerConfig]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(one.protocol.name, one.endpoint): one.settings for one in entries}


def _attempt(step: Callable[[], object]) -> None:
    """Call ``step``; the steps after it are taken even if it fails."""
    try:
        step()
    except Exception:
        log.failure("reload: a setting could not be restored; restart the broker")


def _not_read(_: object, seconds: float) -> Never:
    raise ConfigurationError(f"the files could not be read within {seconds:g} s")


class Reloader(Service):
    """Applies the result of ``read`` to ``live`` whenever the process receives SIGHUP.

    ``run_in_thread`` calls ``read``: a table of access rules can have thousands of lines. It takes
    ``_READ_SECONDS`` at most. ``begun`` and ``done`` are called before and after each reload, the
    second one with whether it was applied.
    """

    def __init__(
        self,
        live: LiveConfiguration,
        read: Callable[[], Config],
        reactor: object,
        begun: Callable[[], object] = lambda: None,
        done: Callable[[bool], object] = lambda is_applied: None,
        run_in_thread: Callable[[Callable[[], Config]], Deferred[Config]] = execute,
    ) -> None:
        self._live = live
        self._read = read
        self._reactor = cast(IReactorFromThreads, reactor)
        self._clock = cast(IReactorTime, reactor)
        self._begun = begun
        self._done = done
        self._run_in_thread = run_in_thread
        self._is_reloading = self._is_wanted = self._is_stopped = False

    def startService(self) -> None:
        """Handle the signal, also one that came before."""
        super().startService()  # type: ignore[no-untyped-call]
        self._is_stopped = False
        signal.signal(signal.SIGHUP, self._signalled)
        if early_reload.take():
            self._reactor.callFromThread(self.reload)

    def stopService(self) -> Deferred[None] | None:
        """Ignore the signal, so that it does not kill a process that is stopping."""
        super().stopService()  # type: ignore[no-untyped-call]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._is_stopped = True
        return None

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._reactor.callFromThread(self.reload)

    def reload(self) -> None:
        """Read and apply the configuration; log an error and change nothing if it is invalid.

        Requests while that is being done are one more reload, after it.
        """
        if self._is_stopped:
            return
        if self._is_reloading:
            self._is_wanted = True
            return
        self._is_reloading = True
        self._begun()
        reading = self._run_in_thread(self._read_all)
        if not reading.called:
            reading.addTimeout(_READ_SECONDS, self._clock, _not_read)
        reloaded = reading.addCallback(self._apply)
        reloaded.addCallbacks(lambda _: True, self._report).addCallback(self._end)

    def _read_all(self) -> Config:
        """Read the configuration; done in a thread."""
        config = self._read()
        # The text of thousands of rules, which is compared with that of the rules in use.
        str(config.access)
        return config

    def _apply(self, config: Config) -> Deferred[None] | None:
        if self._is_stopped:
            return None
        applied = self._live.apply(config)
        return applied.addCallbacks(
            lambda counts: log.info(
                "reloaded: subscriptions kept: {kept}, ended: {removed}",
                kept=counts[0],
                removed=counts[1],
            ),
            lambda failure: log.failure("rechecking the subscriptions failed", failure),
        )

    @staticmethod
    def _report(failure: Failure) -> bool:
        if failure.check(ConfigurationError, OSError):
            reason = failure.value
            log.error("reload failed, nothing is changed: {reason}", reason=reason)
        else:
            log.failure("reload failed, nothing is changed", failure)
        return False

    def _end(self, is_applied: bool) -> None:
        """The reload has ended, with or without an error; nothing follows once the broker stops."""
        is_wanted, self._is_reloading, self._is_wanted = self._is_wanted, False, False
        if self._is_stopped:
            return
        self._done(is_applied)
        if is_wanted:
            self._reactor.callFromThread(self.reload)
