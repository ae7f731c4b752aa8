"""The bytes in a transport that the kernel has not taken, and their charge to the memory budget."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from sys import byteorder
from termios import TIOCOUTQ
from typing import TYPE_CHECKING, Any

from twisted.internet.abstract import FileDescriptor
from twisted.internet.interfaces import IUNIXTransport
from twisted.protocols.policies import ProtocolWrapper

from pubsub.broker.memory_budget import OUTPUT

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget

# Connections with more bytes than this in their transports can be evicted to free memory.
_HOLDER_MARK = 64 * 1024


def bottom_of(transport: Any) -> Any:
    """The transport of the socket itself, below TLS and the header of a proxy."""
    while isinstance(transport, ProtocolWrapper):
        transport = transport.transport
    return transport


def unsent_bytes(transport: Any) -> int:
    """Bytes that were written to ``transport`` and that the kernel has not taken.

    Twisted has no public name for them.
    """
    total = 0
    while isinstance(transport, ProtocolWrapper):
        # Bytes that TLS cannot encrypt before its handshake is done, or while it renegotiates.
        total += sum(map(len, getattr(transport, "_appSendBuffer", ())))
        # Small writes, which become one TLS record in the next pass of the reactor.
        aggregator = getattr(transport, "_aggregator", None)
        total += getattr(aggregator, "MAX_BUFFER_SIZE", 0) - getattr(aggregator, "_bufferLeft", 0)
        transport = transport.transport
    if isinstance(transport, FileDescriptor):
        # Another version of Twisted may keep the bytes just written elsewhere.
        fresh = int(getattr(transport, "_tempDataLen", 0))
        return total + len(transport.dataBuffer) - transport.offset + fresh
    return total + int(getattr(transport, "unsent_bytes", 0))


def untaken_bytes(transport: Any) -> int:
    """Bytes that were written to ``transport`` and that the client's system has not confirmed.

    Of a UNIX socket the client can still read the bytes in the kernel.
    """
    total = unsent_bytes(transport)
    bottom: Any = bottom_of(transport)
    if hasattr(bottom, "fileno") and not IUNIXTransport.providedBy(bottom):
        # The socket may be closed, and not every system reports the bytes.
        with suppress(OSError, ValueError):
            total += int.from_bytes(ioctl(bottom.fileno(), TIOCOUTQ, bytes(4)), byteorder)
    return total


class TransportCharge:
    """Charges the bytes in a transport to the memory budget; ``evict`` disconnects its client.

    It exists only while there are such bytes, so that an idle connection does not pay for it.
    ``account`` is INPUT for bytes that have arrived, such as a part of a frame.
    """

    __slots__ = ("_account", "_evict", "_memory", "held")

    def __init__(
        self, evict: Callable[[str], None], memory: MemoryBudget, account: str = OUTPUT
    ) -> None:
        self._account = account
        self._evict = evict
        self._memory = memory
        self.held = 0
        """Bytes that are charged."""

    def evict(self, reason: str) -> None:
        """See ``MemoryHolder``."""
        self._evict(reason)

    def set(self, nbytes: int) -> None:
        """Charge ``nbytes`` from now on."""
        if nbytes != self.held:
            before, self.held = self.held, nbytes
            self._memory.charge(self, before, nbytes, _HOLDER_MARK, self._account)

    def end(self, are_used: bool) -> None:
        """The connection has ended: nobody can be evicted for bytes that ``are_used`` still."""
        if are_used:
            self._memory.holders.discard(self)
        else:
            self.set(0)
