"""The base of the blocking publishers: the socket, windows and errors."""

from __future__ import annotations

import socket
import ssl

from pubsub.protocols.nsd.client import NsdPublisher
from pubsub.protocols.rheos.client import RheosPublisher
from pubsub.wire.blocking_publisher import (
    WINDOW_BYTES,
    WINDOW_MESSAGES,
    Address,
    ConnectionBroken,
    NotPublished,
)
from tests.unit import nsd_lines
from tests.unit.raising import raised
from tests.unit.sockets import (
    ADDRESS,
    FakeSocket,
    PublisherCase,
    ScriptedSocket,
    connect_to,
    refuse_connections,
)
from tests.unit.streams import House


class ConnectionTests(PublisherCase):
    """BlockingPublisher"""

    def test_the_connection_is_made_for_the_first_message(self) -> None:
        made = ScriptedSocket([nsd_lines.SUCCESS * 2])
        calls = connect_to(self, made)
        with NsdPublisher(ADDRESS) as publisher:
            publisher.finish()
            publisher.add("t", b"x")
            assert calls == []
            publisher.finish()
            assert calls == [(("broker.example", 7070), 20.0)]
            assert made.options == [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
            assert made.timeout == 120
            assert not made.closed
        assert made.closed

    def test_a_publisher_that_was_not_used_has_nothing_to_close(self) -> None:
        with NsdPublisher(ADDRESS):
            refuse_connections(self)

    def test_an_unreachable_broker_is_an_error(self) -> None:
        refuse_connections(self)
        publisher = NsdPublisher(ADDRESS)
        publisher.add("t", b"x")
        error = raised(ConnectionBroken, publisher.finish)
        assert "broker.example:7070" in str(error)
        assert "connection refused" in str(error)

    def test_tls_checks_the_name_of_the_host(self) -> None:
        made, names = ScriptedSocket([nsd_lines.SUCCESS * 2]), []
        connect_to(self, made)

        class Context:
            def wrap_socket(self, plain: FakeSocket, server_hostname: str) -> FakeSocket:
                names.append((plain, server_hostname))
                return plain

        self.patch(ssl, "create_default_context", Context)  # type: ignore[no-untyped-call]
        with NsdPublisher(Address("broker.example", 7071, tls=True)) as publisher:
            publisher.add("t", b"x")
            publisher.finish()
        assert names == [(made, "broker.example")]

    def test_replies_may_arrive_in_any_pieces(self) -> None:
        house = House({"nsd": {}})
        self.over(house, "nsd", piece=1)
        with NsdPublisher(ADDRESS) as publisher:
            for number in range(3):
                publisher.add("t", b"%d" % number)
            publisher.finish()
        assert self.published(house, "t") == [b"0", b"1", b"2"]

    def test_a_window_of_messages_is_sent_and_confirmed(self) -> None:
        house = House({"rheos": {}})
        self.over(house, "rheos")
        with RheosPublisher(ADDRESS) as publisher:
            for number in range(WINDOW_MESSAGES - 1):
                publisher.add("t", b"%d" % number)
            assert self.published(house, "t") == []
            publisher.add("t", b"last")
            assert self.published(house, "t")[-1] == b"last"
        assert len(self.published(house, "t")) == WINDOW_MESSAGES

    def test_a_window_of_bytes_is_sent_and_confirmed(self) -> None:
        house = House({"rheos": {}})
        self.over(house, "rheos")
        with RheosPublisher(ADDRESS) as publisher:
            for _ in range(-(-WINDOW_BYTES // 65_000)):
                publisher.add("t", bytes(65_000))
            assert len(self.published(house, "t")) == -(-WINDOW_BYTES // 65_000)

    def test_a_closed_connection_is_an_error(self) -> None:
        self.scripted(b"")
        publisher = NsdPublisher(ADDRESS)
        publisher.add("t", b"x")
        assert "closed the connection" in str(raised(ConnectionBroken, publisher.finish))

    def test_a_timeout_is_an_error(self) -> None:
        self.scripted(TimeoutError("timed out"))
        publisher = NsdPublisher(ADDRESS)
        publisher.add("t", b"x")
        assert "timed out" in str(raised(ConnectionBroken, publisher.finish))

    def test_a_refusal_before_the_end_is_the_error(self) -> None:
        """A send fails because the broker has closed; its last reply has the reason."""
        self.scripted(nsd_lines.error("no room"), nsd_lines.error("no room"), fails=True)
        publisher = NsdPublisher(ADDRESS)
        publisher.add("t", b"x")
        assert "no room" in str(raised(NotPublished, publisher.finish))

    def test_a_send_that_fails_without_a_reply(self) -> None:
        self.scripted(fails=True)
        publisher = NsdPublisher(ADDRESS)
        publisher.add("t", b"x")
        assert "broken pipe" in str(raised(ConnectionBroken, publisher.finish))
