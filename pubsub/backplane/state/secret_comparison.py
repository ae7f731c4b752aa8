"""``SecretComparison``: whether the other brokers have the same master secrets as this one.

Each broker writes a *mark* of its secrets to the shared state, again and again while it runs, and
compares the marks of the others. A mark has 16 bits: brokers with other secrets have the same one
once in 65,536 cases, and nobody can confirm a guess of a secret by it. The marks have the names of
their brokers, so that a second broker of one name is noticed too.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from twisted.application.service import Service
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from pubsub.backplane.state.outdated import Outdated
from pubsub.backplane.state.shared_state import in_time
from pubsub.broker.visible_text import visible
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from pubsub.backplane.state.shared_state import ISharedState, StateEntry
    from pubsub.broker.credentials.master_secrets import MasterSecret, SecretRing
    from pubsub.broker.service import BrokerService

log = Logger()
PREFIX = "m."
_VERSION = 1
_PURPOSE = b"pubsub: the master secrets of a group of brokers"
_DIGITS = 4
# Seconds between two looks, after which a mark is written again, after which one that is not
# written again counts no more, and after which NATS removes it.
_LOOK, _REFRESHED, _COUNTS, _KEPT = 10.0, 30.0, 100.0, 120
_GRACE = 60.0
"""Seconds that a difference lasts until it is reported: brokers are not reloaded all at once."""
# Names of brokers that are shown.
_SHOWN = 10


class SecretMark(NamedTuple):
    """The value of a key: the broker's name, and the mark of its secrets; empty at its end."""

    name: str
    mark: str

    def encode(self) -> bytes:
        """Return the value of the key."""
        return json.dumps({"v": _VERSION, "name": self.name, "mark": self.mark}).encode()


