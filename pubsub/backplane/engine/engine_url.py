"""The URL of the engine and the credentials of the broker: the settings of the backplane."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pubsub.backplane.engine.engine_credentials import login
from pubsub.broker.credentials.setting_files import read_file, warn_if_readable
from pubsub.errors import ConfigurationError
from pubsub.settings import Kind

_SCHEMES = ("nats", "tls")
_PORT = 4222
_EXPECTED = (
    "expected nats://HOST:PORT[,HOST:PORT...] or tls://HOST:PORT; in credentials, % escapes stand "
    "for characters of URLs"
)


class EngineUrls:
    """The servers of one engine. As text it has no credentials."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        self.urls = urls

    @property
    def is_tls(self) -> bool:
        """Whether TLS is demanded."""
        return any(url.startswith("tls:") for url in self.urls)

    def __bool__(self) -> bool:
        return bool(self.urls)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EngineUrls) and self.urls == other.urls

    def __hash__(self) -> int:
        return hash(self.urls)

    def __str__(self) -> str:
        return ",".join(map(shown, self.urls))

    __repr__ = __str__


def shown(url: str) -> str:
    """Return ``url`` without credentials."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _parse(value: object) -> EngineUrls:
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ValueError(_EXPECTED)
    urls: list[str] = []
    for text in filter(None, map(str.strip, listed)):
        before = urlsplit(urls[0]) if urls else None
        url = text
        if "://" not in text:
            # As the first: with its scheme and its credentials.
            if before is None:
                raise ValueError(_EXPECTED)
            user, at, _ = before.netloc.rpartition("@")
            url = f"{before.scheme}://{user}{at}{text}"
        urls.append(_checked(url))
    return EngineUrls(tuple(dict.fromkeys(urls)))


def _checked(url: str) -> str:
    # No error shows the URL, which may have a password.
    try:
        parts = urlsplit(url)
        port = parts.port or _PORT
    except ValueError:
        raise ValueError(_EXPECTED) from None
    if parts.scheme not in _SCHEMES or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(_EXPECTED)
    user, at, _ = parts.netloc.rpartition("@")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{user}{at}{host}:{port}"


ENGINE = Kind("nats|tls://HOST:PORT,...", _parse)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of the connection to the engine. The files are read for each connection.

    ``max_bytes`` bounds the bytes that wait for the engine, and as many that wait for the broker.
    ``replicas`` is on how many servers the shared state is kept, if it is made.
    """

    servers: EngineUrls
    credentials: str
    ca: str
    certificate: str
    key: str
    max_bytes: int
    replicas: int = 1

    def of_nats(self, url: str) -> dict[str, Any]:
        """Return the options of nats-py for a connection to ``url``: TLS and the credentials.

        It reads files, those of the system too, which takes tens of milliseconds. Raises
        ConfigurationError for files that cannot be used.
        """
        return {"tls": self._tls(), **login(url, self.credentials)}

    def _tls(self) -> ssl.SSLContext | None:
        """Return the context that verifies the engine, or None."""
        for name, path in (("ca", self.ca), ("cert", self.certificate), ("key", self.key)):
            if path:
                # Only to report what ssl would report without the name of the setting.
                read_file(f"backplane-{name}", path)
        if not (self.servers.is_tls or self.ca or self.certificate):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            # As from Python 3.13 on: the certificate of a trusted authority need not be a root's.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"backplane-ca, backplane-cert: the files cannot be used for TLS: {error}"
            ) from None
        return context


def engine_options(settings: Mapping[str, Any]) -> EngineOptions | None:
    """Return the options in the broker's settings; None without a backplane.

    Raises ConfigurationError for files that cannot be used.
    """
    servers: EngineUrls = settings["backplane"]
    if not servers:
        return None
    options = EngineOptions(
        servers,
        settings["backplane-creds"],
        settings["backplane-ca"],
        settings["backplane-cert"],
        settings["backplane-key"],
        settings["backplane-bytes"],
        settings["backplane-replicas"],
    )
    if options.key and not options.certificate:
        raise ConfigurationError("backplane-key: needs backplane-cert")
    options.of_nats(servers.urls[0])
    if options.credentials:
        warn_if_readable("backplane-creds", options.credentials)
    if options.certificate:
        # Its group may be that of all servers with certificates.
        warn_if_readable("backplane-key", options.key or options.certificate, by_group=False)
    return options
