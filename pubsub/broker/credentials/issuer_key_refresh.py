"""The schedule on which the public keys of issuers are fetched.

Each source is fetched when the broker starts, then every ``KeySource.seconds``, after a failure
sooner. A token with a key id that is not known causes one fetch before its time, at most every
``EARLY_SECONDS``. If a fetch fails, the keys that are there stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger

from pubsub.broker.visible_text import visible

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime
    from twisted.python.failure import Failure

    from pubsub.broker.credentials.master_secrets import KeySource, MasterSecret
    from pubsub.broker.credentials.tokens import TokenVerifier

RETRY_SECONDS = 30.0
"""From a fetch that failed to the next one, unless the source is fetched more often anyway."""
EARLY_SECONDS = 30.0
"""Between fetches that tokens with an unknown key id cause."""
_SHOWN = 300
_NO_KEYS = "its tokens are refused until it succeeds"
_OLD_KEYS = "the keys that were fetched before stay"
Fetch = Callable[["KeySource"], Deferred[list["MasterSecret"]]]
log = Logger()


class _Watch:
    """The keys of one source, and its next fetch."""

    def __init__(self, source: KeySource) -> None:
        self.source = source
        self.attempted: float | None = None
        self.fetched: float | None = None
        self.fetches = 0
        self.failures = 0
        self.failed = False
        self.pending: Deferred[Any] | None = None
        self.timer: IDelayedCall | None = None

    def stop(self) -> None:
        """End the fetch under way, and plan no other."""
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.cancel()


class IssuerKeyRefresh:
    """Fetches the keys of the sources of ``tokens``' ring with ``fetch``, while it runs.

    ``recheck`` rechecks all subscriptions, after keys have changed; ``record`` writes an audit
    record. Without ``fetch`` nothing is fetched.
    """

    def __init__(
        self,
        clock: IReactorTime,
        tokens: TokenVerifier,
        fetch: Fetch | None,
        recheck: Callable[[], Deferred[tuple[int, int]]],
        record: Callable[..., object],
    ) -> None:
        self._clock = clock
        self._tokens = tokens
        self._fetch = fetch
        self._recheck = recheck
        self._record = record
        self._watches: dict[str, _Watch] = {}
        self._running = False
        tokens.signatures.key_missing = self.hasten

    def start(self) -> None:
        """Fetch the keys of all sources, and do so again on schedule."""
        self._running = self._fetch is not None
        self.reconfigure({})

    def stop(self) -> None:
        """End the fetches under way; may be called before ``start``."""
        self._running = False
        for watch in self._watches.values():
            watch.stop()
        self._watches.clear()

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Follow the sources that the ring has now. The ``settings`` of the broker do not count."""
        if not self._running:
            return
        wanted = {source.id: source for source in self._tokens.ring.sources}
        for id, watch in list(self._watches.items()):
            if id not in wanted or not wanted[id].is_at(watch.source):
                watch.stop()
                del self._watches[id]
        for id, source in wanted.items():
            known = self._watches.get(id)
            if known is None:
                known = self._watches[id] = _Watch(source)
                self._begin(known)
            elif known.source != source:
                known.source = source
                self._plan(known)

    def hasten(self) -> None:
        """A token names a key that is not known: the issuer may have a new one."""
        now = self._clock.seconds()
        for watch in self._watches.values():
            last = watch.attempted
            if watch.pending is None and (last is None or now - last >= EARLY_SECONDS):
                watch.attempted = now
                # Not at once: this is called while a token is verified.
                self._plan(watch, 0)

    def figures(self) -> dict[str, dict[str, float | None]]:
        """Return for each source its number of keys, and how its fetches went.

        ``age`` is in seconds since the last fetch that succeeded; None if there was none.
        """
        now, fetched = self._clock.seconds(), self._tokens.ring.fetched
        found: dict[str, dict[str, float | None]] = {}
        for source in self._tokens.ring.sources:
            watch = self._watches.get(source.id) or _Watch(source)
            found[source.id] = {
                "keys": len(fetched.get(source.id, ())),
                "age": None if watch.fetched is None else now - watch.fetched,
                "fetches": watch.fetches,
                "failures": watch.failures,
            }
        return found

    def _plan(self, watch: _Watch, seconds: float | None = None) -> None:
        """Fetch in ``seconds``, by default when it is due; a fetch under way plans the next."""
        if watch.pending is not None:
            return
        if watch.timer is not None:
            watch.timer.cancel()
        if seconds is None:
            waited = self._clock.seconds() - (watch.attempted or 0.0)
            seconds = max(0.0, self._period(watch) - waited)
        watch.timer = self._clock.callLater(seconds, self._begin, watch)

    def _period(self, watch: _Watch) -> float:
        seconds = watch.source.seconds
        return min(seconds, RETRY_SECONDS) if watch.failed else seconds

    def _begin(self, watch: _Watch) -> None:
        watch.timer = None
        if self._fetch is None:
            return
        watch.attempted = self._clock.seconds()
        watch.pending = fetching = maybeDeferred(self._fetch, watch.source)
        fetching.addCallbacks(
            self._arrived, self._failed, callbackArgs=(watch,), errbackArgs=(watch,)
        )
        fetching.addErrback(lambda failure: log.failure("using fetched keys failed", failure))

    def _arrived(self, keys: list[MasterSecret], watch: _Watch) -> None:
        if watch.pending is None:
            # The source was removed.
            return
        watch.fetches += 1
        watch.fetched = watch.attempted = self._clock.seconds()
        watch.failed = False
        watch.pending = None
        self._plan(watch)
        self._replace(watch.source, tuple(keys))

    def _failed(self, failure: Failure, watch: _Watch) -> None:
        if watch.pending is None:
            return
        watch.fetches += 1
        watch.failures += 1
        watch.failed = True
        watch.pending = None
        self._plan(watch)
        log.warn(
            "keys of {id}: fetching failed: {reason}; {effect}",
            id=watch.source.id,
            reason=_reason_of(failure),
            effect=_NO_KEYS if watch.fetched is None else _OLD_KEYS,
        )

    def _replace(self, source: KeySource, keys: tuple[MasterSecret, ...]) -> None:
        """Use ``keys``; subscriptions and requests with tokens of removed keys end."""
        before = self._tokens.ring
        known = {key.id: key for key in before.fetched.get(source.id, ())}
        if known == {key.id: key for key in keys}:
            return
        ring = before.with_keys(source.id, keys)
        added = sorted(key.id for key in ring if key not in before)
        removed = sorted(key.id for key in before if key not in ring)
        self._tokens.replace(ring)
        log.info("keys of {id} that are used from now on: {number}", id=source.id, number=len(keys))
        rechecked = self._recheck()
        rechecked.addCallback(self._tell, source.id, added, removed)
        rechecked.addErrback(
            lambda failure: log.failure("rechecking the subscriptions failed", failure)
        )

    def _tell(self, counts: tuple[int, int], id: str, added: list[str], removed: list[str]) -> None:
        kept, ended = counts
        self._record(
            "keys",
            issuer=id,
            secrets_added=added,
            secrets_removed=removed,
            kept=kept,
            removed=ended,
        )


def _reason_of(failure: Failure) -> str:
    """Return a line about a failure, which a server may have caused with any text."""
    text = str(failure.value) or type(failure.value).__name__
    return visible(text[:_SHOWN])
