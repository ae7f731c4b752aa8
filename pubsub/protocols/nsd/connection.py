"""nsd's connection: one request a line, one response a line, in order (nsd §2, §5, §8)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import ensureDeferred

from pubsub.broker.clients.frame_turns import TURN_BYTES, publish_runs
from pubsub.broker.publishing.senders import sender_of
from pubsub.broker.topic_space.durability import Durability
from pubsub.errors import RateLimited, Refused
from pubsub.kernel import Columns, TextTable
from pubsub.protocols.nsd.codec import (
    MAX_LINE,
    SUCCESS,
    Get,
    InvalidLine,
    LineStream,
    Publish,
    Request,
    Subscribe,
    Unsubscribe,
    begins_binary,
    error,
    is_http,
    parse,
    password_of,
    unparsed,
    unwrap,
    wrap,
)
from pubsub.protocols.nsd.figures import CHANNEL as FIGURES
from pubsub.protocols.nsd.figures import UnseenFigures
from pubsub.protocols.nsd.identity_proof import (
    NO_PASSWORD,
    check_identity,
    check_user,
    is_proved,
    may_publish,
    prove,
)
from pubsub.protocols.nsd.message_list import ListStart, MessageList
from pubsub.protocols.nsd.publish_replies import reply_published, reply_when_stored
from pubsub.protocols.nsd.refusals import NOT_SHARED, NOT_STORED, connection_refusal_of, refusal_of
from pubsub.protocols.nsd.requests import Requests, topic_of
from pubsub.protocols.nsd.waiting_request import WaitingRequest
from pubsub.wire.connection import Connection
from pubsub.wire.replies import all_of, stored_in

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from pubsub.broker.listeners.listener import Listener
    from pubsub.protocols.nsd.encoded_batches import EncodedBatches
    from pubsub.protocols.nsd.identities import Identities
    from pubsub.protocols.nsd.known_publishes import KnownPublishes
    from pubsub.protocols.nsd.message_heads import Source
    from pubsub.wire.known_heads import KnownHeads


class NsdConnection(Connection):
    """A client. It has no outbox, because it gets only messages that it has requested."""

    delimiter = b"\n"
    # The response to a Get while it is sent; no other request is handled meanwhile.
    _message_list: MessageList | None = None
    _in_consume = False
    # True while requests in the read buffer wait for others to be answered.
    _has_requests = False
    _figures: UnseenFigures | None = None
    # A request that waits; no other is handled meanwhile.
    _waiting: WaitingRequest | None = None

    def __init__(
        self,
        listener: Listener,
        identities: Identities,
        encoded: EncodedBatches,
        publishes: KnownPublishes,
        requests: Requests,
    ) -> None:
        super().__init__(listener)
        self._identities = identities
        self._encoded = encoded
        self._publishes = publishes
        # Each message names its sender, not the connection.
        self._publisher = listener.publisher(self, b"")
        self._requests = requests

    # Lines

    def consume(self, data: bytes) -> tuple[int, int]:
        """See ``Connection``.

        Stops after a Get whose response takes longer, while the client does not read its
        responses, and when it is the turn of others.
        """
        at = 0
        self._in_consume = True
        heads: KnownHeads[TextTable] | None = self._publishes.heads()
        while not (self._waits or self.output_full or self.closing):
            some = data[: at + TURN_BYTES] if self.takes_turns else data
            columns = None if heads is None else heads.scan(some, at)
            if columns is not None and columns.count:
                if may_publish(self, self._identities, columns.addresses):
                    at = self._publish_columns(columns, data, at)
                    if at < columns.end or self.output_full or self.closing:
                        break
                else:
                    # A line of this read may have the password, or open the identity.
                    heads = None
            end = data.find(b"\n", at)
            if end < 0:
                if len(data) - at > MAX_LINE + data.endswith(b"\r"):
                    self.fail("line-too-long", unparsed(data[at:]), data[at:])
                break
            line = data[at:end].removesuffix(b"\r")
            if len(line) > MAX_LINE:
                self.fail("line-too-long", unparsed(line), line)
                break
            self._answer(line)
            at = end + 1
            if self.turn_over():
                break
        self._in_consume = False
        self._has_requests = at < len(data) and (self._waits or self.output_full)
        if self.output_full:
            # Over TLS the transport becomes full between two reads, when nothing is sent.
            self.hold("output")
        self.answered()
        # A longest line may wait for its \n with a \r.
        return at, MAX_LINE + (1 if len(data) - at <= MAX_LINE else 2)

    def refuses_first(self, data: bytes) -> bool:
        """See ``Connection``. A binary protocol may never send the end of a line."""
        if not super().refuses_first(data) and begins_binary(data):
            self.fail("binary-protocol", unparsed(data), data)
        return self.closing

    def _publish_columns(self, columns: Columns, data: bytes, at: int) -> int:
        """Publish the bodies of lines from ``at`` on whose heads are known.

        Returns where they end, or where the first begins that is published in a later turn.
        """
        if len(columns.addresses) == 1:
            self._publish_run(columns)
        elif not self._publish_mixed(columns):
            for _ in range(publish_runs(columns, self._publish_run, self.turn_over)):
                at = data.index(b"\n", at) + 1
            return at
        return columns.end

    def _publish_mixed(self, columns: Columns) -> bool:
        """Publish messages of several sources at once; False if that is not possible."""
        for identity, _, extra in columns.addresses:
            if extra or not self._identities.opened(identity):
                return False
        sender = sender_of(columns, [source.sender for source in columns.addresses])
        access = self._publisher.access if isinstance(sender, bytes) else None
        mixed = self._publishes.mixes.find(columns, access=access)
        if mixed is None or self._publisher.publish_mixed(*mixed, sender=sender) is None:
            return False
        count = columns.count
        reply_when_stored(self, mixed[0].durability, False, count)
        return True

    def _publish_run(self, columns: Columns) -> None:
        """Publish messages of one source; each one gets a response."""
        if self.closing:
            return
        source: Source = columns.addresses[0]
        count = accepted = columns.count
        try:
            topic, batch = self._requests.publish(self, source, columns)
            accepted = batch.count
            reply_published(self, topic, False, accepted)
            if accepted < count:
                raise RateLimited(self.listener.protocol)
        except Refused as refused:
            refusals = count - accepted if accepted < count else count
            self.refuse(refused.reason, refusals, topic=source.identity)
            self.reply(wrap(refusal_of(refused), False) * refusals)

    def _answer(self, line: bytes, is_prepared: bool = False) -> None:
        text, in_base64 = unwrap(line)
        try:
            request = parse(text, line)
            if self.listener.settings["identity-password"] != NO_PASSWORD:
                password = password_of(text, line)
                if password is not None and not is_proved(self, request.identity):
                    self._prove(request.identity, password, line, in_base64)
                    return
                check_identity(self, request.identity)
            if not is_prepared and self._prepare(request, line, in_base64):
                return
            if isinstance(request, Subscribe | Unsubscribe | Get):
                check_user(self, request.identity, self._identities.owner(request.identity))
            if isinstance(request, Get):
                self._get(request, in_base64)
            else:
                self._carry_out(request, in_base64)
            return
        except InvalidLine as invalid:
            response = error(f"INVALID REQUEST: [{invalid.shown}]")
            if is_http(line):
                # A web page may have chosen the lines behind it.
                self.fail("http-request", wrap(response, in_base64), line)
                return
            self.refuse("invalid-request", frame=line)
        except Refused as refused:
            self.refuse(refused.reason, topic=topic_of(request))
            response = refusal_of(refused)
        self.reply(wrap(response, in_base64))

    def _carry_out(self, request: Request, in_base64: bool) -> None:
        """Carry out a request other than Get, and reply."""
        topic = self._requests.carry_out(self, request)
        if isinstance(request, Publish):
            assert topic is not None
            reply_published(self, topic, in_base64)
            return
        durability = Durability.ASYNC if topic is None else topic.durability
        response = self._requests.subscribed(request) if isinstance(request, Subscribe) else SUCCESS
        success, failed = wrap(response, in_base64), wrap(NOT_STORED, in_base64)
        moves = self._requests.moves
        if moves is None:
            self.reply_when_stored(durability, success, failed)
        else:
            # It is to be kept here at least as well as at the other brokers.
            stored = stored_in(self.listener.store, durability or Durability.ASYNC)
            shared = partial(moves.when_written, request)
            self.reply_when(all_of([stored, shared]), success, wrap(NOT_SHARED, in_base64))

    @property
    def _waits(self) -> bool:
        """True while a request is carried out that takes longer."""
        return self._message_list is not None or self._waiting is not None

    def _wait(
        self, topic: str | None, line: bytes, in_base64: bool, is_prepared: bool
    ) -> WaitingRequest:
        """Answer the request in ``line`` as soon as it has what it waits for."""

        def done(refused: Refused | None) -> None:
            self._waiting = None
            if refused is None:
                self._answer(line, is_prepared)
            else:
                self.refuse(refused.reason, topic=topic)
                self.reply(wrap(refusal_of(refused), in_base64))
            self.release("request")
            self._resume_requests()

        self._waiting = WaitingRequest(done)
        self.hold("request")
        return self._waiting

    def _prove(self, identity: str, password: str, line: bytes, in_base64: bool) -> None:
        """Verify a password, then answer the request in ``line``."""
        waiting = self._wait(None, line, in_base64, False)
        waiting.wait_for_password(prove(self, identity, password, waiting.resolve))

    def _prepare(self, request: Request, line: bytes, in_base64: bool) -> bool:
        """Have the identity here that ``request`` needs; return True if that takes longer.

        Then the request in ``line`` is answered.
        """
        moves = self._requests.moves
        found = None if moves is None else moves.prepare(self, request, self._requests.check)
        if found is None:
            return False
        waiting = self._wait(topic_of(request), line, in_base64, True)
        waiting.wait_for_identity(found)
        return True

    # Get

    def _get(self, request: Get, in_base64: bool) -> None:
        identity, moves = self._identities.find(request.identity), self._requests.moves
        start = ListStart(request.after) if moves is None else moves.list_start(request)
        subscribed = () if identity is None or start is None else identity.channels
        line = LineStream(in_base64)
        if self._figures is None and FIGURES in subscribed:
            self._figures = UnseenFigures.of(self.listener)
        self._message_list = MessageList(
            self, subscribed, start or ListStart(0), line, self._encoded, self._figures
        )
        ensureDeferred(self._message_list.send()).addCallbacks(self._list_sent, self._list_failed)

    def _list_sent(self, result: None) -> None:
        message_list, self._message_list = self._message_list, None
        self.release(message_list)
        self._resume_requests()

    def _list_failed(self, failure: Failure) -> None:
        self.log.failure(
            "nsd: cannot read the history for {client!r}; its connection is closed",
            failure,
            client=self.label,
            connection=self.log_fields(),
        )
        self.abort("the history cannot be read")

    def _resume_requests(self) -> None:
        """Handle the requests in the read buffer, unless they still have to wait."""
        if not (self._waits or self._in_consume or self.output_full):
            self.parse_buffered()
        self.answered()

    def sweep(self, now: float) -> None:
        """See ``ConnectedClient``. A client that waits for a response need not send."""
        if self._message_list is None:
            super().sweep(now)

    def resumeProducing(self) -> None:
        """See ``Connection``."""
        super().resumeProducing()
        if self._message_list is not None:
            self._message_list.resume()
        self._resume_requests()

    # Closing

    def refusal(self, refused: Refused) -> bytes:
        """See ``Connection``."""
        return wrap(connection_refusal_of(refused), False)

    def owes_answers(self) -> bool:
        """See ``Leaver``: the response that is being sent, and those to the requests behind it."""
        waiting = self._has_requests and not self._discards_input
        return self._waits or waiting or super().owes_answers()

    def answered(self) -> None:
        """See ``Connection``; there may be more requests in the read that is handled."""
        if self._message_list is not None and not self.output_full:
            self._message_list.resume()
        if not self._in_consume:
            super().answered()

    def ended(self) -> None:
        """See ``Connection``."""
        if self._waiting is not None:
            self._waiting.cancel()
        if self._message_list is not None:
            self.listener.at_tick_end(self._message_list.resume)
