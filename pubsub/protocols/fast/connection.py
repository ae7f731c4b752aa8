"""fast's connection: each request has a token, and no state is kept between requests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pubsub.broker.clients.frame_turns import RUNS
from pubsub.broker.credentials.queue_key_limit import MAX_KEY
from pubsub.broker.credentials.verification_throttle import VerificationThrottle
from pubsub.broker.publishing.senders import sender_of
from pubsub.broker.topic_space.topic_names import fnv1a32, topic_name
from pubsub.errors import (
    BadToken,
    InvalidRequest,
    MissingPermission,
    RateLimited,
    Refused,
    TopicNotFound,
    WrongKey,
)
from pubsub.kernel import Columns
from pubsub.protocols.fast.codec import (
    DURABLE,
    EXCLUSIVE,
    PUBLISH,
    PUBLISH_OVERHEAD,
    TYPES,
    Create,
    Error,
    ErrorCode,
    FastError,
    KeyUpdate,
    Packet,
    Publish,
    RotateKey,
    Subscribe,
    Unsubscribe,
    decode,
    encode,
    needed,
    token_of,
)
from pubsub.protocols.fast.holder_rights import HolderRights
from pubsub.protocols.fast.message_heads import Source
from pubsub.protocols.fast.refusals import code_of
from pubsub.protocols.fast.subscriptions import Subscriptions
from pubsub.wire.connection import Connection
from pubsub.wire.pending_change import PendingChange
from pubsub.wire.read_buffer import LONG_READ_OF_TOKENS
from pubsub.wire.replies import reply_to_messages

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.broker.credentials.tokens import Token
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.topic_space.topics import KeyChange, Topic
    from pubsub.protocols.fast.listener_state import ListenerState
    from pubsub.protocols.fast.read_proofs import Proof


class FastConnection(Connection):
    """One client."""

    long_read = LONG_READ_OF_TOKENS
    _waits_for_token = False
    _pending_change: PendingChange | None = None
    # An ERROR was sent, and nothing has been received since.
    _error_is_last = False
    _subscriptions: Subscriptions | None = None
    # Of the last messages, if they were published soon and no other packet has come since.
    _proof: Proof | None = None
    owned: set[Topic] | None = None
    """The exclusive topics that end with this connection (see ``TopicOwnership``)."""

    def __init__(self, listener: Listener, shared: ListenerState) -> None:
        super().__init__(listener)
        self._shared = shared
        self._publisher = listener.publisher(self, b"")
        self._rights = HolderRights(self, shared.permitted)
        self._throttle = VerificationThrottle(listener.verifications, listener.frame_turns.count)

    # Input

    @property
    def _waits_for_change(self) -> bool:
        return self._pending_change is not None and self._pending_change.pending

    def consume(self, data: bytes) -> tuple[int, int]:
        """See ``Connection``. Stops early if the client has to wait for its tokens."""
        at, need = 0, 1
        self._error_is_last = False
        proof, shared, self._proof = self._proof, self._shared, None
        if (
            proof is not None
            and shared.proofs.holds(proof)
            and self._publisher.publish_alike(shared.heads.table, data)
        ):
            self._proof = proof
            return len(data), need
        while not (self.closing or self._waits_for_token or self._waits_for_change):
            columns = self._shared.heads.scan(data, at)
            if columns.count:
                at, waits = self._publish_columns(columns, at)
                if waits:
                    return at, need
            try:
                need = needed(data, at, self._shared.max_payload)
                left = len(data) - at
                if not left or (left < need and data[at] == PUBLISH):
                    break
                decoded = decode(data, at)
                if decoded is None or self._must_wait(token_of(decoded[0])):
                    break
                packet, at = decoded
                self._handle(packet)
            except FastError as problem:
                reason = problem.code.name.lower().replace("_", "-")
                answer = self._error(problem.offending, problem.code, problem.topic_id)
                # The packet may contain a token, so events show none of it.
                self.fail(reason, answer, frame=b"")
            if self.turn_over():
                break
        return at, 1 if self._waits_for_change else need

    def _handle(self, packet: Packet) -> None:
        self._proof = None
        if isinstance(packet, Publish):
            # The scanner finds those whose heads it knows.
            self._publish(Source.of(packet.token, packet.topic_id), Columns.one(packet.payload))
            return
        topic_id = fnv1a32(packet.name) if isinstance(packet, Create) else packet.topic_id
        try:
            match packet:
                case Create():
                    self._create(packet)
                case Subscribe():
                    self._subscribe(packet)
                case Unsubscribe():
                    self._unsubscribe(packet)
                case RotateKey():
                    self._rotate(packet)
        except Refused as refused:
            offending = TYPES[type(packet)]
            if isinstance(packet, Unsubscribe) and type(refused) is TopicNotFound:
                # Not counted: a client asks whether a topic exists before it creates it, or with no
                # topic whether earlier requests were handled. The ERROR is the answer.
                self._error_is_last = False  # It knows the packet: it leaves for another reason.
                if answer := self._error(offending, code_of(refused), topic_id):
                    reply_to_messages(self, answer)
            else:
                self._refuse(offending, refused, topic_id)

    def _publish_columns(self, columns: Columns, at: int) -> tuple[int, bool]:
        """Publish messages scanned from ``at`` on.

        Returns where they end, and False, or where the first one that has to wait begins, and True.
        """
        if len(columns.addresses) > 1 and self._publish_mixed(columns):
            return columns.end, False
        for number, (_index, run) in enumerate(columns.runs(), 1):
            source = run.addresses[0]
            if self._must_wait(source.token):
                return at, True
            self._publish(source, run)
            at += run.count * (PUBLISH_OVERHEAD + len(source.token)) + run.nbytes
            if number % RUNS == 0 and self.turn_over():
                return at, True
        return columns.end, False

    def _publish_mixed(self, columns: Columns) -> bool:
        """Publish messages of several sources at once; False if that is not possible."""
        shared, self._proof = self._shared, None
        proof = shared.proofs.find(columns.addresses)
        if proof is None:
            return False
        if not proof.each:
            self._rights.publish_with(self._publisher, proof.token)
            sender = proof.token.subject.encode()
            if shared.mixes.publish_soon(columns, self._publisher, sender):
                return True
        mixed = shared.mixes.find(columns, access=None if proof.each else self._publisher.access)
        if mixed is None:
            return False
        if not proof.each:
            return self._publisher.publish_mixed(*mixed, sender=sender) is not None
        if not self._rights.may_publish(proof, columns.addresses):
            return False
        senders = sender_of(columns, [token.subject.encode() for token in proof.each])
        return self._publisher.publish_permitted(*mixed, senders) is not None

    def _publish(self, source: Source, columns: Columns) -> None:
        """Publish messages of one source; each message refused gets an ERROR of its own."""
        count = columns.count
        self._proof = None  # The publisher may get the rights of another holder.
        try:
            token, topic = self._authorized(source.token, source.topic_id, "publish")
            self._rights.publish_with(self._publisher, token)
            sender = token.subject.encode()
            if self.listener.router.gathers and self._publisher.publish_soon(
                topic, columns, sender
            ):
                self._proof = self._shared.proofs.find((source,))
                return
            batch = self._publisher.publish(topic, columns, sender=sender)
        except Refused as refused:
            self._refuse(PUBLISH, refused, source.topic_id, count)
        else:
            if batch.count < count:
                self._refuse(PUBLISH, RateLimited(), source.topic_id, count - batch.count)

    # Tokens

    def _must_wait(self, raw: bytes) -> bool:
        """Return whether the client has to wait before its token is verified."""
        seconds = 0.0 if self.listener.tokens.known(raw) else self._throttle.wait()
        if not seconds:
            return False
        self._waits_for_token = True
        self.hold("tokens")
        self.listener.clock.callLater(seconds, self._end_wait)
        return True

    def _end_wait(self) -> None:
        self._waits_for_token = False
        self.release("tokens")
        self.parse_buffered()

    def _token(self, raw: bytes) -> Token:
        try:
            token = self.listener.tokens.check(raw, self.listener.wall.system())
        except BadToken:
            self._throttle.failed()
            raise
        self._throttle.succeeded()
        return token

    def _authorized(self, raw: bytes, topic_id: int, permission: str | None) -> tuple[Token, Topic]:
        """Return the token and the topic of a request; raises Refused (fast §5.2)."""
        token = self._token(raw)
        listener = self.listener
        topic = listener.topics.by_id(topic_id)
        if not listener.queue_keys.matches(topic, token.queue_key):
            raise WrongKey(topic.name)
        if permission is not None and not token.permits(permission):
            raise MissingPermission(permission)
        return token, topic

    # Requests

    def _create(self, packet: Create) -> None:
        token = self._token(packet.token)
        if not token.queue_key:
            raise WrongKey("the token has no queue_key")
        if self.listener.settings["require-create"] and not token.permits("create"):
            raise MissingPermission("create")
        name = topic_name(packet.name)
        if packet.flags & ~(DURABLE | EXCLUSIVE):
            raise InvalidRequest("flags")
        self._rights.of(token).check_create(name)
        done = self._shared.ownership.request(name, token, self, packet.flags)
        self._await(packet, fnv1a32(packet.name), done)

    def _subscribe(self, packet: Subscribe) -> None:
        token, topic = self._authorized(packet.token, packet.topic_id, "subscribe")
        self._rights.of(token).check_subscribe(topic.name)
        if not self._shared.ownership.may_read(topic, self):
            raise MissingPermission("the topic is exclusive")
        if self._subscriptions is None:
            self._subscriptions = Subscriptions(
                self.listener,
                self.open_outbox(),
                self._rights.of,
                self._subscription_ended,
                self._key_updated,
            )
        self._subscriptions.add(topic, token)

    def _unsubscribe(self, packet: Unsubscribe) -> None:
        _token, topic = self._authorized(packet.token, packet.topic_id, None)
        if self._subscriptions is not None:
            self._subscriptions.remove(topic)

    def _rotate(self, packet: RotateKey) -> None:
        token, topic = self._authorized(packet.token, packet.topic_id, "rotate")
        if not packet.fits:
            # The topic would become unusable.
            raise InvalidRequest(f"a queue key is text of 1 to {MAX_KEY} bytes")
        self._rights.of(token).check("rotate", topic.name)
        keys, sharing = self.listener.queue_keys, self.listener.topic_lifecycle.sharing
        agreed = sharing is not None
        rotate = partial(keys.rotate, topic, packet.key, token.subject, self.label, agreed)
        # The next packets wait for the disk and the recheck: rotations of a client do not add up.
        done = rotate() if sharing is None else sharing.rotate(topic, packet.key, rotate)
        self._await(packet, topic.id, done)

    def _await(self, packet: Packet, topic_id: int, done: Deferred[Any] | None) -> None:
        """Handle no further packet until ``done`` fires."""
        if done is not None:
            offending = TYPES[type(packet)]
            self._pending_change = PendingChange(
                self, done, lambda refused: self._refuse(offending, refused, topic_id)
            )

    # Replies and the end

    def sweep(self, now: float) -> None:
        """See ``ConnectedClient``: tokens end by the system's clock, and timers by another."""
        super().sweep(now)
        if self._subscriptions is not None:
            self._subscriptions.follow_clock()

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        return self._subscriptions is not None and self._subscriptions.recheck(topic, change)

    def _subscription_ended(self, topic: Topic) -> None:
        self.refuse("subscription-ended", topic=topic.name)
        self._reply_error(self._error(TYPES[Subscribe], ErrorCode.SUBSCRIPTION_ENDED, topic.id))

    def _key_updated(self, topic: Topic, key: bytes) -> None:
        self.reply(encode(KeyUpdate(topic.id, key)))

    def _refuse(self, offending: int, refused: Refused, topic_id: int, count: int = 1) -> None:
        self.refuse(refused.reason, count, self._shared.topic_name(topic_id))
        self._reply_error(self._error(offending, code_of(refused), topic_id) * count)

    def _reply_error(self, error: bytes) -> None:
        if error:
            self._error_is_last = True
            self.reply(error)

    def _error(self, offending: int, code: ErrorCode, topic_id: int) -> bytes:
        known = self.listener.settings["errors"]
        return encode(Error(offending, code, topic_id)) if known else b""

    def refusal(self, refused: Refused) -> bytes:
        """See ``Connection``."""
        return self._error(0, code_of(refused), 0)

    def ended(self) -> None:
        """See ``Connection``."""
        if self._subscriptions is not None:
            self._subscriptions.clear()
        if self.outbox is not None:
            self.outbox.shut("disconnected")
        self._shared.ownership.end_topics(self)
        if self._error_is_last and self.end_reason == Connection.end_reason:
            self._shared.hint_errors(self)
