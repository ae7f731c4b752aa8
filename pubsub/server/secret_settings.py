"""Master secrets from the configuration: the ``[keys]`` table and the setting ``secret-file``.

The sets of public keys that are fetched have tables there too; their URLs are checked here, and
nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from math import inf
from typing import Any
from urllib.parse import urlsplit

from pubsub.broker.access_rules.access_table import ACTIONS
from pubsub.broker.credentials.master_secrets import (
    HMACS,
    PUBLIC_ALGORITHMS,
    REFRESH_SECONDS,
    KeySource,
    MasterSecret,
)
from pubsub.broker.credentials.secret_files import (
    parse_end,
    read_key_set,
    read_public_key,
    read_secret,
)
from pubsub.errors import ConfigurationError
from pubsub.server.file_tables import check_keys
from pubsub.settings import FILE, number
from pubsub.wire.outgoing_tls import ClientFiles

JWKS = "jwks"
"""The prefix of the keys of a set that is fetched."""
_FILES = ("secret-file", "public-key-file", "jwks-file")
_CLAIMS = ("issuer", "audience", "ends", "actions")
_KEYS = (*_FILES, "algorithm", *_CLAIMS)
_URL = f"{JWKS}-url"
_URL_KEYS = (_URL, f"{JWKS}-ca", f"{JWKS}-refresh", *_CLAIMS)
_SECRET_FILE = "secret-file"
# Of tokens that others issue, unless the table has ``actions``.
_OF_OTHERS = frozenset(ACTIONS) - {"admin"}
_REFRESH = number(1, 86_400)


def read_secrets(broker: Mapping[str, Any], table: object) -> list[MasterSecret]:
    """Return the secrets of ``[keys]`` and of ``secret-file``; raises ConfigurationError.

    ``broker`` has the values of the broker's settings. Each table ``[keys.<id>]`` has
    ``secret-file`` and optionally ``algorithm`` (HS256), or ``public-key-file``, or ``jwks-file``
    with a set of public keys; and optionally ``issuer``, ``audience``, ``actions``, and
    ``ends``, a date and time.
    """
    tables = _tables(table)
    weak = broker["allow-weak-secret"]
    files = {id: entry for id, entry in tables.items() if _URL not in entry}
    secrets = [secret for id, entry in files.items() for secret in _secrets(id, entry, weak)]
    if broker["secret-file"] and "secret-file" in tables:
        raise ConfigurationError("keys: the id secret-file is reserved for the setting secret-file")
    if broker["secret-file"]:
        secrets.append(read_secret("secret-file", broker["secret-file"], "HS256", inf, weak))
    return secrets


def read_key_sources(table: object) -> list[KeySource]:
    """Return the sets of ``[keys]`` that are fetched; raises ConfigurationError.

    Each table ``[keys.<id>]`` with ``jwks-url`` is one; optionally with ``jwks-ca``, a file with
    authorities, ``jwks-refresh`` in seconds, and ``issuer``, ``audience``, ``ends`` and
    ``actions``.
    """
    return [_source(id, entry) for id, entry in _tables(table).items() if _URL in entry]


def issuer_actions(table: object) -> dict[str, frozenset[str] | None]:
    """Return the actions that tokens may permit, by the id of the table of their secret.

    None stands for all actions. The setting ``secret-file`` counts as a table. No file is read.
    Raises ConfigurationError.
    """
    found = {id: _actions(_where(id), entry) for id, entry in _tables(table).items()}
    return {_SECRET_FILE: None, **found}


def _actions(where: str, entry: Mapping[str, Any]) -> frozenset[str] | None:
    given = entry.get("actions")
    if given is None:
        return _OF_OTHERS if f"{JWKS}-file" in entry or _URL in entry else None
    words = given.split(",") if isinstance(given, str) else given
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigurationError(f"{where}actions: expected text or a list of text")
    actions = {word.strip() for word in words}
    if actions == {"*"}:
        return None
    if not actions.issubset(ACTIONS):
        raise ConfigurationError(f"{where}actions: expected * or some of {', '.join(ACTIONS)}")
    return frozenset(actions)


def _tables(table: object) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(table, dict) or not all(isinstance(t, dict) for t in table.values()):
        raise ConfigurationError("keys: expected tables, [keys.ID]")
    return table


def _where(id: str) -> str:
    return f"[keys.{id if id.isprintable() else ascii(id)}] "


def _source(id: str, entry: Mapping[str, Any]) -> KeySource:
    where = _where(id)
    others = [name for name in _FILES if name in entry]
    if others:
        raise ConfigurationError(f"{where}{_URL} and {others[0]} are given; give one of them")
    check_keys(where, entry, _URL_KEYS)
    if "/" in id:
        raise ConfigurationError(f"{where}expected an id without /, as ids of its keys have one")
    ends, issuer, audience = _claims(where, entry)
    url = entry[_URL]
    problem = _problem_of(url) if isinstance(url, str) else "text"
    if problem:
        raise ConfigurationError(f"{where}{_URL}: expected {problem}")
    ca = (_path(where, f"{JWKS}-ca", entry) or "") if f"{JWKS}-ca" in entry else ""
    try:
        seconds = _REFRESH.parse(entry.get(f"{JWKS}-refresh", REFRESH_SECONDS))
        ClientFiles(JWKS, ca).check()
    except ValueError as error:
        raise ConfigurationError(f"{where}{JWKS}-refresh: {error}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}{error}") from None
    actions = _actions(where, entry)
    return KeySource(id, url, ca, seconds, ends, issuer, audience, actions)


def _problem_of(url: str) -> str:
    """Return the requirement that a URL does not meet; empty if it can be used."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "a URL"
    if not url.isascii() or not url.isprintable() or " " in url or not host or port == 0:
        return "a URL such as https://login.example.com/keys, in ASCII"
    if "@" in parts.netloc or parts.fragment:
        return "a URL without a user, a password and a fragment"
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        return "a URL that begins with https:, or with http: on loopback"
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _claims(where: str, entry: Mapping[str, Any]) -> tuple[float, str, frozenset[str]]:
    """Return ``ends``, ``issuer`` and ``audience`` of a table."""
    try:
        ends = parse_end(entry["ends"]) if "ends" in entry else inf
    except ValueError as error:
        raise ConfigurationError(f"{where}ends: {error}") from None
    issuer, audience = entry.get("issuer", ""), _audience(where, entry.get("audience", []))
    if not isinstance(issuer, str):
        raise ConfigurationError(f"{where}issuer: expected text")
    return ends, issuer, audience


