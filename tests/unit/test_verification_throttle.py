"""The cost of forged tokens, and which clients are delayed (fast §5.4)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.verification_throttle import VERIFICATIONS, VerificationThrottle
from pubsub.broker.publishing.rate_limits import TokenBucket
from pubsub.wire.known_heads import HEAD_BYTES
from tests.unit import fast_wire as wire
from tests.unit.fakes import clock_at
from tests.unit.fast_wire import BAD_TOKEN, NEWS, OWNER, Fast, FastCase
from tests.unit.streams import Client

BAD = wire.error(3, BAD_TOKEN)


class VerificationThrottleTests(SynchronousTestCase):
    """VerificationThrottle"""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.bucket = TokenBucket(VERIFICATIONS, self.clock.seconds)
        self.throttle = VerificationThrottle(self.bucket, lambda: None)

    def waits(self, failures: int) -> list[float]:
        """Return the waits before each of the next tokens, all of which are wrong."""
        waits = []
        for _ in range(failures):
            waited = self.throttle.wait()
            if waited:
                assert self.throttle.wait() == 0
            waits.append(waited)
            self.throttle.failed()
        return waits

    def test_the_first_failures_are_free_and_then_it_waits_longer_each_time(self) -> None:
        assert self.waits(12) == [0, 0, 0, 0, 0.04, 0.08, 0.16, 0.32, 0.64, 1, 1, 1]

    def test_a_wait_is_at_most_a_second(self) -> None:
        self.waits(500)
        assert self.throttle.wait() == 1

    def test_a_valid_token_ends_the_delay(self) -> None:
        self.waits(8)
        self.throttle.succeeded()
        assert self.waits(6) == [0, 0, 0, 0, 0.04, 0.08]

    def test_each_verification_is_charged_once(self) -> None:
        self.waits(10)
        assert self.bucket.available() == VERIFICATIONS - 10

    def test_good_tokens_return_what_was_taken_for_them(self) -> None:
        for _ in range(2 * VERIFICATIONS):
            assert self.throttle.wait() == 0
            self.throttle.succeeded()
        assert self.bucket.available() == VERIFICATIONS

    def test_known_tokens_return_nothing(self) -> None:
        self.waits(1)
        self.throttle.succeeded()
        self.throttle.succeeded()
        assert self.bucket.available() == VERIFICATIONS - 1

    def test_all_wait_when_the_rate_is_used_up(self) -> None:
        self.bucket.take(VERIFICATIONS)
        other = VerificationThrottle(self.bucket, lambda: None)
        assert self.throttle.wait() == other.wait() == 0.05
        self.clock.advance(1.5 / VERIFICATIONS)
        assert (self.throttle.wait(), other.wait()) == (0, 0.05)

    def test_a_client_may_wait_for_its_failures_and_then_for_the_rate(self) -> None:
        self.waits(4)
        assert self.throttle.wait() == 0.04
        self.bucket.take(VERIFICATIONS)
        assert [self.throttle.wait(), self.throttle.wait()] == [0.05, 0.05]
        self.clock.advance(1)
        assert self.throttle.wait() == 0


class ForgeryCase(FastCase):
    """A house with ``news``, and forged tokens"""

    def setUp(self) -> None:
        self.fast = self.house()
        self.owner = self.fast.owner()

    def forged(self, count: int, start: int = 0) -> list[bytes]:
        """Return different forged tokens."""
        head, _, signature = OWNER.rpartition(b".")
        return [head + b".%06d" % n + signature[6:] for n in range(start, start + count)]

    def flood(self, client: Client, count: int) -> None:
        client.send(b"".join(wire.publish(raw, b"x") for raw in self.forged(count)))


class WaitingTests(ForgeryCase):
    """A connection that waits"""

    def test_a_waiting_connection_is_not_read(self) -> None:
        client = self.fast.client()
        self.flood(client, 6)
        assert client.take() == BAD * 4
        assert client.stream.paused
        client.send(wire.subscribe(OWNER))
        self.fast.clock.advance(0.039)
        assert client.take() == b""
        self.fast.clock.advance(0.001)
        assert client.take() == BAD
        self.fast.clock.advance(0.08)
        assert client.take() == BAD
        assert not client.stream.paused
        assert self.fast.refusals() == {"bad-token": 6}
        client.send(wire.publish(OWNER, b"x"))
        assert client.take() == wire.message(b"x")

    def test_waiting_loses_and_reorders_nothing(self) -> None:
        self.owner.send(wire.subscribe(OWNER))
        client = self.fast.client()
        packets = []
        for number, raw in enumerate(self.forged(8)):
            packets.append(wire.publish(raw, b"bad") + wire.publish(OWNER, b"%d" % number))
        client.send(b"".join(packets))
        client.send(wire.publish(OWNER, b"last"))
        self.fast.advance(10)
        assert client.take() == BAD * 8
        assert self.owner.take() == wire.message(*[b"%d" % n for n in range(8)], b"last")

    def test_cached_tokens_wait_only_after_a_waiting_one(self) -> None:
        client = self.fast.client(wire.subscribe(OWNER))
        self.flood(client, 4)
        assert client.take() == BAD * 4
        client.send(wire.publish(self.forged(5)[4], b"x") + wire.publish(OWNER, b"behind"))
        assert client.take() == b""
        self.fast.clock.advance(0.04)
        assert client.take() == BAD + wire.message(b"behind")

    def test_a_valid_token_ends_the_delay(self) -> None:
        client = self.fast.client()
        self.flood(client, 5)
        client.send(wire.publish(wire.grant(sub="zoe"), b"x"))
        self.fast.advance(1)
        assert client.take() == BAD * 5
        client.send(wire.publish(self.forged(9)[8], b"x"))
        assert client.take() == BAD

    def test_every_kind_of_request_waits(self) -> None:
        for request in (wire.create, wire.subscribe):
            client = self.fast.client()
            client.send(b"".join(request(raw) for raw in self.forged(6)))
            assert len(client.take()) == 4 * 7
            self.fast.advance(1)
            assert len(client.take()) == 2 * 7

    def test_a_token_for_each_request_does_not_wait(self) -> None:
        verifications = self.fast.listeners["fast"].verifications
        verifications.take(verifications.available() - 1)
        client = self.fast.client(wire.subscribe(OWNER))
        for number in range(5):
            client.send(wire.publish(wire.grant(jti=str(number)), b"%d" % number))
        assert client.take() == wire.message(*[b"%d" % number for number in range(5)])

    def test_other_connections_do_not_wait(self) -> None:
        self.flood(self.fast.client(), 100)
        self.owner.send(wire.subscribe(OWNER) + wire.publish(OWNER, b"x"))
        assert self.owner.take() == wire.message(b"x")
        assert self.answer(self.fast, wire.subscribe(wire.grant(sub="new"))) == b""

    def test_a_client_that_disconnects_meanwhile_holds_nothing(self) -> None:
        for end in ("lose", "close", "stop"):
            fast = Fast(self)
            client = fast.client()
            self.flood(client, 50) if end != "stop" else client.send(b"")
            if end == "lose":
                client.stream.lose()
            elif end == "close":
                client.protocol.close()
            else:
                client.send(b"".join(wire.publish(raw, b"x") for raw in self.forged(9)))
                client.protocol.drain()
            # The audit log counts the attempts of a minute.
            fast.advance(100)
            assert not fast.clock.getDelayedCalls()
            assert not fast.broker.clients

    def test_a_partial_packet_after_the_wait(self) -> None:
        client = self.fast.client()
        whole = b"".join(wire.publish(raw, b"x") for raw in self.forged(5)) + wire.subscribe(OWNER)
        client.send(whole[:-3])
        self.fast.advance(1)
        assert client.take() == BAD * 5
        client.send(whole[-3:] + wire.publish(OWNER, b"x"))
        assert client.take() == wire.message(b"x")


class FloodTests(ForgeryCase):
    """Many connections at once"""

    def test_all_connections_share_the_rate(self) -> None:
        fast = self.fast
        clients = [fast.client() for _ in range(VERIFICATIONS // 4 + 50)]
        before = fast.broker.tokens.misses
        for number, client in enumerate(clients):
            tokens = self.forged(4, 4 * number)
            client.send(b"".join(wire.publish(raw, b"x") for raw in tokens))
        assert fast.broker.tokens.misses - before <= VERIFICATIONS
        assert fast.listeners["fast"].verifications.available() < 1
        assert len(fast.broker.tokens) == 1
        late = fast.client(wire.subscribe(wire.grant(sub="late")))
        assert late.stream.paused
        # Clients whose tokens are cached continue.
        self.owner.send(wire.subscribe(OWNER) + wire.publish(OWNER, b"x"))
        assert self.owner.take() == wire.message(b"x")
        fast.advance(1)
        self.owner.send(wire.publish(OWNER, b"y"))
        assert late.take() == wire.message(b"y")

    def test_a_flood_costs_no_memory_but_that_of_heads_which_are_given_up_when_it_is_short(
        self,
    ) -> None:
        before = self.fast.broker.memory.used
        for n in range(20):
            client = self.fast.client()
            tokens = self.forged(50, 50 * n)
            client.send(b"".join(wire.publish(raw, b"x", topic=NEWS + n) for raw in tokens))
            self.fast.advance(2)
            client.stream.lose()
        assert len(self.fast.broker.tokens) == 1
        memory = self.fast.broker.memory
        assert memory.used == before + 1000 * HEAD_BYTES
        account = self.fast.broker.tokens._account
        assert account is not None
        verified = account.nbytes
        memory.limit = memory.used
        memory.add(0)
        assert memory.used == before - verified
