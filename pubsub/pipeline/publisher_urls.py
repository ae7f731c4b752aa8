"""From a URL to the blocking publisher of its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from pubsub.errors import ConfigurationError
from pubsub.pipeline.connector_options import SinkOptions
from pubsub.protocols.cafe.channels import CHANNELS
from pubsub.protocols.cafe.client import DEFAULT_CHANNELS, CafePublisher
from pubsub.protocols.fast.client import FastPublisher
from pubsub.protocols.nsd.client import NsdPublisher
from pubsub.protocols.rheos.client import RheosPublisher
from pubsub.protocols.spot.client import SpotPublisher
from pubsub.wire.blocking_publisher import Address, BlockingPublisher

HTTP = ("http", "https")
_TLS = "+tls"
_PORTS = {"cafe": 7070, "nsd": 7071, "rheos": 7072, "spot": 7073, "fast": 7074}
_WITH_KEY = ("nsd", "spot")
_CHOICES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "rheos": {"layout": ("spec", "original"), "checksum": ("none", "crc32")}
}


def scheme_of(url: str) -> str:
    """The protocol in a URL, without what encrypts it."""
    return urlsplit(url).scheme.removesuffix(_TLS)


def optional_columns(options: SinkOptions) -> tuple[str, ...]:
    """What can be published beside topic and value."""
    protocol = scheme_of(options.url)
    if protocol in HTTP:
        return ("key", "headers")
    return ("key",) if protocol in _WITH_KEY else ()


def check_url(options: SinkOptions) -> None:
    """Raises ConfigurationError unless the options are such as ``publisher`` takes."""
    protocol = scheme_of(options.url)
    if protocol not in (*HTTP, *_PORTS):
        raise ConfigurationError(
            f"option url: expected http, https or {', '.join(_PORTS)} before ://, not {protocol}"
        )
    if options.channels is not None and protocol != "cafe":
        raise ConfigurationError("option channels is for cafe://")
    token = options.credentials.token is not None or options.credentials.file is not None
    if protocol == "fast" and not token:
        raise ConfigurationError("fast:// needs option token or tokenFile")
    if protocol in _PORTS and protocol != "fast" and token:
        raise ConfigurationError(f"{protocol} has no tokens")
    _channels(options)
    _parameters(options.url)


def publisher(options: SinkOptions) -> BlockingPublisher:
    """One for options that have been checked; nothing is connected yet. Raises OSError."""
    parts = urlsplit(options.url)
    protocol = scheme_of(options.url)
    assert parts.hostname is not None
    port = parts.port or _PORTS[protocol]
    address = Address(parts.hostname, port, parts.scheme.endswith(_TLS))
    match protocol:
        case "cafe":
            return CafePublisher(address, _channels(options), b"spark")
        case "nsd":
            return NsdPublisher(address)
        case "rheos":
            found = _parameters(options.url)
            return RheosPublisher(address, found["layout"], found["checksum"] == "crc32")
        case "spot":
            return SpotPublisher(address)
        case _:
            return FastPublisher(address, options.credentials.read() or "")


def _channels(options: SinkOptions) -> Mapping[int, str]:
    if options.channels is None:
        return DEFAULT_CHANNELS
    try:
        found: Mapping[int, str] = CHANNELS.parse(options.channels)
    except ValueError as error:
        raise ConfigurationError(f"option channels: {error}") from None
    return found


def _parameters(url: str) -> dict[str, str]:
    """What stands after the ? of a URL, each one of its choices, the first if it is not given."""
    choices = _CHOICES.get(scheme_of(url), {})
    found = {name: values[0] for name, values in choices.items()}
    for name, value in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if value not in choices.get(name, ()):
            raise ConfigurationError(f"option url: ?{name}={value} means nothing there")
        found[name] = value
    return found
