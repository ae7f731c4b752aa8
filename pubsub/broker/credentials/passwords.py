"""Verification of passwords: in a thread, rationed, and remembered for a short time.

A verification costs about 40 ms of processor time and 19 MiB by design, so that a stolen file is of
little use. It must not become a means to stop the broker:

- one thread does one verification after another, and at most ``RATE`` a second;
- the addresses that wait take turns, so that one that floods delays itself;
- each address may have ``MAX_PER_SOURCE`` and all together ``MAX_WAITING`` passwords waiting, for
  ``WAIT_SECONDS``;
- equal passwords of one user that wait are verified together;
- a password that was right is right for another ``REMEMBERED_SECONDS`` without a verification. It
  is remembered as a keyed hash whose key is random and never leaves the process.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from twisted.logger import Logger

from pubsub.broker.credentials.password_file import MAX_PASSWORD, hash_of_nobody, matches
from pubsub.broker.publishing.rate_limits import TokenBucket
from pubsub.errors import ConfigurationError, PasswordsBusy, Refused, WrongPassword

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime
    from twisted.python.failure import Failure

log = Logger()
RATE = 20
"""Verifications a second, for all connections together."""
MAX_WAITING, MAX_PER_SOURCE = 1024, 64
WAIT_SECONDS = 10.0
REMEMBERED_SECONDS = 300.0
_MAX_REMEMBERED = 10_000
# Results that are reported together: each may open a session.
_REPORTED = 32
_PAUSE = 0.05


class Threads(Protocol):
    """Runs ``call`` in a thread, then ``done`` or ``failed`` in that of the reactor."""

    def __call__(
        self,
        call: Callable[[], bool],
        done: Callable[[bool], object],
        failed: Callable[[Failure], object],
    ) -> None: ...


def call_at_once(
    call: Callable[[], bool],
    done: Callable[[bool], object],
    failed: Callable[[Failure], object],
) -> None:
    """``Threads`` that use the thread of the reactor, for brokers without a thread."""
    done(call())


class PasswordCheck:
    """A verification that one client waits for: ``done`` is called once, with None or a refusal."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[Refused | None], None]) -> None:
        self._done: Callable[[Refused | None], None] | None = done

    @property
    def pending(self) -> bool:
        """True until ``done`` was called, or the client has left."""
        return self._done is not None

    def cancel(self) -> None:
        """The client has left: ``done`` is not called."""
        self._done = None

    def resolve(self, refused: Refused | None) -> None:
        """Call ``done``."""
        done, self._done = self._done, None
        if done is not None:
            done(refused)


class _Verification:
    """A user and a password that wait to be verified, and the clients that gave them."""

    __slots__ = ("checks", "due", "key", "password", "source", "user")

    def __init__(self, source: str, user: str, password: bytes, key: bytes, due: float) -> None:
        self.source = source
        self.user = user
        self.password = password
        self.key = key
        self.due = due
        self.checks: list[PasswordCheck] = []


