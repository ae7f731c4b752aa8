"""The options of ``connect`` in all shells: address, credentials and time limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import iscoroutinefunction, signature
from typing import Generic, ParamSpec, TypeVar

from pubsub.client.client_errors import InvalidUrl
from pubsub.client.client_tls import TlsOptions
from pubsub.client.client_url import ClientUrl, parse_urls
from pubsub.client.credentials import Secret, read_token
from pubsub.client.link_timing import Timing
from pubsub.client.notices import Notice
from pubsub.wire.client_wire import ClientWire

API_VARIABLE = "PUBSUB_API"
_MIB = 1024 * 1024
_Arguments = ParamSpec("_Arguments")
_Client = TypeVar("_Client")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The parsed arguments of ``connect``."""

    targets: tuple[ClientUrl, ...]
    wire: ClientWire
    client_id: str | None
    token: Secret | None
    tls: TlsOptions
    api: str | Sequence[str] | None
    timing: Timing
    timeout: float
    queue_bytes: int
    feed_bytes: int
    on_event: Callable[[Notice], None] | None = field(repr=False, default=None)

    def token_text(self) -> str | None:
        """Return the token that is in use."""
        return None if self.token is None else self.token.reveal()

    @property
    def target(self) -> ClientUrl:
        """The first URL. The others differ from it in host and port only."""
        return self.targets[0]

    @property
    def shown(self) -> str:
        """The URLs, for messages."""
        return ", ".join(map(str, self.targets))

    def api_urls(self) -> tuple[ClientUrl, ...]:
        """Return the URLs of the HTTP API, or none. Raises InvalidUrl, which names the option."""
        if self.api is None:
            return ()
        try:
            return parse_urls(self.api)
        except InvalidUrl as error:
            raise InvalidUrl(f"api= or PUBSUB_API: {error}") from None


def read_options(
    url: str | Sequence[str],
    *,
    client_id: str | None = None,
    token: str | None = None,
    user: str | None = None,
    password: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    api: str | Sequence[str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    timeout: float = 30.0,
    queue_bytes: int = 8 * _MIB,
    feed_bytes: int = 8 * _MIB,
    timing: Timing | None = None,
    on_event: Callable[[Notice], None] | None = None,
    **parameters: object,
) -> ClientOptions:
    """Check the arguments of ``connect``. Raises InvalidUrl, and TypeError for a wrong type.

    ``url`` and ``api`` each may be several URLs, of brokers that stand for one another.
    ``timeout`` is the number of seconds that a publish waits for room in the queue, and for its
    confirmation. ``queue_bytes`` bounds messages that are published and not confirmed,
    ``feed_bytes`` those that a subscription has received and its program has not taken.
    ``parameters`` are those of the protocol, as in the URL.
    """
    texts = {"client_id": client_id, "token": token, "user": user, "password": password}
    _check_urls({"the URL": url, "api": "" if api is None else api})
    _check_types(texts, (timeout, queue_bytes, feed_bytes), on_event)
    targets = parse_urls(url, parameters, read_options.__kwdefaults__ or (), (user, password))
    tls = TlsOptions.of(tls_ca, tls_cert, tls_key)
    tls.check()
    secret = read_token(token, token_file)
    wire = targets[0].wire((client_id or "").encode(), None if secret is None else secret.reveal())
    where = (os.environ.get(API_VARIABLE) if api is None else api) or None
    return ClientOptions(
        targets,
        wire,
        client_id,
        secret,
        tls,
        where,
        timing or Timing(connect=min(10.0, timeout)),
        timeout,
        queue_bytes,
        feed_bytes,
        on_event,
    )


class TakesOptions(Generic[_Arguments]):
    """Makes a ``connect`` with the arguments of ``read``, which returns the options.

    The decorated function takes the options, and may have more arguments with names. Type checkers
    see the arguments of ``read`` alone; the parameters of protocols, and those, are among them.
    """

    def __init__(self, read: Callable[_Arguments, ClientOptions]) -> None:
        self._read = read

    def __call__(self, make: Callable[..., _Client]) -> Callable[_Arguments, _Client]:
        """Return ``make`` with the arguments of ``read`` in the place of its options."""
        read, shown = self._read, signature(make)
        _, *more = shown.parameters.values()

        @wraps(make)
        def connect(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Client:
            own = {one.name: kwargs.pop(one.name) for one in more if one.name in kwargs}
            return make(read(*args, **kwargs), **own)

        *first, parameters = signature(read).parameters.values()
        connect.__signature__ = shown.replace(  # type: ignore[attr-defined]
            parameters=[*first, *more, parameters]
        )
        return connect


takes_options = TakesOptions(read_options)
"""For the ``connect`` of each shell."""


def _check_urls(urls: Mapping[str, object]) -> None:
    """Raise TypeError unless each of these is a URL, or several."""
    for name, given in urls.items():
        for one in given if isinstance(given, list | tuple) else (given,):
            if not isinstance(one, str):
                raise TypeError(f"{name} must be str, not {type(one).__name__}, or a list of str")


def _check_types(texts: Mapping[str, object], limits: tuple[float, ...], on_event: object) -> None:
    """Raise TypeError for what would fail later, and then with an error that does not name it.

    Raises InvalidUrl for a limit that is not greater than 0.
    """
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise TypeError(f"{name} must be str, not {type(text).__name__}")
    for limit in limits:
        if not isinstance(limit, int | float):
            raise TypeError(f"timeout, queue_bytes and feed_bytes must be numbers, not {limit!r}")
        # Not a number is neither greater nor less.
        if not limit > 0:
            raise InvalidUrl("timeout, queue_bytes and feed_bytes must be greater than 0")
    if on_event is not None and not callable(on_event):
        raise TypeError(f"on_event must be a function, not {type(on_event).__name__}")
    if iscoroutinefunction(on_event):
        # Its coroutine would never run.
        raise TypeError("on_event must be a function without async; it may create a task")
