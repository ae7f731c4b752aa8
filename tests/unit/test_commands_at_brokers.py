"""Commands with the URLs of several brokers."""

from __future__ import annotations

import json
from socket import socket
from typing import Any
from unittest.mock import patch

import pytest

from pubsub.commands import api_client
from pubsub.commands.api_client import Api, RequestFailed
from pubsub.commands.bench import _subscribers_at
from pubsub.commands.destination import Destination, resolve
from pubsub.errors import ConfigurationError
from tests.unit.client_case import FakeApi
from tests.unit.command_case import CommandCase

BOTH = "http://a:1,http://b:2"


class _Connection:
    """A connection of the API at a host. Those in ``refusing`` cannot be reached."""

    def __init__(self, host: str, port: int, case: BrokersCase) -> None:
        self.sock: socket | None = None
        self._host, self._case = host, case

    def request(self, method: str, target: str, **given: Any) -> None:
        self._case.tried.append(self._host)
        if self._host in self._case.refusing:
            raise ConnectionRefusedError(111, "Connection refused")
        self.sock = socket()
        self._case.addCleanup(self.sock.close)
        self._case.api.request(method, target, given["body"], given["headers"])

    def getresponse(self) -> Any:
        if self._host in self._case.cut_off:
            raise ConnectionResetError(104, "Connection reset by peer")
        assert self.sock is not None
        self._case.waits.append(self.sock.gettimeout())
        return self._case.api.getresponse()


class BrokersCase(CommandCase):
    """With two brokers in memory that have one API"""

    def setUp(self) -> None:
        super().setUp()
        self.api = FakeApi()
        self.tried: list[str] = []
        self.refusing: set[str] = set()
        self.cut_off: set[str] = set()
        self.waits: list[float | None] = []
        """The seconds for each connection, and for each reply."""
        environment = {"XDG_CONFIG_HOME": str(self.directory)}
        for patched in (
            patch.object(api_client, "HTTPConnection", self.connection),
            patch.dict("os.environ", environment),
        ):
            patched.start()
            self.addCleanup(patched.stop)

    def connection(self, host: str, port: int, timeout: float) -> _Connection:
        self.waits.append(timeout)
        return _Connection(host, port, self)

    def resolve(self, url: str | None, **environment: str) -> Destination:
        names = (
            "context", "api", "client_id", "token_file", "tls_ca", "tls_cert", "tls_key", "user",
            "password_file",
        )  # fmt: skip
        given = {**dict.fromkeys(names), "url": url}
        return resolve(given, {"XDG_CONFIG_HOME": str(self.directory), **environment})


class ApiTests(BrokersCase):
    def test_the_first_that_answers_has_all_requests(self) -> None:
        api = Api(self.resolve(BOTH))
        self.refusing = {"a"}
        api.bounds()
        self.refusing = set()
        api.bounds()
        assert self.tried == ["a", "b", "b"]
        # Offsets are those of this broker, so that no other one is asked.
        self.refusing = {"b"}
        with pytest.raises(RequestFailed, match="http://b:2: the broker cannot be reached"):
            api.bounds()
        assert self.tried == ["a", "b", "b", "b"]

    def test_an_address_that_does_not_answer_costs_little_time(self) -> None:
        self.refusing = {"a"}
        Api(self.resolve(BOTH)).bounds()
        assert self.waits == [5.0, 5.0, 30.0]

    def test_a_broker_that_takes_the_request_and_does_not_answer(self) -> None:
        self.cut_off = {"a"}
        api = Api(self.resolve(BOTH))
        api.bounds()
        assert self.tried == ["a", "b"]
        self.cut_off = {"b"}
        with pytest.raises(RequestFailed, match="http://b:2: the broker cannot be reached"):
            api.bounds()

    def test_none_can_be_reached(self) -> None:
        self.refusing = {"a", "b"}
        with pytest.raises(RequestFailed, match="http://b:2: the broker cannot be reached"):
            Api(self.resolve(BOTH)).bounds()
        assert self.tried == ["a", "b"]

    def test_a_change_is_for_one_broker(self) -> None:
        line = self.one_line("drain", f"--url={BOTH}")
        assert line == "pubsub: the request is for one broker; name it with --api or --url\n"
        assert self.tried == []


class UrlsTests(BrokersCase):
    def test_the_variable_and_a_context(self) -> None:
        assert self.resolve(None, PUBSUB_URL=BOTH).url == BOTH
        code, _, err = self.run_it("context", "add", "both", "cafe://a, cafe://b", "--api", BOTH)
        assert (code, err) == (0, "")
        found = self.resolve(None)
        assert (found.url, found.api) == ("cafe://a,cafe://b", BOTH)
        code, out, _ = self.run_it("context", "list", "--json")
        assert json.loads(out)["url"] == "cafe://a,cafe://b"
        line = self.one_line("context", "add", "mixed", "cafe://a,nsd://b")
        assert "are of different protocols" in line
        line = self.one_line("context", "add", "c", "cafe://a", "--api", "http://a,cafe://b")
        assert "--api: expected a URL with http:// or https://" in line

    def test_the_user_is_the_same_at_all(self) -> None:
        found = self.resolve("cafe://bob@a:1,cafe://bob@b:2")
        assert (found.url, found.user) == ("cafe://a:1,cafe://b:2", "bob")
        login = found.login_url({"PUBSUB_PASSWORD": "x"})
        assert login == "cafe://bob:x@a:1,cafe://bob:x@b:2"
        with pytest.raises(ConfigurationError, match="different users"):
            self.resolve("cafe://bob@a:1,cafe://b:2")

    def test_secrets_of_a_context_go_to_its_brokers(self) -> None:
        token = self.file("token", b"secret\n")
        self.run_it("context", "add", "both", "nsd://a:1,nsd://b:1", "--token-file", token)
        where = self.resolve(None)
        assert _subscribers_at(where, "cafe://b:2,cafe://a:2").token_file == token
        assert _subscribers_at(where, "cafe://b:2,cafe://c:2").token_file is None
