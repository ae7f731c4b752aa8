"""allow-anonymous: which clients are served that prove nothing."""

from __future__ import annotations

import socket
from ipaddress import ip_network
from typing import Any

import pytest
from twisted.internet import reactor
from twisted.internet.address import UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pubsub.broker.access_rules.access_table import AccessTable, Who
from pubsub.broker.credentials.anonymous_policy import ALLOW_ANONYMOUS, admits_anonymous, is_here
from pubsub.broker.credentials.identity import CERTIFICATE, Identity
from pubsub.broker.listeners.tls_settings import TLS
from pubsub.errors import AuthenticationRequired, StartError
from pubsub.server.command_line import make_options
from pubsub.wire.listener_service import ListenerService
from tests.unit import cafe_wire as wire
from tests.unit.access_rules import rule
from tests.unit.fakes import make_broker, make_listener
from tests.unit.streams import House
from tests.unit.web import WebClient, WebHouse
from tests.unit.web_sockets import SocketClient

HERE, THERE = "127.0.0.1", "192.0.2.7"
FORWARDING = (
    "Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP",
)  # fmt: skip


class PolicyTests(SynchronousTestCase):
    """The setting"""

    def test_addresses_of_this_machine(self) -> None:
        assert all(map(is_here, ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "unix", "")))
        assert not any(map(is_here, ("192.0.2.7", "0.0.0.0", "::", "fe80::1%eth0")))

    def test_values(self) -> None:
        parse = ALLOW_ANONYMOUS.parse
        assert [parse(value) for value in (True, 1, "on", False, "no", "auto")] == [
            "on", "on", "on", "off", "off", "auto",
        ]  # fmt: skip
        with pytest.raises(ValueError, match="expected on, off or auto, not 'maybe'"):
            parse("maybe")

    def test_each_value(self) -> None:
        table = (("auto", True, False), ("on", True, True), ("off", False, False))
        for value, here, there in table:
            settings = {"allow-anonymous": value, "tls-client": "none"}
            assert admits_anonymous(settings, HERE) is here
            assert admits_anonymous(settings, THERE) is there

    def test_where_certificates_are_required_every_address_is_admitted(self) -> None:
        settings = {"allow-anonymous": "auto", "tls-client": "required", TLS: object()}
        assert admits_anonymous(settings, THERE)
        assert not admits_anonymous({**settings, TLS: None}, THERE)
        assert not admits_anonymous({**settings, "tls-client": "optional"}, THERE)
        assert not admits_anonymous({**settings, "allow-anonymous": "off"}, THERE)

    def test_the_option_takes_no_value(self) -> None:
        options = make_options()
        options.parseOptions(["--allow-anonymous", "--proto=cafe"])
        assert options.config.listeners[0].settings["allow-anonymous"] == "on"
        options = make_options()
        options.parseOptions(["--proto=cafe"])
        assert options.config.listeners[0].settings["allow-anonymous"] == "auto"


class ListenerTests(SynchronousTestCase):
    """The rights of anonymous clients at a listener"""

    def test_nothing_if_they_are_not_admitted(self) -> None:
        listener = make_listener(make_broker(), allow_anonymous="off")
        rules = listener.access_for(Identity(host=HERE))
        assert not any(rules.may(action, "a") for action in ("publish", "subscribe", "history"))
        assert not rules.may("admin")
        assert listener.access_for(Identity("ada", CERTIFICATE, host=THERE)).may("publish", "a")
        with pytest.raises(AuthenticationRequired):
            listener.check_identity(Identity(host=HERE))

    def test_by_their_address(self) -> None:
        listener = make_listener(make_broker(), allow_anonymous="auto")
        assert listener.access_for(Identity(host=HERE)).may("publish", "a")
        assert not listener.access_for(Identity(host=THERE)).may("publish", "a")

    def test_a_change_counts_at_once(self) -> None:
        listener = make_listener(make_broker())
        rules = listener.access_for(Identity(host=THERE))
        assert rules.may("publish", "a")
        listener.reconfigure({**listener.settings, "allow-anonymous": "off"})
        assert not rules.may("publish", "a")

    def test_a_protocol_that_authenticates_requests(self) -> None:
        listener = make_listener(make_broker(), allow_anonymous="off")
        listener.authenticates_requests()
        assert not listener.is_exposed("0.0.0.0")
        assert listener.admits_anonymous(THERE)

    def test_the_list_of_listeners_shows_it(self) -> None:
        for policy, shown in (("auto", True), ("on", True), ("off", False)):
            house = WebHouse(allow_anonymous=policy)
            answer = house.get("/v1/listeners", token=house.token("metrics"))
            assert [row["anonymous"] for row in answer.json["items"]] == [shown]
        listener = make_listener(make_broker(), allow_anonymous="on")
        listener.authenticates_requests()
        assert not listener.serves_anonymous

    def test_a_client_from_before_authentication_was_required_has_no_rights(self) -> None:
        for policy in ("off", "on"):
            listener = make_listener(make_broker(), allow_anonymous=policy)
            listener.authenticates_requests(lambda settings: settings["slow-seconds"] == 7)
            rules = listener.access_for(Identity(host=THERE))
            assert rules.may("publish", "a") == (policy == "on")
            listener.reconfigure({**listener.settings, "slow-seconds": 7})
            assert not rules.may("publish", "a")
            assert listener.access_for(Identity("ada", CERTIFICATE)).may("publish", "a")


