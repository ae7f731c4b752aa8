"""Master secrets from the configuration: the ``[keys]`` table and the setting ``secret-file``."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from pubsub.broker.master_secrets import HMACS, Secret, parse_end, read_public_key, read_secret
from pubsub.errors import ConfigurationError
from pubsub.server.file_tables import check_keys


def read_secrets(broker: Mapping[str, Any], table: object) -> list[Secret]:
    """Return the secrets of ``[keys]`` and of ``secret-file``; raises ConfigurationError.

    ``broker`` has the values of the broker's settings. Each table ``[keys.<id>]`` has
    ``secret-file`` and optionally ``algorithm`` (HS256), or ``public-key-file`` for EdDSA;
    and optionally ``ends``, a date and time.
    """
    if not isinstance(table, dict) or not all(isinstance(t, dict) for t in table.values()):
        raise ConfigurationError("keys: expected tables, [keys.ID]")
    weak = broker["allow-weak-secret"]
    secrets = [_secret(id, entry, weak) for id, entry in table.items()]
    if broker["secret-file"] and "secret-file" in table:
        raise ConfigurationError("keys: the id secret-file is reserved for the setting secret-file")
    if broker["secret-file"]:
        secrets.append(read_secret("secret-file", broker["secret-file"], "HS256", inf, weak))
    return secrets


def _secret(id: str, entry: Mapping[str, Any], allow_weak: bool) -> Secret:
    where = f"[keys.{id if id.isprintable() else ascii(id)}] "
    if "secret" in entry:
        raise ConfigurationError(
            f"{where}secret: not accepted; write it to a file and use secret-file"
        )
    check_keys(where, entry, ("algorithm", "secret-file", "public-key-file", "ends"))
    try:
        ends = parse_end(entry["ends"]) if "ends" in entry else inf
    except ValueError as error:
        raise ConfigurationError(f"{where}ends: {error}") from None
    algorithm = entry.get("algorithm", "EdDSA" if "public-key-file" in entry else "HS256")
    if algorithm == "EdDSA" and isinstance(entry.get("public-key-file"), str):
        return read_public_key(id, entry["public-key-file"], ends)
    if algorithm in HMACS and isinstance(entry.get("secret-file"), str):
        return read_secret(id, entry["secret-file"], algorithm, ends, allow_weak)
    raise ConfigurationError(
        f"{where}expected secret-file with an algorithm of {', '.join(HMACS)}, "
        "or public-key-file with EdDSA"
    )
