"""From the URL of a sink to HTTP, or to the blocking publisher of an installed protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pubsub.errors import ConfigurationError
from pubsub.pipeline.connector_options import Credentials, SinkOptions
from pubsub.plugin import installed_protocols
from pubsub.settings import Setting, read_all
from pubsub.wire.blocking_publisher import Address, BlockingPublisher
from pubsub.wire.client_side import ClientSide, PublisherOptions, TokenUse

_HTTP = ("http", "https")
_HTTP_COLUMNS = ("key", "headers")
_TLS = "+tls"
_CLIENT = b"spark"


@dataclass(frozen=True, slots=True)
class PublisherFactory:
    """Makes the publishers of a sink's tasks, and is pickled into them.

    ``make_publisher`` is pickled by reference: a worker imports the client of one protocol and
    looks for no plugins.
    """

    make_publisher: Callable[[PublisherOptions], BlockingPublisher]
    address: Address
    values: Mapping[str, Any]
    credentials: Credentials

    def __call__(self) -> BlockingPublisher:
        """Return a publisher, not connected yet. Raises OSError if the token cannot be read."""
        token = self.credentials.read()
        return self.make_publisher(PublisherOptions(self.address, self.values, token, _CLIENT))


@dataclass(frozen=True, slots=True)
class Destination:
    """What can be published at a URL beside topic and value, and by what; None stands for HTTP."""

    optional_columns: tuple[str, ...]
    publishers: PublisherFactory | None


def client_options() -> frozenset[str]:
    """Return the names of the options that only some protocols have."""
    return frozenset(name for client in _clients().values() for name in _names(client.options))


def find_destination(options: SinkOptions) -> Destination:
    """Check ``options`` and return where they lead. Raises ConfigurationError."""
    parts = urlsplit(options.url)
    name = parts.scheme.removesuffix(_TLS)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    if name in _HTTP:
        _check_options(options, ())
        _check_parameters(name, parameters, ())
        return Destination(_HTTP_COLUMNS, None)
    protocol = installed_protocols().get(name)
    client = None if protocol is None else protocol.client
    if protocol is None or client is None:
        raise _no_client(name, installed=protocol is not None)
    _check_token(name, client, options.credentials)
    _check_options(options, client.options)
    _check_parameters(name, parameters, client.parameters)
    values = _parse(client.options, options.of_protocol, "option ")
    values |= _parse(client.parameters, parameters, "option url: ?")
    assert parts.hostname is not None
    address = Address(parts.hostname, parts.port or protocol.port, parts.scheme.endswith(_TLS))
    publishers = PublisherFactory(client.make_publisher, address, values, options.credentials)
    return Destination(client.columns, publishers)


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
    given = credentials.token is not None or credentials.file is not None
    if client.token is TokenUse.NEEDED and not given:
        raise ConfigurationError(f"{name}:// needs option token or tokenFile")
    if client.token is TokenUse.NONE and given:
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


def _parse(settings: Sequence[Setting], given: Mapping[str, str], prefix: str) -> dict[str, Any]:
    try:
        return read_all(settings, given)
    except ValueError as error:
        raise ConfigurationError(f"{prefix}{error}") from None
