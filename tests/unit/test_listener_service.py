"""The listeners' services: endpoints, errors in one line, socket options, UDP beside TCP."""

from __future__ import annotations

import errno
import os
import pathlib
import resource
import socket
import struct
import sys
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import patch

import pytest
import trustme
from twisted.internet import reactor, tcp, udp
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError, ConnectionDone
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SkipTest, SynchronousTestCase, TestCase

from pubsub.broker.service import BrokerService
from pubsub.errors import ConfigurationError, StartError
from pubsub.server.clocks import system_wall_clock
from pubsub.store.memory_store import MemoryStore
from pubsub.tuning import LOOPBACK_RENO, TUNED, Tuning
from pubsub.wire import accept_errors
from pubsub.wire.light_transport import LightTransport
from pubsub.wire.listener_service import BACKLOG, ListenerService
from pubsub.wire.server_tls import subject_of
from tests.unit.cafe_wire import Cafe
from tests.unit.fakes import scratch
from tests.unit.streams import logged
from tests.unit.tunings import without


def service_at(endpoint: str, factory: Any = None, tuning: Tuning = TUNED) -> ListenerService:
    factory = factory or Factory.forProtocol(Protocol)
    return ListenerService("toy", endpoint, factory, reactor, tuning=tuning)


def congestion_control(of: socket.socket) -> bytes:
    """Return the name of its congestion control."""
    return of.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def port_of(service: ListenerService) -> tcp.Port:
    (port,) = service._ports
    return cast(tcp.Port, port)


def taken(kind: socket.SocketKind = socket.SOCK_STREAM) -> tuple[socket.socket, int]:
    """Return a socket that is bound to a port, and the port."""
    holder = socket.socket(socket.AF_INET, kind)
    holder.bind(("127.0.0.1", 0))
    if kind is socket.SOCK_STREAM:
        holder.listen()
    return holder, holder.getsockname()[1]


def socket_path(test: TestCase) -> str:
    """Return a path for a socket, in a directory that is removed after the test."""
    return os.path.join(test.enterContext(TemporaryDirectory()), "s")


class _Accepting:
    """A listening socket whose ``accept`` has these outcomes."""

    def __init__(self, *outcomes: Any) -> None:
        self._outcomes = iter(outcomes)

    def accept(self) -> Any:
        """See socket."""
        outcome = next(self._outcomes)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome


class EndpointTests(SynchronousTestCase):
    """Invalid descriptions"""

    def test_invalid_descriptions_are_one_line_errors(self) -> None:
        for endpoint in ("tcp", "tcp:", "tcp:http:x", "nonsense:1", "ssl:443:privateKey=/none",
                         "tcp:1:interface=a:b", "unix", ""):  # fmt: skip
            with pytest.raises(ConfigurationError) as caught:
                service_at(endpoint)
            text = str(caught.value)
            assert text.startswith(f"toy: cannot use endpoint {endpoint!r}: ")
            assert "\n" not in text

    def test_an_ipv6_address_with_plain_colons_gets_a_hint(self) -> None:
        for endpoint in ("tcp:0:interface=::1", "tcp6:0:interface=fe80::1", "tcp:1:interface=2:3"):
            with pytest.raises(ConfigurationError, match="IPv6"):
                service_at(endpoint)
        assert service_at(r"tcp:0:interface=\:\:1")

    def test_the_certificates_of_an_endpoint(self) -> None:
        directory, authority = scratch(self), trustme.CA()
        own, extra = (authority.issue_cert(name) for name in ("a.example", "b.example"))
        files = []
        for name, blob in (
            ("key", own.private_key_pem), ("own", own.cert_chain_pems[0]),
            ("extra", extra.cert_chain_pems[0]),
        ):  # fmt: skip
            files.append(directory / name)
            files[-1].write_bytes(blob.bytes())
        key, certificate, chain = files
        text = f"ssl:0:privateKey={key}:certKey={certificate}"
        for endpoint, subjects in (
            ("tcp:0", []),
            ("haproxy:tcp:0", []),
            (text, ["a.example"]),
            (f"haproxy:{text}:extraCertChain={chain}", ["a.example", "b.example"]),
        ):
            found = service_at(endpoint).endpoint_certificates
            assert list(map(subject_of, found)) == subjects

    def test_systemd_without_a_socket_unit_is_a_clear_error(self) -> None:
        for endpoint in ("systemd:domain=INET:index=0", "systemd:name=cafe.socket"):
            with pytest.raises(ConfigurationError, match="socket unit"):
                service_at(endpoint)


