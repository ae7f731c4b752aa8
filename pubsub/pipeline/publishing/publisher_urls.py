"""Resolves the URL of a sink: to HTTP, or to the client of an installed protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pubsub.client.blocking import Client, connect
from pubsub.client.notices import Notice
from pubsub.errors import ConfigurationError
from pubsub.pipeline.options.connector_options import Credentials, SinkOptions
from pubsub.pipeline.publishing.sink_publisher import SinkPublisher
from pubsub.plugin import installed_protocols
from pubsub.settings import Setting, read_all
from pubsub.wire.client_side import ClientSide, TokenUse

_HTTP = ("http", "https")
_HTTP_COLUMNS = ("key", "headers")
_TLS = "+tls"
_CLIENT = "spark"
# A broker holds publishers for a slow subscriber, by default for less time than this.
_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class PublisherFactory:
    """Makes the publishers of a sink's tasks, and is pickled into them.

    ``url`` may have several brokers, separated by commas, of which each publisher takes the first
    that answers. ``options`` are those beside the URL that belong to the protocol; ``timeout`` is
    that of the client library, in seconds.
    """

    url: str
    options: Mapping[str, str]
    credentials: Credentials
    timeout: float = _SECONDS

    def __call__(self) -> SinkPublisher:
        """Return a publisher, not connected yet. Raises OSError if the token cannot be read."""
        return SinkPublisher(self.url, self._connect)

    def _connect(self, on_event: Callable[[Notice], None]) -> Client:
        given: dict[str, Any] = dict(self.options)
        return connect(
            self.url,
            client_id=_CLIENT,
            token=self.credentials.read(),
            timeout=self.timeout,
            on_event=on_event,
            **given,
        )


@dataclass(frozen=True, slots=True)
class UrlColumns:
    """The columns beside topic and value that a URL takes, and its protocol; None is HTTP."""

    optional_columns: tuple[str, ...]
    publishers: PublisherFactory | None


def client_options() -> frozenset[str]:
    """Return the names of the options that only some protocols have."""
    return frozenset(name for client in _clients().values() for name in _names(client.options))


def find_destination(options: SinkOptions) -> UrlColumns:
    """Check ``options`` and return where they lead. Raises ConfigurationError."""
    parts = urlsplit(options.urls[0])
    name = parts.scheme.removesuffix(_TLS)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    if name in _HTTP:
        _check_options(options, ())
        _check_parameters(name, parameters, ())
        return UrlColumns(_HTTP_COLUMNS, None)
    protocol = installed_protocols().get(name)
    client = None if protocol is None else protocol.client
    if protocol is None or client is None:
        raise _no_client(name, installed=protocol is not None)
    _check_token(name, client, options.credentials)
    _check_options(options, client.options)
    _check_parameters(name, parameters, client.parameters)
    _parse(client.options, options.of_protocol, "option ")
    _parse(client.parameters, parameters, "option url: ?")
    urls = ",".join(options.urls)
    publishers = PublisherFactory(urls, dict(options.of_protocol), options.credentials)
    return UrlColumns(client.columns, publishers)


def _clients() -> dict[str, ClientSide]:
    """The protocols that can be published to, by name."""
    found = {name: protocol.client for name, protocol in installed_protocols().items()}
    return {name: client for name, client in found.items() if client is not None}


def _names(settings: Sequence[Setting]) -> list[str]:
    return [setting.name for setting in settings]


def _no_client(name: str, installed: bool) -> ConfigurationError:
    why = "has no client to publish with" if installed else "is not installed"
    known = ", ".join((*_HTTP, *_clients()))
    return ConfigurationError(f"option url: the protocol {name} {why}; choose from {known}")


def _check_token(name: str, client: ClientSide, credentials: Credentials) -> None:
    if client.token is TokenUse.NEEDED and not credentials.given:
        raise ConfigurationError(f"{name}:// needs option token or tokenFile")
    if client.token is TokenUse.NONE and credentials.given:
        raise ConfigurationError(f"{name}:// takes no option token or tokenFile")


def _check_options(options: SinkOptions, taken: Sequence[Setting]) -> None:
    for option in options.of_protocol:
        if option not in _names(taken):
            owners = [name for name, each in _clients().items() if option in _names(each.options)]
            known = " and ".join(f"{name}://" for name in owners)
            raise ConfigurationError(f"option {option} is for {known}")


def _check_parameters(name: str, given: Mapping[str, str], taken: Sequence[Setting]) -> None:
    for parameter, value in given.items():
        if parameter not in _names(taken):
            raise ConfigurationError(
                f"option url: ?{parameter}={value}: {name}:// has no such parameter"
            )


def _parse(settings: Sequence[Setting], given: Mapping[str, str], prefix: str) -> None:
    try:
        read_all(settings, given)
    except ValueError as error:
        raise ConfigurationError(f"{prefix}{error}") from None
