"""What the ``client.py`` of a protocol declares, so that a URL can name the protocol.

``ClientSide`` says what a URL and its options may contain, and makes the blocking publisher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pubsub.settings import Setting
from pubsub.wire.blocking_publisher import Address, BlockingPublisher
from pubsub.wire.client_wire import ClientWire, WireOptions


class TokenUse(Enum):
    """Whether a protocol's client presents a token."""

    NONE = "none"
    OPTIONAL = "optional"
    NEEDED = "needed"


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """What a publisher is made from.

    ``values`` has the parsed value of every parameter and option of the ``ClientSide``, by name.
    ``client`` is the name under which the client should appear at the broker.
    """

    address: Address
    values: Mapping[str, Any] = field(default_factory=dict)
    token: str | None = field(default=None, repr=False)
    client: bytes = b""


@dataclass(frozen=True, slots=True)
class ClientSide:
    """A protocol's blocking publisher, and what it is configured with.

    ``make_publisher`` is a function of a module, as it is pickled by reference. It connects to
    nothing yet; it raises NotPublished for options that the protocol cannot express.
    ``parameters`` are given after the ``?`` of a URL, ``options`` beside the URL; no two have the
    same name. ``columns`` can be published beside topic and value; only ``key``, as the sender of a
    message, is possible. ``make_wire`` makes what ``pubsub.client`` uses; it takes the values of
    both ``parameters`` and ``options``. ``port`` is the default port; ``any_topic`` is false if
    only some names of topics can be addressed.
    """

    make_publisher: Callable[[PublisherOptions], BlockingPublisher]
    columns: tuple[str, ...] = ()
    token: TokenUse = TokenUse.NONE
    parameters: tuple[Setting, ...] = ()
    options: tuple[Setting, ...] = ()
    make_wire: Callable[[WireOptions], ClientWire] | None = None
    port: int = 0
    any_topic: bool = True
