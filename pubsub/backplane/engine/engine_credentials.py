"""The proofs with which the broker logs in to the engine: a part of its URL, or a file of NATS.

nats-py takes both apart itself, but it sends the escapes of a URL as they are, and a file that is
damaged or written at this moment stops its event loop, which is the broker's, or ends it.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote, urlsplit

from pubsub.broker.credentials.setting_files import read_file
from pubsub.errors import ConfigurationError

_CREDS = "backplane-creds"
_JWT = re.compile(r"-+BEGIN NATS USER JWT-+\s+([\w-]+\.[\w-]+\.[\w-]+)\s+-+END")
# An nkey of a user: two letters for its kind, 32 bytes and a checksum.
_SEED_TEXT = r"SU[A-D][A-Z2-7]{55}"
_SEED = re.compile(rf"-+BEGIN USER NKEY SEED-+\s+({_SEED_TEXT})\s+-+END")
_BARE_SEED = re.compile(rf"\s*({_SEED_TEXT})\s*")
_FORM = """\
-----BEGIN NATS USER JWT-----
{}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{}
------END USER NKEY SEED------
"""


def login(url: str, path: str) -> dict[str, Any]:
    """Return the options of nats-py that log in at ``url``, with the file ``path`` if there is one.

    Raises ConfigurationError if the file cannot be used.
    """
    parts = urlsplit(url)
    options: dict[str, Any] = {}
    if parts.password is not None:
        options["user"] = unquote(parts.username or "")
        options["password"] = unquote(parts.password)
    elif parts.username is not None:
        options["token"] = unquote(parts.username)
    return {**options, **_of_file(path)} if path else options


def _of_file(path: str) -> dict[str, Any]:
    """Return the JWT and the seed of a file of credentials, or the seed that is all of a file."""
    # No error shows a part of the content.
    text = read_file(_CREDS, path).decode("utf-8", "replace")
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is not None and seed is not None:
        from nats.aio.client import RawCredentials

        return {"user_credentials": RawCredentials(_FORM.format(jwt[1], seed[1]))}
    if jwt is None and (bare := _BARE_SEED.fullmatch(text) or seed) is not None:
        return {"nkeys_seed_str": bare[1]}
    lacking = "seed" if jwt is not None else "JWT and no seed"
    raise ConfigurationError(
        f"{_CREDS}: {path} has no {lacking} of a user of NATS; write it with nsc generate creds"
    )
