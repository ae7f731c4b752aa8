"""The declaration in the ``client.py`` of a protocol, so that a URL can name the protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pubsub.settings import Setting
from pubsub.wire.client_wire import ClientWire, WireOptions


class TokenUse(Enum):
    """Whether a protocol's client presents a token."""

    NONE = "none"
    OPTIONAL = "optional"
    NEEDED = "needed"


@dataclass(frozen=True, slots=True)
class ClientSide:
    """A protocol's client, and its configuration.

    ``make_wire`` makes the wire for ``pubsub.client``; it takes the values of both ``parameters``
    and ``options``. ``parameters`` are given after the ``?`` of a URL, ``options`` beside the URL;
    no two have the same name. ``columns`` can be published by the sink beside topic and value; only
    ``key``, as the sender of a message, is possible. ``port`` is the default port; ``any_topic`` is
    false if only some names of topics can be addressed; ``logs_in`` if a URL can have a user and a
    password.
    """

    make_wire: Callable[[WireOptions], ClientWire]
    columns: tuple[str, ...] = ()
    token: TokenUse = TokenUse.NONE
    parameters: tuple[Setting, ...] = ()
    options: tuple[Setting, ...] = ()
    port: int = 0
    any_topic: bool = True
    logs_in: bool = False