class RefusalTests(SynchronousTestCase):
    """A client that is not served, in the protocol's terms"""

    def test_cafe(self) -> None:
        house = House({"cafe": {"allow-anonymous": False}})
        for handshake in (wire.hs_pub(1), wire.hs_sub(b"\x01")):
            client = house.connect("cafe")
            client.send(handshake)
            assert client.take()[7] == 0x08
            assert client.closed

    def test_a_subscription_ends_with_the_permission(self) -> None:
        house = House({"cafe": {}})
        house.start()
        client = house.connect("cafe")
        client.send(wire.hs_sub(b"\x01"))
        client.take()
        house.document["listen"][0]["allow-anonymous"] = False  # type: ignore[index]
        house.reloader().reload()
        house.pump(3)
        assert client.take() == wire.error(0x08)


class ExposureTests(TestCase):
    """Listening at addresses that other machines can reach"""

    def service(self, endpoint: str, **settings: Any) -> ListenerService:
        settings.setdefault("allow_anonymous", "auto")
        listener = make_listener(make_broker(), **settings)
        service = ListenerService(
            "toy", endpoint, Factory(), reactor, is_exposed=listener.is_exposed
        )
        self.addCleanup(service.stopService)
        return service

    def test_it_does_not_start(self) -> None:
        with pytest.raises(StartError) as caught:
            self.service("tcp:0:interface=0.0.0.0").startService()
        message = str(caught.value)
        assert message.startswith("toy: tcp 0.0.0.0:")
        assert message.endswith(
            " would admit anonymous clients of other machines; set allow-anonymous on to admit "
            "them or off to refuse them, or listen on 127.0.0.1"
        )

    def test_the_port_is_closed_again(self) -> Deferred[None]:
        with socket.create_server(("0.0.0.0", 0)) as free:
            port = free.getsockname()[1]
        with pytest.raises(StartError):
            self.service(f"tcp:{port}").startService()
        again = self.service(f"tcp:{port}:interface=127.0.0.1")
        return deferLater(reactor, 0, again.startService)

    def test_it_starts_where_that_is_decided(self) -> None:
        for value in ("on", "off"):
            self.service("tcp:0", allow_anonymous=value).startService()
        self.service("tcp:0:interface=127.0.0.1").startService()

    def test_behind_a_proxy_the_clients_address_counts(self) -> None:
        self.service("haproxy:tcp:0").startService()


class HttpTests(SynchronousTestCase):
    """The HTTP API"""

    def test_a_request_needs_a_token(self) -> None:
        house = WebHouse(allow_anonymous="off")
        house.publish("a", b"1")
        for path in ("/v1/bounds", "/v1/topics", "/v1/history?start=0", "/v1/readers", "/metrics"):
            answer = house.get(path)
            assert answer.error == (401, "authentication-required"), path
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert house.get("/v1").status == 200
        assert house.get("/v1/bounds", token=house.token("history")).status == 200

    def test_a_web_socket_needs_a_token(self) -> None:
        house = WebHouse(allow_anonymous="off")
        client = SocketClient(house)
        assert client.response is not None
        assert client.response.status_code == 101
        assert client.refused("connect") == "authentication-required"
        assert client.close_code == 4001

    def test_a_request_through_a_proxy_on_this_machine(self) -> None:
        house = WebHouse(allow_anonymous="auto")
        token = house.token("history")
        assert house.connect(HERE).get("/v1/bounds").status == 200
        for name in FORWARDING:
            assert house.connect(HERE).get("/v1/bounds", **{name: THERE}).error[0] == 401
            answer = house.connect(HERE).get("/v1/bounds", token=token, **{name: THERE})
            assert answer.status == 200

    def test_a_request_of_http_1_0_may_come_through_a_proxy(self) -> None:
        house = WebHouse(allow_anonymous="auto")
        client = house.connect(HERE)
        client.send(b"GET /v1/bounds HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert client.answer().error == (401, "authentication-required")

    def test_a_web_socket_through_a_proxy(self) -> None:
        house = WebHouse(allow_anonymous="auto")
        assert "epoch" in SocketClient(house, host=HERE).ask("connect")
        client = SocketClient(house, host=HERE, headers={"X-Forwarded-For": THERE})
        assert client.refused("connect") == "authentication-required"

    def test_rules_for_an_address_do_not_apply_to_other_clients_of_a_proxy(self) -> None:
        house = WebHouse(allow_anonymous="on")
        here = Who(networks=(ip_network("127.0.0.0/8"),))
        house.broker.set_access(AccessTable([rule(True, who=here)]))
        house.publish("a", b"1")
        path, token = "/v1/history?start=0&topic=a", house.token("history")
        for given in ({}, {"token": token}):
            assert house.connect(HERE).get(path, **given).status == 200
            answer = house.connect(HERE).get(path, Via="1.1 proxy", **given)
            assert answer.error == (403, "not-authorized")

    def test_the_user_of_a_proxy_at_a_unix_socket_is_not_the_clients(self) -> None:
        for headers, status in (({}, 200), ({"Via": "1.1 proxy"}, 401)):
            house = WebHouse(allow_anonymous="off")
            client = WebClient(house.factory, house.clock, UNIXAddress(None))
            near, far = socket.socketpair()
            self.addCleanup(near.close)
            self.addCleanup(far.close)
            client.stream.socket = near  # type: ignore[attr-defined]
            assert client.get("/v1/bounds", **headers).status == status
