"""Deletions of several items by one command: one that is gone already does not keep the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pubsub.commands.api_client import Api

_GONE = ("unknown-topic", "unknown-session")


def delete_each(api: Api, paths: Iterable[str], query: Mapping[str, object] | None = None) -> int:
    """Delete what is at ``paths``, report those that do not exist, and return the exit code.

    Raises RequestFailed for any other error.
    """
    from pubsub.commands.api_client import RequestFailed

    code = 0
    for path in paths:
        try:
            api.delete(path, query)
        except RequestFailed as error:
            if error.code not in _GONE:
                raise
            click.echo(f"pubsub: {error}", err=True)
            code = 1
    return code
