"""The certificates of the listeners: read with the configuration, and reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from twisted.application.service import Service
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from pubsub.broker.tls_settings import TLS
from pubsub.errors import ConfigurationError
from pubsub.wire.server_tls import (
    CertificateEnd,
    ServerTls,
    end_of,
    load_tls,
    read_certificates,
)

if TYPE_CHECKING:
    from pubsub.broker.listener import Listener

log = Logger()
_SSL = re.compile(r"(haproxy:)?ssl:")
_SOON = timedelta(days=14)
_REPLACE, _RELOAD = "replace it", "send SIGHUP"
_BACKPLANE = "backplane"
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


class CertificateWatch(Service):
    """Logs the certificates of ``listeners`` when the broker starts, and those that end soon once a
    day and after a reload that changed them. ``seconds`` is the system's time.

    ``backplane`` is the file with the certificate for the backplane, or empty.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        clock: IReactorTime,
        seconds: Callable[[], float],
        backplane: str = "",
    ) -> None:
        self._listeners = listeners
        self._backplane = backplane
        self._clock = clock
        self._seconds = seconds
        self._timer: IDelayedCall | None = None
        self._known: dict[Listener, ServerTls] = {}
        self._known_of_backplane: CertificateEnd | None = None

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
            known, self._known = self._known, dict(self._served())
            for listener, tls in self._known.items():
                if known.get(listener) != tls:
                    self._check(listener, tls)
            self._look_at_backplane()

    def _look(self) -> None:
        self._timer = self._clock.callLater(_DAY, self._look)
        self.look()

    def look(self) -> None:
        """Warn of the certificates that end soon, and of those that have ended."""
        self._known = dict(self._served())
        for listener, tls in self._known.items():
            self._check(listener, tls)
        self._known_of_backplane = None
        self._look_at_backplane()

    def _look_at_backplane(self) -> None:
        """Look at the certificate for the backplane, which is read for each connection, if it is
        not that of the last look."""
        if not self._backplane:
            return
        try:
            _, (found, *_) = read_certificates("backplane-cert", self._backplane)
        except ConfigurationError:
            # The next connection will report it.
            return
        end = end_of("backplane-cert", found)
        if end != self._known_of_backplane:
            self._known_of_backplane = end
            self._report(_BACKPLANE, end, _REPLACE)

    def _check(self, listener: Listener, tls: ServerTls) -> None:
        for end in tls.ends:
            where = f"{_REPLACE} in tls-ca" if end.setting == "tls-ca" else _REPLACE
            self._report(listener.event_protocol, end, f"{where} and {_RELOAD}")

    def _report(self, protocol: str, end: CertificateEnd, remedy: str) -> None:
        now = datetime.fromtimestamp(self._seconds(), UTC)
        values = {
            "protocol": protocol,
            "subject": end.subject,
            "end": f"{end.expires:%Y-%m-%d}",
            "remedy": remedy,
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
        for protocol, end in self._ends():
            key = protocol, end.setting, end.subject
            expires = end.expires.timestamp()
            found[key] = min(expires, found.get(key, expires))
        return [
            {"protocol": protocol, "setting": setting, "subject": subject, "expires": expires}
            for (protocol, setting, subject), expires in found.items()
        ]

    def _ends(self) -> Iterator[tuple[str, CertificateEnd]]:
        for listener, tls in self._served():
            for end in tls.ends:
                yield listener.event_protocol, end
        if self._known_of_backplane is not None:
            yield _BACKPLANE, self._known_of_backplane
