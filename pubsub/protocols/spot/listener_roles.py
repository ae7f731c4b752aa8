"""The server side: the roles of a listener for the sockets that connect to it (spot §2.3).

peer                  it sends                              it receives
DEALER, REQ, ROUTER   QUERY, PUBLISH, SUBSCRIBE,            QUERY_RESP, PUBLISH
                      UNSUBSCRIBE
SUB, XSUB             subscriptions, as commands            topic, data
                      or as messages
PUB, XPUB             topic, data                           one subscription to everything
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pubsub.broker.clients.frame_turns import publish_runs
from pubsub.broker.credentials.identity import CURVE, PASSWORD
from pubsub.broker.publishing.senders import sender_of
from pubsub.broker.topic_space.prefix_subscriptions import PrefixSubscriptions
from pubsub.errors import RateLimited, Refused, TopicUnreachable
from pubsub.protocols.spot.broker_commands import Confirm, Read, decode_broker_command
from pubsub.protocols.spot.commands import (
    Publish,
    Request,
    SpotError,
    decode_request,
    decode_routed,
)
from pubsub.protocols.spot.confirmations import HostConfirmations
from pubsub.protocols.spot.history_pages import HistoryPages
from pubsub.protocols.spot.message_heads import topic_prefix
from pubsub.protocols.spot.requests import Requests
from pubsub.protocols.spot.routed_clients import RoutedClients
from pubsub.protocols.spot.subscriptions import Subscriptions
from pubsub.protocols.spot.zmtp import Command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.publishing.address_mixes import AddressMixes
    from pubsub.kernel import Columns
    from pubsub.protocols.spot.connection import ZmtpConnection
    from pubsub.protocols.spot.identity_sessions import ClientSession
    from pubsub.protocols.spot.message_heads import Publication

_SUBSCRIBE, _CANCEL = b"\x01", b"\x00"


class RoleDefaults:
    """The methods of a role without clients behind the connection."""

    def pause(self) -> None:
        """See ``SocketRole``."""

    def resume(self) -> None:
        """See ``SocketRole``."""

    def routed_outboxes(self) -> Iterable[Outbox]:
        """See ``SocketRole``."""
        return ()

    def closed(self) -> None:
        """See ``SocketRole``."""


class XSubSide(RoleDefaults):
    """The role for PUB and XPUB sockets (spot §4.2). ``sender`` is by default their identity."""

    def __init__(
        self, connection: ZmtpConnection, mixes: AddressMixes, sender: bytes | None = None
    ) -> None:
        self._connection = connection
        self._mixes = mixes
        if sender is None:
            sender = connection.handshake.metadata.get(b"identity", b"") or _proved_name(connection)
        self._publisher = connection.listener.publisher(connection, sender)
        self._confirmations = HostConfirmations(connection) if connection.is_node else None

    def command(self, command: Command) -> None:
        """See ``SocketRole``: no command has a meaning here."""

    def message(self, frames: list[bytes]) -> Publish | None:
        """See ``SocketRole``."""
        if len(frames) != 2:
            raise SpotError
        return Publish(*frames)

    def receive(self, columns: Columns) -> int | None:
        """See ``SocketRole``: there is no reply; refusals are counted (spot §5.1)."""
        if len(columns.addresses) == 1:
            self._publish_run(columns)
        elif not self._publish_mixed(columns):
            return publish_runs(columns, self._publish_run, self._connection.turn_over)
        return None

    def _publish_run(self, columns: Columns) -> None:
        self._publish(columns.addresses[0], columns)

    def _publish_mixed(self, columns: Columns) -> bool:
        """Publish messages of several publications at once; False if that is not possible."""
        own = self._publisher.sender
        origins = [publication.origin for publication in columns.addresses]
        by_index = [own if origin is None else origin for origin in origins]
        sender = sender_of(columns, by_index)
        access = None
        if self._confirmations is None and isinstance(sender, bytes):
            # Only without origins do the addresses stand for the same sender next time.
            soon = sender if any(origin is not None for origin in origins) else None
            if self._mixes.publish_soon(columns, self._publisher, soon):
                return True
            access = self._publisher.access
        mixed = self._mixes.find(columns, access=access)
        if mixed is None or self._publisher.publish_mixed(*mixed, sender=sender) is None:
            return False
        if self._confirmations is not None:
            self._confirmations.accepted(columns.count, mixed[0].topics)
        return True

    def _publish(self, publication: Publication, columns: Columns) -> None:
        listener, name = self._connection.listener, publication.topic
        known = listener.topics.get(name)
        try:
            self._publisher.access.check_publish(name)
            topic = known or listener.topics.create(name, hosted=False)
            if topic.upstream is not None and self._connection.is_node:
                raise TopicUnreachable(name)
            if (
                listener.router.gathers
                and self._confirmations is None
                and self._publisher.publish_soon(topic, columns, publication.origin)
            ):
                return
            batch = self._publisher.publish(topic, columns, sender=publication.origin)
        except Refused as refused:
            if known is None:
                listener.topic_lifecycle.withdraw(name)
            self._connection.refuse(refused.reason, columns.count, name)
        else:
            listener.topics.keep(name)
            if self._confirmations is not None:
                self._confirmations.accepted(batch.count, (topic,))
            over_limit = columns.count - batch.count
            if over_limit:
                self._connection.refuse(RateLimited.reason, over_limit, name)


def _proved_name(connection: ZmtpConnection) -> bytes:
    """Return the name that the mechanism has proved; empty if it proves none."""
    identity = connection.identity
    return identity.name.encode() if identity.proof in (PASSWORD, CURVE) else b""


class RouterSide(XSubSide):
    """The ROUTER for DEALER, REQ and ROUTER sockets (spot §3)."""

    def __init__(
        self,
        connection: ZmtpConnection,
        mixes: AddressMixes,
        prefix_readers: PrefixSubscriptions,
    ) -> None:
        super().__init__(connection, mixes)
        self._session: ClientSession | None = None
        self._requests = Requests(connection, prefix_readers)
        self._prefix_readers = prefix_readers
        self._routed: RoutedClients | None = None
        self._pages = HistoryPages(connection)

    def begin(self, session: ClientSession | None) -> None:
        """Use ``session``, with the subscriptions of the client's last connection."""
        self._session = session
        if session is None:
            return
        subscriptions, kept = self._requests.subscriptions, session.kept
        subscriptions.changed = partial(session.changed, subscriptions)
        if kept is not None:
            # The program at the other end does not know that its connection is a new one.
            subscriptions.restore(kept)
            session.changed(subscriptions)

    def share_again(self) -> None:
        """Share the session if that was not possible before."""
        if self._session is not None:
            self._session.share_again(self._requests.subscriptions)

    def shared_sessions(self) -> Iterable[str]:
        """See ``Connection``."""
        return () if self._session is None else self._session.shared_keys

    def message(self, frames: list[bytes]) -> Publish | None:
        """See ``SocketRole``."""
        if self._confirmations is not None:
            command = decode_broker_command(frames)
            if isinstance(command, Confirm):
                self._confirmations.confirm(command)
                return None
            if isinstance(command, Read):
                self._pages.read(command)
                return None
        try:
            request = decode_request(frames)
        except SpotError:
            return self._routed_message(*decode_routed(frames))
        if isinstance(request, Publish):
            return request
        self._requests.carry_out(request)
        return None

    def _routed_message(self, route: bytes, request: Request) -> Publish | None:
        if isinstance(request, Publish):
            return request
        if self._routed is None:
            self._routed = RoutedClients(self._connection, self._prefix_readers)
        self._routed.carry_out(route, request)
        return None

    def pause(self) -> None:
        """See ``SocketRole``."""
        if self._routed is not None:
            self._routed.pause()

    def resume(self) -> None:
        """See ``SocketRole``."""
        if self._routed is not None:
            self._routed.resume()

    def routed_outboxes(self) -> Iterable[Outbox]:
        """See ``SocketRole``."""
        return () if self._routed is None else self._routed.outboxes()

    def closed(self) -> None:
        """See ``SocketRole``."""
        if self._routed is not None:
            self._routed.close()
        subscriptions = self._requests.subscriptions
        if self._session is not None:
            self._session.closed(subscriptions, self._connection.outbox)
        subscriptions.clear()


class XPubSide(RoleDefaults):
    """The XPUB for SUB and XSUB sockets (spot §4.1)."""

    def __init__(self, connection: ZmtpConnection, prefix_readers: PrefixSubscriptions) -> None:
        self._subscriptions = Subscriptions(connection, prefix_readers, topic_prefix)

    def command(self, command: Command) -> None:
        """See ``SocketRole``: subscriptions of peers with ZMTP 3.1."""
        if command.name == b"SUBSCRIBE":
            self._subscriptions.add_prefix(command.data)
        elif command.name == b"CANCEL":
            self._subscriptions.discard_prefix(command.data)

    def message(self, frames: list[bytes]) -> Publish | None:
        """See ``SocketRole``: subscriptions of older peers."""
        first = frames[0]
        if len(frames) != 1 or not first.startswith((_SUBSCRIBE, _CANCEL)):
            raise SpotError
        if first.startswith(_SUBSCRIBE):
            self._subscriptions.add_prefix(first[1:])
        else:
            self._subscriptions.discard_prefix(first[1:])
        return None

    def receive(self, columns: Columns) -> None:
        """See ``SocketRole``: these peers do not publish."""

    def closed(self) -> None:
        """See ``SocketRole``."""
        self._subscriptions.clear()