class PasswordVerifier:
    """Verifies passwords with the hashes given to ``replace``, in the thread of ``run``."""

    def __init__(self, clock: IReactorTime, run: Threads) -> None:
        self._clock = clock
        self._run = run
        self._hashes: Mapping[str, str] | None = None
        self._nobody = ""
        self._key = secrets.token_bytes(32)
        # When each correct password is forgotten, the oldest first.
        self._remembered: OrderedDict[bytes, float] = OrderedDict()
        self._verifications: dict[bytes, _Verification] = {}
        # Those of each address, in the order of the turns.
        self._sources: OrderedDict[str, deque[_Verification]] = OrderedDict()
        self._asked: _Verification | None = None
        self._results: deque[tuple[PasswordCheck, Refused | None]] = deque()
        self._bucket = TokenBucket(RATE, clock.seconds)
        self._timer: IDelayedCall | None = None
        self._stopped = False
        self._accepted = False
        self.verified = self.rejected = 0
        """Verifications made, and how many of them had a wrong password."""

    def accept(self, setting: str) -> None:
        """A listener takes passwords, by its ``setting``.

        Raises ConfigurationError if there is no password file.
        """
        if self._hashes is None:
            raise ConfigurationError(f"{setting} needs users; set password-file")
        self._accepted = True

    def warn_if_unused(self) -> None:
        """Log a warning if there is a password file, and no listener takes passwords.

        Clients of such a listener are anonymous, with any password.
        """
        if self._hashes is not None and not self._accepted:
            log.warn(
                "password-file: no listener takes passwords; set client-id-password for cafe, "
                "identity-password for nsd, or mechanism for spot"
            )

    @property
    def hashes(self) -> Mapping[str, str] | None:
        """The hashes that ``replace`` was called with."""
        return self._hashes

    def is_user(self, name: str) -> bool:
        """Return whether there is a user of this name."""
        return self._hashes is not None and name in self._hashes

    def __len__(self) -> int:
        """Return how many passwords wait for their verification."""
        return len(self._verifications)

    def replace(self, hashes: Mapping[str, str] | None) -> None:
        """Verify with these hashes from now on, by user; None if there is no password file."""
        self._hashes = hashes
        self._nobody = "" if hashes is None else hash_of_nobody(hashes)
        self._remembered.clear()

    def stop(self) -> None:
        """The broker stops, and verifies no further password."""
        self._stopped = True
        self._verifications.clear()
        self._sources.clear()
        self._results.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Asking

    def verify(
        self, user: str, password: bytes, source: str, done: Callable[[Refused | None], None]
    ) -> PasswordCheck:
        """Have ``done`` called with None if this is the password of ``user``, or the refusal.

        The refusal is WrongPassword or PasswordsBusy. ``source`` is the address of the client, or
        the network that one client's addresses belong to.
        ``done`` may be called at once.
        """
        check = PasswordCheck(done)
        key = self._key_of(user, password)
        if self._hashes is None or not 0 < len(password) <= MAX_PASSWORD:
            check.resolve(WrongPassword())
        elif self._is_remembered(key):
            check.resolve(None)
        elif not self._ask(check, source, user, password, key):
            check.resolve(PasswordsBusy())
        return check

    def _key_of(self, user: str, password: bytes) -> bytes:
        name = user.encode(errors="replace")
        text = len(name).to_bytes(4, "big") + name + password
        return blake2b(text, digest_size=32, key=self._key).digest()

    def _is_remembered(self, key: bytes) -> bool:
        ends = self._remembered.get(key)
        if ends is not None and ends <= self._clock.seconds():
            del self._remembered[key]
            ends = None
        return ends is not None

    def _ask(
        self, check: PasswordCheck, source: str, user: str, password: bytes, key: bytes
    ) -> bool:
        """Have ``check`` wait; return False if too much waits already."""
        verification = self._verifications.get(key)
        if verification is None:
            mine = self._sources.get(source, ())
            full = len(self._verifications) >= MAX_WAITING or len(mine) >= MAX_PER_SOURCE
            if full or self._stopped:
                return False
            due = self._clock.seconds() + WAIT_SECONDS
            verification = self._verifications[key] = _Verification(
                source, user, password, key, due
            )
            self._sources.setdefault(source, deque()).append(verification)
        verification.checks.append(check)
        if self._asked is None:
            self._later(0)
        return True

    # Answering

    def _continue(self) -> None:
        """Report results, then begin the next verification, if there is one and it may begin."""
        self._timer = None
        for _ in range(min(len(self._results), _REPORTED)):
            check, refused = self._results.popleft()
            check.resolve(refused)
        if self._stopped:
            return
        if self._asked is None:
            self._drop_overdue()
            self._begin()
        if self._results:
            self._later(0)
        elif self._asked is None and self._verifications:
            self._later(_PAUSE)

    def _later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._clock.callLater(seconds, self._continue)

    def _drop_overdue(self) -> None:
        now = self._clock.seconds()
        for source, waiting in list(self._sources.items()):
            while waiting and waiting[0].due <= now:
                self._answer(waiting.popleft(), PasswordsBusy())
            if not waiting:
                del self._sources[source]

    def _begin(self) -> None:
        while self._sources and self._bucket.available() >= 1:
            source, waiting = self._sources.popitem(last=False)
            verification = waiting.popleft()
            if waiting:
                # Behind the others.
                self._sources[source] = waiting
            if not any(check.pending for check in verification.checks):
                del self._verifications[verification.key]
                continue
            self._bucket.take(1)
            self._asked = verification
            hashes = self._hashes
            hashed = self._nobody if hashes is None else hashes.get(verification.user, self._nobody)
            self._run(
                partial(matches, verification.password, hashed),
                partial(self._verified, verification, hashes),
                partial(self._failed, verification),
            )
            return

    def _verified(
        self, verification: _Verification, hashes: Mapping[str, str] | None, right: bool
    ) -> None:
        self._asked = None
        if self._stopped:
            return
        self.verified += 1
        if hashes is not self._hashes:
            # The file was replaced meanwhile: the result counts for nothing.
            self._sources.setdefault(verification.source, deque()).appendleft(verification)
        elif right:
            self._remember(verification.key)
            self._answer(verification, None)
        else:
            self.rejected += 1
            self._answer(verification, WrongPassword())
        self._later(0)

    def _failed(self, verification: _Verification, failure: Failure) -> None:
        log.failure("a password cannot be verified", failure)
        self._asked = None
        if not self._stopped:
            self._answer(verification, PasswordsBusy())
            self._later(0)

    def _remember(self, key: bytes) -> None:
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        self._remembered[key] = self._clock.seconds() + REMEMBERED_SECONDS

    def _answer(self, verification: _Verification, refused: Refused | None) -> None:
        self._verifications.pop(verification.key, None)
        self._results.extend([(check, refused) for check in verification.checks])
