"""cafe over UDP: whole frames in datagrams, a client's address as its connection (cafe §7)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from math import inf
from typing import TYPE_CHECKING

from twisted.internet.error import MessageLengthError
from twisted.internet.protocol import DatagramProtocol

from pubsub.errors import Refused
from pubsub.protocols.cafe.channels import Channels
from pubsub.protocols.cafe.codec import (
    HANDSHAKES,
    MESSAGE_OVERHEAD,
    OPCODES,
    CafeError,
    ErrorCode,
    needed,
)
from pubsub.protocols.cafe.conversation import Conversations
from pubsub.protocols.cafe.datagram_client import DatagramClient, SocketAddress
from pubsub.protocols.cafe.handshake import shown
from pubsub.protocols.cafe.open_ports import OpenPorts, read_in_thread
from pubsub.protocols.cafe.refusals import code_of, error
from pubsub.wire.peer_address import network_of, plain_host

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener

MAX_DATAGRAM = 65_507
_HANDSHAKES = frozenset(OPCODES[frame] for frame in HANDSHAKES)
_HANDSHAKE_BYTES = frozenset(bytes((opcode,)) for opcode in _HANDSHAKES)


def _plain(address: SocketAddress) -> IPv4Address | IPv6Address:
    host = ip_address(address[0])
    return getattr(host, "ipv4_mapped", None) or host


class CafeDatagrams(DatagramProtocol):
    """Serves all UDP clients of a listener; to the broker one ``ConnectedClient``."""

    noisy = False
    is_listed = False
    mark = 0
    _closing = False

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self._channels = Channels(
            listener.settings["channels"], listener.topics, MAX_DATAGRAM - MESSAGE_OVERHEAD
        )
        self._conversations = Conversations(listener, self._channels)
        self._clients: dict[SocketAddress, DatagramClient] = {}
        # Those by which the clients are trusted.
        self._settings = listener.settings
        self.ports = OpenPorts(read_in_thread(listener.clock))

    def topic_name(self, channel: int) -> str:
        """Return the name of the topic of a channel that is offered."""
        return self._channels.topics[channel].name

    def trusts(self, address: SocketAddress) -> bool:
        """Return whether a subscriber at ``address`` may be silent."""
        host = _plain(address)
        return host.is_loopback or any(
            host in network for network in self.listener.settings["udp-trusted"]
        )

    def has_ended(self, address: SocketAddress, heard: float) -> bool:
        """Return whether the program at ``address``, last heard of at ``heard``, has ended."""
        return self.ports.is_closed(address[1], heard) and _plain(address).is_loopback

    def startProtocol(self) -> None:
        """The port is open."""
        self.mark = next(self.listener.marks)
        self.listener.clients.add(self)

    def stopProtocol(self) -> None:
        """The port is closed."""
        self.listener.clients.discard(self)

    def datagramReceived(self, datagram: bytes, addr: SocketAddress) -> None:
        """Handle the frames of one datagram."""
        if not datagram:
            return
        client = self._clients.get(addr)
        if client is None:
            client = self._admit(datagram, addr)
            if client is None:
                return
        client.heard = self.listener.clock.seconds()
        self.handle(client, datagram)

    def handle(self, client: DatagramClient, datagram: bytes) -> None:
        """Handle the frames of a datagram of ``client``, or keep them if it has to wait."""
        if client.closing:
            return
        if client.password_check is not None:
            # A handshake that is sent again, as its reply takes long, would be a second one.
            if datagram[2:3] not in _HANDSHAKE_BYTES:
                client.keep(datagram)
            return
        done, _need = self._conversations.consume(client, datagram)
        if client.password_check is not None:
            if done < len(datagram):
                client.keep(datagram[done:])
        elif done < len(datagram) and not client.closing:
            frame = shown(self.listener.settings, datagram[done:])
            client.fail("truncated-datagram", error(ErrorCode.MALFORMED_MESSAGE), frame)

    def _admit(self, datagram: bytes, addr: SocketAddress) -> DatagramClient | None:
        """A client for an unknown address that begins with a handshake, if the limits allow it."""
        answer, host = self._handshake_error(datagram), plain_host(addr[0])
        if answer is None:
            try:
                self.listener.admit(network_of(host))
            except Refused as refused:
                self.listener.refuse(refused.reason, host)
                answer = error(code_of(refused))
            else:
                client = self._clients[addr] = DatagramClient(self, addr)
                self.listener.clients.add(client)
                return client
        else:
            frame = shown(self.listener.settings, datagram)
            self.listener.refuse("no-handshake", host, frame=frame)
        self.send(answer, addr)
        return None

    @staticmethod
    def _handshake_error(datagram: bytes) -> bytes | None:
        """The reply to an unknown client whose first frame is not a handshake (cafe §7.2)."""
        try:
            length = needed(datagram, 0)
        except CafeError as problem:
            return error(problem.code)
        if len(datagram) < length:
            return error(ErrorCode.MALFORMED_MESSAGE)
        return None if datagram[2] in _HANDSHAKES else error(ErrorCode.INVALID_HANDSHAKE)

    def send(self, data: bytes, address: SocketAddress) -> bool:
        """Send one datagram; False if it could not even leave this host."""
        assert self.transport is not None
        try:
            self.transport.write(data, address)
        except (OSError, MessageLengthError):
            # The socket's buffer is full, or the address cannot be reached.
            return False
        return True

    def ended(self, client: DatagramClient, keep: bool) -> None:
        """End the session of ``client``, or keep it if it can be resumed."""
        self._conversations.ended(client, keep)

    def forget(self, client: DatagramClient) -> None:
        """Remove ``client``, which has closed."""
        if self._clients.pop(client.address, None) is not None:
            self.listener.clients.discard(client)
            self.listener.leave(network_of(client.host))

    # Client

    @property
    def accepted_by(self) -> object:
        """See ``ConnectedClient``."""
        return self.listener

    def drain(self) -> None:
        """See ``ConnectedClient``: send every client a goodbye and close the port."""
        for client in tuple(self._clients.values()):
            client.drain()
        self._close_port()

    def abort(self, reason: str) -> None:
        """See ``ConnectedClient``."""
        self._close_port()

    def _close_port(self) -> None:
        # Once: the broker may abort while the port is closing.
        if not self._closing and self.transport is not None:
            self._closing = True
            self.transport.stopListening()

    def sweep(self, now: float) -> None:
        """Prepare the sweep of the clients (see ``ConnectedClient``)."""
        if self._clients:
            self.ports.look(now)
        if self._settings is not self.listener.settings:
            self._settings = self.listener.settings
            for client in self._clients.values():
                client.trusted = self.trusts(client.address)

    def idle_limit(self, only_listens: bool) -> float:
        """Return the seconds for which a client may be silent."""
        idle, silent = self.listener.idle_timeout or inf, self._settings["udp-timeout"] or inf
        return idle if only_listens else min(idle, silent)

    def dismiss(self, reason: str) -> None:
        """See ``ConnectedClient``: it is in no list."""
