"""The URLs of brokers in option ``url``."""

from __future__ import annotations

from urllib.parse import urlsplit

from pubsub.errors import ConfigurationError

_HTTP = ("http", "https")


def source_urls(value: str) -> tuple[str, ...]:
    """Return the brokers to read from. Raises ConfigurationError."""
    urls = _split(value)
    for each in urls:
        if urlsplit(each).scheme not in _HTTP:
            raise ConfigurationError(
                f"option url: expected the HTTP API, http:// or https://, not {each!r}"
            )
    return urls


def sink_urls(value: str) -> tuple[str, ...]:
    """Return the brokers to write to. Raises ConfigurationError."""
    first, *others = urls = _split(value)
    for each in others:
        if _way(each) != _way(first):
            raise ConfigurationError(
                f"option url: {first} and {each} have different protocols or parameters; several "
                "brokers are written to in the same way"
            )
    return urls


def _way(url: str) -> tuple[bool, str, str]:
    """Return what several brokers have in common: http and https are the same."""
    split = urlsplit(url)
    is_http = split.scheme in _HTTP
    return is_http, "" if is_http else split.scheme, split.query


def _split(value: str) -> tuple[str, ...]:
    urls = tuple(each.strip().rstrip("/") for each in value.split(","))
    for each in urls:
        _check_url(each)
    if len(set(urls)) < len(urls):
        raise ConfigurationError("option url: the same broker is named twice")
    return urls


def _check_url(url: str) -> None:
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError:
        raise ConfigurationError("option url: not a valid URL") from None
    if split.username is not None or split.password is not None:
        # The URL is not shown, as the part before the @ is a secret.
        raise ConfigurationError(
            "option url: remove the user and password, which logs would show; use option token"
        )
    if not split.scheme or not split.hostname or port == 0:
        raise ConfigurationError(f"option url: expected scheme://host:port, not {url!r}")
