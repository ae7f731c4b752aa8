"""A broker's URL: the protocol, the address, and the parameters of the protocol's wire.

    cafe://host:7070?channels=0-15,40:orders    nsd+tls://host    https://host:7080

Several brokers have a list of URLs, or a text in which commas separate them.

A user and a password, with % escapes, may stand before the host, where the protocol has passwords.
They may also be given beside the URL, and are kept apart from the rest, which is shown and logged.
A token is never part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pubsub.client.client_errors import InvalidUrl
from pubsub.errors import ConfigurationError
from pubsub.settings import read_all
from pubsub.wire.client_side import ClientSide, TokenUse
from pubsub.wire.client_wire import ClientWire, UserLogin, WireOptions
from pubsub.wire.url_list import split_urls

_UserTexts = tuple[str | None, str | None]
_TLS = "+tls"
# The usual names of schemes.
_SCHEMES = {"http+tls": "https"}
WIRES = ("cafe", "fast", "nsd", "rheos", "spot", "http")
"""The protocols that come with the package. Others are found through Twisted's plugins."""


@dataclass(frozen=True, slots=True)
class ClientUrl:
    """A URL that was understood."""

    name: str
    host: str
    port: int
    tls: bool
    side: ClientSide
    values: dict[str, Any]
    login: UserLogin | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = f"{self.name}{_TLS}" if self.tls else self.name
        return f"{_SCHEMES.get(scheme, scheme)}://{host}:{self.port}"

    def wire(self, client_id: bytes, token: str | None) -> ClientWire:
        """Return the wire of a client. Raises InvalidUrl."""
        if self.side.token is TokenUse.NEEDED and token is None:
            raise InvalidUrl(
                f"{self.name}:// needs a token: set PUBSUB_TOKEN, or name the file with the token "
                "(token_file=, --token-file)"
            )
        used = None if self.side.token is TokenUse.NONE else token
        try:
            return self.side.make_wire(
                WireOptions(
                    client_id, used, self.values, self.host, self.port, self.tls, self.login
                )
            )
        except ConfigurationError as error:
            raise InvalidUrl(str(error)) from None


def parse_urls(
    urls: str | Sequence[str],
    options: Mapping[str, object] | None = None,
    others: Iterable[str] = (),
    login: _UserTexts = (None, None),
) -> tuple[ClientUrl, ...]:
    """Understand the URLs of one or several brokers, as ``parse_url`` does, each once.

    Raises InvalidUrl, also for none, or if they differ in more than host and port.
    """
    found: list[ClientUrl] = []
    texts = split_urls(urls) if isinstance(urls, str) else urls
    for url in texts:
        if not url and len(texts) > 1:
            raise InvalidUrl("a URL is empty; leave it out, with the comma beside it")
        one = parse_url(url, options, others, login)
        if one not in found:
            found.append(one)
    if not found:
        raise InvalidUrl("there is no URL; name one broker at least, as cafe://HOST:PORT")
    first, *more = found
    for one in more:
        if (one.name, one.tls) != (first.name, first.tls):
            raise InvalidUrl(f"{first} and {one} are of different protocols; name one protocol")
        if one.values != first.values:
            raise InvalidUrl(f"{first} and {one} have different parameters; give all the same")
        if one.login != first.login:
            raise InvalidUrl(f"{first} and {one} have different users or passwords; give one user")
    return tuple(found)