class ListenTests(TestCase):
    """Real ports on the loopback interface"""

    def start(self, endpoint: str, factory: Any = None) -> ListenerService:
        service = service_at(endpoint, factory)
        self.addCleanup(service.stopService)
        service.startService()
        return service

    def refuse(self, endpoint: str, factory: Any = None) -> str:
        """Return the error of a listener that cannot start."""
        service = service_at(endpoint, factory)
        self.addCleanup(service.stopService)
        with pytest.raises(StartError) as caught:
            service.startService()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_a_port_in_use_is_a_one_line_error(self) -> None:
        holder, port = taken()
        self.addCleanup(holder.close)
        endpoint = f"tcp:{port}:interface=127.0.0.1"
        assert self.refuse(endpoint) == (
            f"toy: cannot listen on {endpoint}: Address already in use; "
            "stop the program that listens there, or choose another port"
        )

    def test_a_foreign_address_is_a_one_line_error(self) -> None:
        assert "annot assign" in self.refuse("tcp:0:interface=192.0.2.1")

    def test_an_unusable_path_is_a_one_line_error(self) -> None:
        assert self.refuse("unix:/nowhere/at/all.sock").endswith(
            "No such file or directory; make the directory of the socket"
        )

    def test_a_file_at_the_path_is_a_one_line_error(self) -> None:
        path = socket_path(self)
        pathlib.Path(path).touch()
        assert self.refuse(f"unix:{path}").endswith("or remove the file if none does")

    def test_a_path_that_is_too_long_leaves_no_lock_file(self) -> None:
        directory = self.enterContext(TemporaryDirectory())
        assert "path too long" in self.refuse(f"unix:{directory}/{'x' * 200}")
        assert os.listdir(directory) == []

    def test_the_lock_file_of_another_listener_stays(self) -> None:
        directory = self.enterContext(TemporaryDirectory())
        self.start(f"unix:{directory}/s")
        assert self.refuse(f"unix:{directory}/s").endswith(
            "another listener of this process has the socket; choose another path"
        )
        assert sorted(os.listdir(directory)) == ["s", "s.lock"]

    def test_the_lock_of_another_process_is_named(self) -> None:
        path = socket_path(self)
        os.symlink(str(os.getppid()), f"{path}.lock")
        assert self.refuse(f"unix:{path}") == (
            f"toy: cannot listen on unix:{path}: process {os.getppid()} has the socket; stop it or "
            f"choose another path, or remove {path}.lock if that process does not listen there"
        )

    def test_the_address_is_logged(self) -> None:
        lines = logged(self)
        path = socket_path(self)
        self.start("tcp:0:interface=127.0.0.1")
        self.start(f"unix:{path}")
        assert any(line.startswith("toy on tcp 127.0.0.1:") for line in lines)
        assert f"toy on unix {path}" in lines

    def test_a_unix_socket_is_open_to_the_group_unless_a_mode_is_given(self) -> None:
        for description, mode in (
            ("unix:{}", 0o660), ("unix:{}:mode=600", 0o600), ("unix:address={}:mode=0666", 0o666),
            ("haproxy:unix:{}", 0o660), (r"unix:{}\:mode\=1", 0o660),
        ):  # fmt: skip
            port = port_of(self.start(description.format(socket_path(self))))
            assert os.stat(port.getHost().name).st_mode & 0o777 == mode, description

    def test_connections_that_cannot_be_accepted_are_counted_and_not_logged(self) -> None:
        refused: list[tuple[str, str]] = []
        service = ListenerService(
            "toy",
            "tcp:0:interface=127.0.0.1",
            Factory.forProtocol(Protocol),
            reactor,
            lambda reason, client: refused.append((reason, client)),
        )
        self.addCleanup(service.stopService)
        service.startService()
        lines = logged(self)
        port = port_of(service)
        real, clients = port.socket, [socket.socket(), socket.socket()]
        self.addCleanup(setattr, port, "socket", real)
        port.socket = _Accepting(OSError(errno.ENOMEM, ""))
        port.doRead()
        outcomes = [OSError(errno.EMFILE, ""), *((s, ("192.0.2.1", 7)) for s in clients)]
        port.socket = _Accepting(*outcomes, BlockingIOError(errno.EAGAIN, ""))
        port.numberAccepts = 5
        port.doRead()
        assert refused == [("not-accepted", "ENOMEM")] + [("file-descriptors", "192.0.2.1:7")] * 2
        assert [client.fileno() for client in clients] == [-1, -1]
        assert lines == []

    def test_the_last_descriptors_are_not_for_connections(self) -> None:
        refused: list[tuple[str, str]] = []
        service = ListenerService(
            "toy",
            "tcp:0:interface=127.0.0.1",
            Factory.forProtocol(Protocol),
            reactor,
            lambda reason, client: refused.append((reason, client)),
        )
        self.addCleanup(service.stopService)
        service.startService()
        port = port_of(service)
        self.patch(  # type: ignore[no-untyped-call]
            accept_errors, "connection_descriptors", lambda spared: 0
        )
        with socket.create_connection(("127.0.0.1", port.getHost().port)) as client:
            port.doRead()
            name = f"127.0.0.1:{client.getsockname()[1]}"
            client.settimeout(5)
            assert client.recv(1) == b""
        assert refused == [("file-descriptors", name)]
        # Many that arrive at once are refused in several ticks.
        address = ("127.0.0.1", port.getHost().port)
        clients = [socket.create_connection(address) for _ in range(40)]
        lines = logged(self)
        port.doRead()
        assert len(refused) == 1 + 32
        port.doRead()
        assert len(refused) == 1 + 40
        assert lines == []
        for client in clients:
            client.close()

    def test_descriptors_that_connections_may_take(self) -> None:
        infinity = resource.RLIM_INFINITY
        for limit, allowed in ((1024, 992), (65_536, 65_504), (64, 48), (infinity, sys.maxsize)):
            with patch.object(resource, "getrlimit", return_value=(limit, infinity)):
                assert accept_errors.connection_descriptors() == allowed

    def test_descriptors_that_spared_connections_may_take(self) -> None:
        infinity = resource.RLIM_INFINITY
        for limit, allowed in ((1024, 1000), (64, 52), (8, 6), (infinity, sys.maxsize)):
            with patch.object(resource, "getrlimit", return_value=(limit, infinity)):
                assert accept_errors.connection_descriptors(True) == allowed

    def test_the_backlog_is_large(self) -> None:
        if not sys.platform.startswith("linux"):
            raise SkipTest("the backlog is in TCP_INFO of Linux alone")
        service = self.start("tcp:0:interface=127.0.0.1")
        info = port_of(service).socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        backlog = struct.unpack_from("7I", info, 8)[5]
        with open("/proc/sys/net/core/somaxconn", encoding="ascii") as file:
            assert backlog == min(BACKLOG, int(file.read()))

    def test_accepted_sockets_send_at_once(self) -> None:
        made: list[Protocol] = []

        class Server(Protocol):
            def connectionMade(self) -> None:
                made.append(self)

        service = self.start("tcp:0:interface=127.0.0.1", Factory.forProtocol(Server))
        port = port_of(service)
        with socket.create_connection(("127.0.0.1", port.getHost().port)) as client:
            port.doRead()
            (server,) = made
            transport = cast(LightTransport, server.transport)
            assert type(transport) is LightTransport
            assert transport.getTcpNoDelay()
            # A peer that has vanished is noticed.
            assert transport.getTcpKeepAlive()
            transport.write(b"hello")
            assert client.recv(10) == b"hello"
            transport.connectionLost(Failure(ConnectionDone()))

    def test_loopback_has_reno_if_it_is_tuned(self) -> None:
        if not hasattr(socket, "TCP_CONGESTION"):
            raise SkipTest("TCP_CONGESTION is of Linux")
        with socket.socket() as untouched:
            default = congestion_control(untouched)
        for tuning, expected in ((TUNED, b"reno"), (without(LOOPBACK_RENO), default)):
            service = service_at("tcp:0:interface=127.0.0.1", tuning=tuning)
            self.addCleanup(service.stopService)
            service.startService()
            assert congestion_control(port_of(service).socket) == expected
            assert port_of(service).socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    def test_a_stopped_listener_accepts_nothing(self) -> Deferred[Any]:
        service = service_at("tcp:0:interface=127.0.0.1")
        service.startService()
        service.startService()
        number = port_of(service).getHost().port

        def check(result: object) -> None:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", number))

        return service.stopService().addCallback(check)