def _secrets(id: str, entry: Mapping[str, Any], allow_weak: bool) -> list[MasterSecret]:
    where = _where(id)
    if "secret" in entry:
        raise ConfigurationError(
            f"{where}secret: not accepted; write it to a file and use secret-file"
        )
    check_keys(where, entry, _KEYS)
    ends, issuer, audience = _claims(where, entry)
    actions = _actions(where, entry)
    return [
        replace(secret, issuer=issuer, audience=audience, table=id, actions=actions)
        for secret in _read(where, id, entry, ends, allow_weak)
    ]


def _read(
    where: str, id: str, entry: Mapping[str, Any], ends: float, allow_weak: bool
) -> list[MasterSecret]:
    files = [name for name in _FILES if name in entry]
    path = _path(where, files[0], entry) if len(files) == 1 else None
    algorithm = entry.get("algorithm")
    if isinstance(path, str) and files == ["secret-file"] and algorithm in (None, *HMACS):
        return [read_secret(id, path, algorithm or "HS256", ends, allow_weak)]
    if isinstance(path, str) and files == ["public-key-file"]:
        found = read_public_key(id, path, ends)
        if algorithm in (None, found.algorithm):
            return [found]
    if isinstance(path, str) and files == ["jwks-file"] and algorithm is None:
        return read_key_set(id, path, ends)
    raise ConfigurationError(
        f"{where}expected secret-file with an algorithm of {', '.join(HMACS)}; or public-key-file, "
        f"with that of the key, if any, of {', '.join(PUBLIC_ALGORITHMS)}; or jwks-file or jwks-url"
    )


def _audience(where: str, value: object) -> frozenset[str]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ConfigurationError(f"{where}audience: expected text or a list of text")
    return frozenset(listed)


def _path(where: str, name: str, entry: Mapping[str, Any]) -> str | None:
    """Return the path in ``entry``; None if it is not a text."""
    if not isinstance(entry[name], str):
        return None
    try:
        path: str = FILE.parse(entry[name])
    except ValueError as error:
        raise ConfigurationError(f"{where}{name}: {error}") from None
    return path