def parse_url(
    url: str,
    options: Mapping[str, object] | None = None,
    others: Iterable[str] = (),
    login: _UserTexts = (None, None),
) -> ClientUrl:
    """Understand ``url``; ``options`` are parameters given beside it. Raises InvalidUrl.

    ``others`` are names that the caller might have meant by an option that is no parameter.
    ``login`` is the user and the password if they are given beside the URL.
    """
    if "://" not in url:
        raise InvalidUrl("the URL has no protocol; write http://HOST:PORT or cafe://HOST:PORT")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidUrl("the URL is malformed") from None
    if set(", ") & set(parts.netloc.rpartition("@")[2]):
        raise InvalidUrl(
            "the host of the URL has a comma or a space; several URLs each have their protocol, as "
            "cafe://HOST:PORT,cafe://HOST:PORT"
        )
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise InvalidUrl("the port of the URL is not a number from 1 to 65535")
    name, tls = parts.scheme.removesuffix(_TLS), parts.scheme.endswith(_TLS)
    if name == "https":
        name, tls = "http", True
    side = find_side(name)
    user = _user_login(name, side, (parts.username, parts.password), login)
    if not parts.hostname:
        raise InvalidUrl(f"the URL has no host; write {parts.scheme}://HOST:PORT")
    if parts.path not in ("", "/") or parts.fragment:
        raise InvalidUrl(f"the URL of a broker has no path: {parts.scheme}://HOST:PORT")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    values = _values(name, side, given, options or {}, others)
    return ClientUrl(name, parts.hostname, port or side.port, tls, side, values, user)


def _user_login(
    name: str, side: ClientSide, found: _UserTexts, given: _UserTexts
) -> UserLogin | None:
    """Return the user and the password: found in the URL, or given. Raises InvalidUrl."""
    if found == given == (None, None):
        return None
    if not side.logs_in:
        takes_none = side.token is TokenUse.NONE
        proof = "a certificate with tls_cert=" if takes_none else "token= or token_file="
        if given != (None, None):
            raise InvalidUrl(f"{name} has no users: give {proof}")
        raise InvalidUrl(f"a URL of {name} contains no credentials: give {proof}")
    if any(None not in both for both in zip(found, given, strict=True)):
        raise InvalidUrl("the user or the password is in the URL and an option: give it once")
    user, password = (
        other if one is None else unquote(one) for one, other in zip(found, given, strict=True)
    )
    if not user or not password:
        raise InvalidUrl(
            f"a user has a password: give user= and password=, or {name}://USER:PASSWORD@HOST"
        )
    return UserLogin(user, password)


def _values(
    name: str,
    side: ClientSide,
    given: Mapping[str, str],
    options: Mapping[str, object],
    others: Iterable[str],
) -> dict[str, Any]:
    settings = (*side.parameters, *side.options)
    known = [setting.name for setting in settings]
    # A keyword of Python has no hyphens.
    keywords = {one.replace("-", "_"): one for one in known}
    named = {keywords.get(key, key): value for key, value in options.items()}
    values = {**given, **named}
    for parameter in values:
        if parameter not in known:
            meant = [*known, *others] if parameter in options else known
            hint = _hint(parameter, known, meant)
            raise InvalidUrl(f"{name}:// has no parameter {parameter!r}{hint}")
    try:
        return read_all(settings, values)
    except ValueError as error:
        raise InvalidUrl(f"{name}:// {error}") from None


def _hint(parameter: str, known: list[str], meant: list[str]) -> str:
    """Return the end of the error for an unknown parameter."""
    # Most programs make no such mistake, and the import takes a millisecond.
    from difflib import get_close_matches

    near = get_close_matches(parameter, meant, 1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; it has {', '.join(known)}" if known else ""


def find_side(name: str) -> ClientSide:
    """Return the client side of a protocol. Raises InvalidUrl."""
    side: ClientSide | None = None
    if name in WIRES:
        # Looking for plugins takes longer than all other imports of a short program.
        module = "pubsub.client.http_wire" if name == "http" else f"pubsub.protocols.{name}.client"
        if find_spec(module) is not None:
            side = import_module(module).CLIENT
    elif name:
        from pubsub.plugin import installed_protocols

        protocol = installed_protocols().get(name)
        side = None if protocol is None else protocol.client
        if protocol is not None and side is not None and not side.port:
            side = replace(side, port=protocol.port)
    if side is None:
        known = ", ".join(f"{one}://" for one in (*WIRES, "https"))
        raise InvalidUrl(f"there is no client for {name!r}; choose from {known}")
    return side


def wires_for(topic: str, but: str) -> list[str]:
    """Return the protocols, except ``but``, that can address any topic."""
    found = []
    for name in WIRES:
        if name != but:
            try:
                side = find_side(name)
            except InvalidUrl:
                continue
            if side.any_topic:
                found.append(name)
    return found
