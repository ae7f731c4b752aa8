"""The certificates of the listeners: read with the configuration, and reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.application.service import Service
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from pubsub.broker.listeners.tls_settings import TLS
from pubsub.errors import ConfigurationError
from pubsub.wire.server_tls import (
    CertificateEnd,
    ServerTls,
    end_of,
    ends_of,
    load_tls,
    read_certificates,
)

if TYPE_CHECKING:
    from cryptography import x509

    from pubsub.broker.listeners.listener import Listener

log = Logger()
_SSL = re.compile(r"(haproxy:)?ssl:")
_SOON = timedelta(days=14)
_REPLACE, _RELOAD = "replace it", "send SIGHUP"
_RESTART = "replace it and restart the broker"
_BACKPLANE, _PEER, _ENDPOINT = "backplane", "peer-cert", "endpoint"
_DAY = 86_400.0


def read_tls(protocol: str, endpoint: str, settings: Mapping[str, Any]) -> ServerTls | None:
    """Return the TLS of a listener; raises ConfigurationError."""
    if settings["tls-cert"] and _SSL.match(endpoint):
        raise ConfigurationError(
            f"{protocol}: the endpoint {endpoint!r} has a certificate of its own; use tcp: with "
            "tls-cert, or set tls-cert to nothing for this listener"
        )
    try:
        return load_tls(settings)
    except ConfigurationError as error:
        raise ConfigurationError(f"{protocol}: {error}") from None


class _WatchedEnd(NamedTuple):
    """The end of a certificate that is used over ``protocol``; ``remedy`` is for the log."""

    protocol: str
    end: CertificateEnd
    remedy: str


def _no_chain(_listener: Listener) -> Sequence[x509.Certificate]:
    return ()


class CertificateWatch(Service):
    """Logs the certificates of ``listeners`` when the broker starts, and those that end soon once a
    day and after a reload that changed them. ``seconds`` is the system's time.

    ``backplane`` is the file with the certificate for the backplane, or empty. ``chain_of`` returns
    the certificates in the endpoint string of a listener.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        clock: IReactorTime,
        seconds: Callable[[], float],
        backplane: str = "",
        chain_of: Callable[[Listener], Sequence[x509.Certificate]] = _no_chain,
    ) -> None:
        self._listeners = listeners
        self._backplane = backplane
        self._chain_of = chain_of
        self._clock = clock
        self._seconds = seconds
        self._timer: IDelayedCall | None = None
        # Those of the last look.
        self._known: set[_WatchedEnd] = set()
        self._of_files: list[_WatchedEnd] = []

    def startService(self) -> None:
        """Log the certificates, and begin the daily check."""
        super().startService()  # type: ignore[no-untyped-call]
        for listener, tls in self._served():
            log.info("{protocol}: TLS with the {tls}", protocol=listener.event_protocol, tls=tls)
        self._look()

    def stopService(self) -> None:
        """End the daily check."""
        super().stopService()  # type: ignore[no-untyped-call]
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _served(self) -> Iterator[tuple[Listener, ServerTls]]:
        for listener in self._listeners:
            tls: ServerTls | None = listener.settings.get(TLS)
            if tls is not None:
                yield listener, tls

    def look_again(self) -> None:
        """Look at the certificates that are not those of the last look; called after a reload."""
        if self.running:
            self._report_others(self._known)

    def _look(self) -> None:
        self._timer = self._clock.callLater(_DAY, self._look)
        self.look()

    def look(self) -> None:
        """Warn of the certificates that end soon, and of those that have ended."""
        self._report_others(set())

    def _report_others(self, known: Collection[_WatchedEnd]) -> None:
        self._of_files = list(self._read_files())
        found = [*self._of_listeners(), *self._of_files]
        self._known = set(found)
        for one in found:
            if one not in known:
                self._report(one)

    def _of_listeners(self) -> Iterator[_WatchedEnd]:
        """Yield the ends of the certificates that the listeners present, and of authorities."""
        for listener, tls in self._served():
            for end in tls.ends:
                where = f"{_REPLACE} in tls-ca" if end.setting == "tls-ca" else _REPLACE
                yield _WatchedEnd(listener.event_protocol, end, f"{where} and {_RELOAD}")
        for listener in self._listeners:
            for end in ends_of(_ENDPOINT, self._chain_of(listener)):
                yield _WatchedEnd(listener.event_protocol, end, _RESTART)

    def _read_files(self) -> Iterator[_WatchedEnd]:
        """Yield the ends of the certificates that are read for each connection to another broker
        or to the backplane.
        """
        files = [(_BACKPLANE, "backplane-cert", self._backplane)]
        for listener in self._listeners:
            files.append((listener.event_protocol, _PEER, listener.settings.get(_PEER, "")))
        for protocol, setting, path in files:
            if path:
                # The next connection reports a file that cannot be used.
                with suppress(ConfigurationError):
                    _, chain = read_certificates(setting, path)
                    yield _WatchedEnd(protocol, end_of(setting, chain[0]), _REPLACE)

    def _report(self, watched: _WatchedEnd) -> None:
        end, now = watched.end, datetime.fromtimestamp(self._seconds(), UTC)
        values = {
            "protocol": watched.protocol,
            "subject": end.subject,
            "end": f"{end.expires:%Y-%m-%d}",
            "remedy": watched.remedy,
        }
        if end.expires <= now:
            log.warn(
                "{protocol}: the certificate of {subject} has expired on {end}; {remedy}", **values
            )
        elif end.expires - now < _SOON:
            log.warn("{protocol}: the certificate of {subject} ends on {end}; {remedy}", **values)

    def figures(self) -> list[dict[str, Any]]:
        """Return the ends of the certificates in use; the earliest of those with equal names."""
        found: dict[tuple[str, str, str], float] = {}
        for protocol, end, _ in (*self._of_listeners(), *self._of_files):
            key = protocol, end.setting, end.subject
            expires = end.expires.timestamp()
            found[key] = min(expires, found.get(key, expires))
        return [
            {"protocol": protocol, "setting": setting, "subject": subject, "expires": expires}
            for (protocol, setting, subject), expires in found.items()
        ]
