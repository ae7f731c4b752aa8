"""One WebSocket: frames in and out, time limits, and the close.

Requests are carried out one after another. While one waits for backpressure, and while the client
does not read its replies, no more is read from it. The confirmation of a publish is sent when the
message is stored; requests after it do not wait for that.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import deferLater
from websockets.frames import CloseCode
from websockets.protocol import OPEN

from pubsub.broker.memory_budget import INPUT
from pubsub.errors import BadToken, HandshakeTimeout
from pubsub.http_api.reading.live_response import HEARTBEAT_SECONDS, RESPONSE_BYTES, LiveResponse
from pubsub.http_api.requests.api_error import BAD_REQUEST, ApiError
from pubsub.http_api.requests.flow_control import WAIT_SECONDS
from pubsub.http_api.requests.forwarded_requests import is_from_here, proved_identity
from pubsub.http_api.requests.parameters import invalid
from pubsub.http_api.requests.request_access import RequestAccess
from pubsub.http_api.websocket import websocket_close as closes
from pubsub.http_api.websocket import websocket_limits as limits
from pubsub.http_api.websocket.socket_publishing import counted_error
from pubsub.http_api.websocket.websocket_frames import PING, id_of, refusal, reply, request_of, text
from pubsub.http_api.websocket.websocket_input import SocketInput
from pubsub.http_api.websocket.websocket_requests import WebSocketRequests
from pubsub.wire.unsent_bytes import TransportCharge

if TYPE_CHECKING:
    import logging

    from pubsub.broker.topic_space.topics import KeyChange, Topic
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.http_api.websocket.socket_publishing import PublishOutcome
    from pubsub.http_api.websocket.websocket_requests import RequestContext


class WebSocketClient(LiveResponse):
    """The client of one WebSocket."""

    def __init__(self, context: RequestContext, request: ApiRequest, quiet: logging.Logger) -> None:
        listener = context.listener
        listener.memory.reserve(RESPONSE_BYTES)
        super().__init__(listener, request)
        self._context = context
        self._counted = partial(counted_error, request, self.log_fields)
        self._input = SocketInput(listener.settings["max-message"], quiet)
        self._frames = self._input.frames
        access = RequestAccess(listener, proved_identity(request), is_local=is_from_here(request))
        self._requests = WebSocketRequests(context, self._outbox, access)
        self._charge = TransportCharge(self.evict, listener.memory, INPUT)
        self._partial_since: float | None = None
        self._holds: set[str] = set()
        self._is_working = self._connected = self._ended = self._pinged = False
        self._closing: tuple[int, str] | None = None
        self._confirming = 0
        self._latest = listener.clock.seconds()

    def begin(self) -> None:
        """The handshake of HTTP is done: the first message must be ``connect``."""
        self.channel.upgraded = True
        self.channel.stream.bufferSize = limits.READ_BYTES
        self.take_channel()
        self._listener.handshakes.begin(self)
        if self.channel.leaving:
            self.drain(self.channel.end_reason)

    # Input

    def data_received(self, data: bytes) -> None:
        """See ``LongResponse``."""
        if self._ended:
            return
        self._latest = self._listener.clock.seconds()
        self._pinged = False
        if self._input.add(data):
            self._partial_since = None
        self._measure()
        self._work()
        if self._input.is_malformed and self._frames.parser_exc is None and not self._ended:
            self.channel.count_refusal("malformed")
            self.close(CloseCode.INVALID_DATA, "a text message is not UTF-8")
        elif self._charge.held > limits.CONNECT_BYTES and not (self._connected or self._is_working):
            self.channel.count_refusal("too-large")
            self.close(CloseCode.MESSAGE_TOO_BIG, "the first request must be connect")
        self._send_control()

    def _measure(self) -> None:
        """Charge the message that has not arrived in full, and the requests that wait."""
        partial, before, memory = self._input.partial, self._charge.held, self._listener.memory
        self._charge.set(self._input.nbytes)
        if partial > limits.READ_BYTES and self._charge.held > before and memory.full:
            memory.wait(self)
        if not partial or self._partial_since is None:
            self._partial_since = self._latest if partial else None
        self.channel.stream.bufferSize = limits.read_size(self._input.of_frame)

    def _send_control(self, at_once: bool = False) -> None:
        """Send the frames that others require: pongs, and the close behind all messages.

        Unless ``at_once``, the client's close is answered behind the requests that came before it.
        """
        if self._input.is_closed and (self._is_working or self._confirming) and not at_once:
            return
        if self._frames.state is not OPEN and not self._ended:
            self._outbox.write_published()
        for data in self._frames.data_to_send():
            if data:
                self._send(data)
            else:
                if self._frames.parser_exc is not None:
                    self.channel.count_refusal("malformed")
                self._finish()

    def _send(self, data: bytes) -> None:
        """Send a reply; a client that does not read them is not read from either."""
        if self._ended:
            return
        self._outbox.send(data)
        if self.channel.output_full:
            self._hold("output")

    # Flow control

    def _hold(self, reason: str) -> None:
        if not self._holds:
            self.channel.stream.pauseProducing()
        self._holds.add(reason)

    def hold(self, _reason: object) -> None:
        """See ``Holdable``: the memory bound is reached."""
        self._hold(limits.NO_ROOM)

    def release(self, _reason: object) -> None:
        """See ``Holdable``."""
        self._release(limits.NO_ROOM)

    def _release(self, reason: str) -> None:
        if reason in self._holds:
            self._holds.discard(reason)
            if not self._holds and not self._ended:
                if self._partial_since is not None and reason != limits.NO_ROOM:
                    # Its rest could not arrive meanwhile.
                    self._partial_since = self._listener.clock.seconds()
                self.channel.stream.resumeProducing()

    def resumeProducing(self) -> None:
        """See IPushProducer."""
        super().resumeProducing()
        self._release("output")

    # Requests

    def _work(self) -> None:
        """Carry out the requests that wait, unless one is being carried out."""
        if not self._is_working and self._input.waiting and not self._ended:
            self._is_working = True
            ensureDeferred(self._carry_out_all())
            if self._is_working:
                self._hold("working")

    async def _carry_out_all(self) -> None:
        waiting = self._input.waiting
        while waiting and not self._ended:
            await self._carry_out(*waiting.popleft())
            if self._listener.frame_turns.count(limits.REQUEST_FRAMES) and waiting:
                await deferLater(self._listener.clock, 0)
        self._is_working = False
        self._measure()
        self._release("working")
        self._close_if_done()

    async def _carry_out(self, data: bytes, binary: bool) -> None:
        id: object = None
        try:
            members, payload = request_of(data, binary)
            del data
            id = id_of(members)
            op = members.pop("op", None)
            if not self._connected and op != "connect":
                raise ApiError(BAD_REQUEST, "not-connected", "the first request must be connect")
            if op != "connect" and not self._requests.access.token_is_valid:
                self._send(refusal(id, ApiError.from_refusal(BadToken(closes.EXPIRED))))
                self._is_working = False
                self._token_ended()
                return
            if op == "publish":
                limiters = self.channel.limiters()
                done = await self._requests.publish(members, payload, limiters, self._counted)
                if done.submitted:
                    ensureDeferred(self._confirm(id, done))
                elif done.error is not None:
                    self._send(refusal(id, done.error))
                return
            if payload is not None:
                raise invalid("a binary frame is for the op publish only")
            answer = await self._requests.carry_out(op, members)
        except Exception as problem:
            self._refuse(id, problem)
            return
        if op == "connect":
            self.channel.identity = self._requests.access.identity
            self.channel.report_connect()
        if not self._connected:
            self._connected = True
            self._listener.handshakes.done(self)
        self._send(reply(id, answer))

    async def _confirm(self, id: object, done: PublishOutcome) -> None:
        """Answer a publish when it is confirmed."""
        self._confirming += 1
        if self._confirming >= limits.MAX_CONFIRMING:
            self._hold("answers")
        for submitted in done.submitted:
            self._request.count_submitted(submitted.topics, submitted.batch, submitted.refused)
        try:
            published = await self._context.publisher.confirmed(done.submitted)
        except Exception as failure:
            self._refuse(id, failure)
        else:
            self._send(reply(id, done.members(published)))
        self._confirming -= 1
        self._release("answers")
        self._close_if_done()

    def _refuse(self, id: object, problem: Exception) -> None:
        """Answer with an error; without a connect before, also close."""
        error = self._counted(problem)
        self._send(refusal(id, error))
        if not self._connected:
            self.close(closes.close_code(error), error.code)

    # As a subscriber

    def report_gap(self, start: int, stop: int, reason: str) -> None:
        """See ``LiveResponse``."""
        self._tell("gap", start=start, stop=stop, reason=reason)

    def recheck(self, topic: Topic, change: KeyChange | None) -> bool:
        """See ``Subscriber``."""
        if self._requests.may_continue(topic):
            return True
        self._listener.refuse("revoked", self.label, topic=topic.name, connection=self.channel)
        if self._requests.access.token_is_valid:
            self._tell("revoked", topic=topic.name)
        # Otherwise the close tells the client why: it may subscribe again with another token.
        self._requests.forget(topic)
        return False

    def _tell(self, name: str, **members: object) -> None:
        if not self._ended:
            self._outbox.send(text({name: members}))

    # Time

    def handshake_overdue(self) -> None:
        """See ``Shaking``."""
        self.channel.count_refusal(HandshakeTimeout.reason)
        self.close(closes.TIMEOUT, HandshakeTimeout.reason)

    def sweep(self, now: float) -> None:
        """See ``LongResponse``: apply the time limits, and send a ping at intervals."""
        listener = self._listener
        if not self._requests.access.token_is_valid:
            self._token_ended()
        elif self._input.is_closed and now - self._latest > WAIT_SECONDS:
            self._send_control(at_once=True)
        elif self._holds - {limits.NO_ROOM}:
            return  # Nothing can arrive.
        elif limits.is_overdue(self._partial_since, now, listener.frame_seconds, self._charge.held):
            reason, code, why = closes.NO_MEMORY if self._holds else closes.LATE
            self.channel.count_refusal(reason)
            self.close(code, why)
        elif self._holds:
            return
        elif listener.idle_timeout and now - self._latest > listener.idle_timeout:
            self.close(closes.TIMEOUT, "idle")
        elif now - self._beat >= HEARTBEAT_SECONDS and self._outbox.drained:
            self._beat = now
            if self._pinged:
                self.evict("did not answer a ping")
                return
            self._pinged = True
            self._outbox.send(PING)

    # The end

    def drain(self, reason: str) -> None:
        """See ``LongResponse``: answer the requests that have arrived, send what waits, close."""
        if self._closing is None and not self._ended:
            self._closing = (CloseCode.GOING_AWAY, closes.close_reason(reason))
            self._hold("closing")
            self._close_if_done()

    def _token_ended(self) -> None:
        """Close; requests that publish are answered first, for a time: they may have succeeded."""
        if self._closing is None:
            self.channel.count_refusal(closes.ENDED[0])
        self._closing = closes.ENDED[1:]
        self._input.waiting.clear()
        if not (self._is_working or self._confirming):
            self.close(*self._closing)
        elif "closing" not in self._holds:
            self._hold("closing")
            self._listener.clock.callLater(WAIT_SECONDS, self.close, *self._closing)
            self._listener.slices.run(self._requests.recheck())

    def _close_if_done(self) -> None:
        if self._ended or self._is_working or self._confirming:
            return
        if self._input.is_closed:
            self._send_control()
        elif self._closing is not None:
            self._outbox.when_drained(partial(self.close, *self._closing))

    def input_ended(self) -> None:
        """See ``LongResponse``: without a close before, the client is gone."""
        if not (self._input.is_closed and (self._is_working or self._confirming)):
            self._finish()

    def close(self, code: int, reason: str) -> None:
        """Send the close, and end the session."""
        if not self._ended:
            self._frames.fail(code, reason)
            self._send_control(at_once=True)

    def end(self) -> None:
        """See ``LongResponse``."""
        if not self._ended:
            self._ended = True
            self._listener.handshakes.done(self)
            # A request that is being carried out may wait for longer.
            self._charge.end(self._is_working)
            self._listener.memory.leave(self)
            # Now, not with the connection, which waits for the collector of cycles.
            self._input.clear()
            self._outbox.shut("disconnected")
            self._requests.end()
            self._listener.memory.free(RESPONSE_BYTES)

    def _finish(self) -> None:
        if not self._ended:
            self.end()
            self._request.unregisterProducer()
            self.channel.upgrade_ended()