class DatagramTests(TestCase):
    """cafe over UDP on the port of TCP"""

    def setUp(self) -> None:
        self.cafe = Cafe(udp=True)
        self.factory = self.cafe.factories["cafe"]

    def serve(self, endpoint: str) -> ListenerService:
        service = ListenerService("cafe", endpoint, self.factory, reactor)
        self.addCleanup(self.close, service)
        service.startService()
        return service

    def close(self, service: ListenerService) -> Deferred[Any]:
        self.cafe.broker.drainage.drain(self.cafe.broker.clients)
        return service.stopService()

    def test_udp_has_the_port_of_tcp(self) -> None:
        service = self.serve("tcp:0:interface=127.0.0.1")
        host = service._ports[0].getHost()
        assert isinstance(host, IPv4Address)
        (client,) = self.cafe.broker.clients
        transport = cast(udp.Port, cast(Any, client).transport)
        assert transport.getHost() == IPv4Address("UDP", "127.0.0.1", host.port)
        assert host.port != 0

    def test_a_udp_port_in_use_is_a_one_line_error(self) -> None:
        holder, port = taken(socket.SOCK_DGRAM)
        self.addCleanup(holder.close)
        with pytest.raises(StartError, match="Address already in use"):
            self.serve(f"tcp:{port}:interface=127.0.0.1")

    def test_a_port_that_the_system_chooses_is_free_for_udp(self) -> None:
        """Clients over UDP have ephemeral ports, too."""
        real = reactor.listenUDP  # type: ignore[attr-defined]
        refused: list[int] = []

        def listen(port: int, *given: Any, **more: Any) -> Any:
            if len(refused) < 3:
                refused.append(port)
                raise CannotListenError("127.0.0.1", port, OSError(errno.EADDRINUSE, "in use"))
            return real(port, *given, **more)

        self.patch(reactor, "listenUDP", listen)  # type: ignore[no-untyped-call]
        lines = logged(self)
        service = self.serve("tcp:0:interface=127.0.0.1")
        (port,) = [cast(IPv4Address, one).port for one in service.addresses]
        assert port not in refused
        assert len(set(refused)) == 3
        # Others are not shown.
        found = [line for line in lines if line.startswith("cafe on ")]
        assert found == [f"cafe on tcp 127.0.0.1:{port}", f"cafe on udp 127.0.0.1:{port}"]
        (client,) = self.cafe.broker.clients
        assert cast(Any, client).transport.getHost().port == port

    def test_udp_requires_a_port_number(self) -> None:
        path = socket_path(self)
        with pytest.raises(StartError, match="UDP requires a TCP endpoint"):
            self.serve(f"unix:{path}")

    def test_without_the_option_there_is_no_udp(self) -> None:
        self.factory = Cafe().factories["cafe"]
        self.serve("tcp:0:interface=127.0.0.1")
        assert not self.cafe.broker.clients


class BrokerTests(TestCase):
    """A listener as a child of the broker"""

    def test_a_port_in_use_stops_the_start(self) -> None:
        holder, port = taken()
        self.addCleanup(holder.close)
        broker = BrokerService(
            cast(IReactorTime, reactor), system_wall_clock(), MemoryStore(10, 1000)
        )
        service = service_at(f"tcp:{port}:interface=127.0.0.1")
        service.setServiceParent(broker)  # type: ignore[no-untyped-call]
        with pytest.raises(StartError):
            broker.startService()
        self.addCleanup(broker.stopService)