def decode_mark(value: bytes) -> SecretMark | None:
    """Return the value; None if no broker of this version has written it."""
    try:
        found = json.loads(value)
        if found["v"] != _VERSION:
            return None
        return SecretMark(str(found["name"]), str(found["mark"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def mark_of(ring: SecretRing, now: float) -> str:
    """Return the mark of the secrets and public keys that are configured and valid ``now``.

    Keys that are fetched are left out: each broker fetches them when it is due.
    """
    fetched = {source.id for source in ring.sources}
    parts = [_part(secret) for secret in ring if secret.table not in fetched and now < secret.ends]
    whole = hashlib.sha256(_PURPOSE)
    for part in sorted(parts):
        whole.update(part)
    return whole.hexdigest()[:_DIGITS]


def _part(secret: MasterSecret) -> bytes:
    key = secret.key
    if not isinstance(key, bytes):
        key = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    text = b"\0".join((_PURPOSE, secret.algorithm.encode(), (secret.kid or secret.id).encode()))
    return hmac.digest(key, text, "sha256")


class _Seen(NamedTuple):
    value: SecretMark
    since: float
    lives: bool
    """Whether it was written again since: not by this broker before it was killed and restarted."""


class SecretComparison(Service):
    """Compares the secrets of ``broker`` with those of others in ``state``.

    ``wall`` returns the time by which secrets end.
    """

    def __init__(
        self,
        broker: BrokerService,
        state: ISharedState,
        clock: IReactorTime,
        wall: Callable[[], float],
    ) -> None:
        self._tokens, self._statistics = broker.tokens, broker.statistics
        self._state, self._clock, self._wall = state, clock, wall
        self._id = secrets.token_hex(8)
        self._others: dict[str, _Seen] = {}
        self._is_complete = self._is_writing = False
        self._revision = 0
        self._written: SecretMark | None = None
        self._time = 0.0
        # Since when there is a difference, and whose is reported.
        self._since: float | None = None
        self._differing: tuple[str, ...] = ()
        self._has_namesake = False
        self._ticker = LoopingCall(self._look)
        self._ticker.clock = clock

    def startService(self) -> None:
        """Begin to compare."""
        super().startService()  # type: ignore[no-untyped-call]
        self._state.open(self)
        self._ticker.start(_LOOK, now=False)

    def stopService(self) -> Deferred[None]:
        """Tell the others that this broker's secrets count no more."""
        super().stopService()  # type: ignore[no-untyped-call]
        self._ticker.stop()
        done = self._write("") if self._written is not None and self._is_complete else _nothing()
        return Deferred.fromCoroutine(done)

    def figures(self) -> Mapping[str, Any]:
        """Return what there is to be reported; see ``Statistics.snapshot``."""
        return {"other_secrets": list(self._differing), "namesake": self._has_namesake}

    # StateWatcher

    def state_changed(self, entries: Sequence[StateEntry]) -> None:
        """See ``StateWatcher``."""
        for key, value, _ in entries:
            if key.startswith(PREFIX) and key != PREFIX + self._id:
                found = decode_mark(value)
                if found is None or not found.mark:
                    self._others.pop(key, None)
                else:
                    self._others[key] = _Seen(found, self._clock.seconds(), key in self._others)

    def state_complete(self) -> None:
        """See ``StateWatcher``."""
        self._is_complete = True
        self._refresh()

    def state_away(self) -> None:
        """See ``StateWatcher``."""
        self._is_complete = False
        self._others.clear()

    # Each few seconds

    def _look(self) -> None:
        if not self._is_complete:
            return
        self._refresh()
        now = self._clock.seconds()
        self._others = {
            key: seen for key, seen in self._others.items() if now - seen.since < _COUNTS
        }
        self._report_name()
        own = self._mark()
        found = {seen.value.name for seen in self._others.values() if seen.value.mark != own}
        if not found:
            self._since = None
            self._report(())
        elif self._since is None:
            self._since = now
        elif now - self._since >= _GRACE:
            self._report(tuple(sorted(found)[:_SHOWN]))

    def _report(self, names: tuple[str, ...]) -> None:
        if names == self._differing:
            return
        self._differing = names
        if names:
            log.warn(
                "backplane: other master secrets than here are at {names}: brokers refuse tokens "
                "of each other's clients; give all of them the same secret-file and [keys], and "
                "reload them",
                names=visible(", ".join(names)),
            )
        else:
            log.info("backplane: the master secrets are the same at all brokers")

    def _report_name(self) -> None:
        had, name = self._has_namesake, self._statistics.name
        namesakes = [seen for seen in self._others.values() if seen.value.name == name]
        self._has_namesake = any(seen.lives or had for seen in namesakes)
        name = visible(name)
        if had == self._has_namesake:
            return
        if not had:
            log.warn(
                "backplane: another broker has the name {name} too: metrics, status and messages "
                "about brokers cannot tell them apart; give each its own with the setting name",
                name=name,
            )
        else:
            log.info("backplane: no other broker has the name {name} any more", name=name)

    # The own mark

    def _mark(self) -> str:
        return mark_of(self._tokens.ring, self._wall())

    def _refresh(self) -> None:
        mark = self._mark()
        known = self._written
        is_due = known is None or self._clock.seconds() - self._time >= _REFRESHED
        if not self._is_writing and (is_due or (known is not None and known.mark != mark)):
            Deferred.fromCoroutine(self._write(mark)).addErrback(
                lambda failure: log.failure("backplane: writing a mark has failed", failure)
            )

    async def _write(self, mark: str) -> None:
        value = SecretMark(self._statistics.name, mark)
        self._is_writing = True
        try:
            with suppress(BackplaneAway):
                self._revision = await self._put(value)
                self._written, self._time = value, self._clock.seconds()
        finally:
            self._is_writing = False

    async def _put(self, value: SecretMark) -> int:
        for _ in range(2):
            try:
                done = self._state.put(PREFIX + self._id, value.encode(), self._revision, _KEPT)
                return int(await in_time(done, self._clock))
            except Outdated as found:
                # The answer to an earlier change was lost, or NATS has removed the value.
                self._revision = found.revision
        raise BackplaneAway("the mark of the secrets changes")


async def _nothing() -> None:
    """There is nothing to be told."""
