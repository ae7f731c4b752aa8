"""``pubsub check-config`` and ``pubsub drain``, with a fake API."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import trustme

from pubsub.commands import api_client
from pubsub.plugin import installed_protocols
from pubsub.server.configuration import CommandLine, merge
from pubsub.server.configuration_changes import describe
from tests.unit.command_case import CommandCase
from tests.unit.nkey_seed import SEED

CAFE = b'[[listen]]\nprotocol = "cafe"\nport = 7070\n'


def _at(endpoint: str) -> bytes:
    """Return a file with a listener at this endpoint."""
    return f'[[listen]]\nprotocol = "cafe"\nendpoint = "{endpoint}"\n'.encode()


class CheckTests(CommandCase):
    """check-config"""

    def test_a_valid_file(self) -> None:
        path = self.file("a", CAFE)
        assert self.run_it("check-config", path) == (0, f"{path}: valid\n", "")

    def test_errors_are_one_line(self) -> None:
        wrong = [
            (b"max-topcis = 5", "max-topcis: no such setting; did you mean max-topics?"),
            (b"max-topics = -5", "max-topics: expected a whole number from 0 to "),
            (b"max-topics", "Expected '='"),
            (b'[[listen]]\nprotocol = "fast"', "fast: no master secret is configured"),
            (CAFE + b'endpoint = "x"', "listen cafe: port and endpoint are given"),
            (b'[[listen]]\nprotocol = "cafe"\nendpoint = "tcp:x"', "cafe: cannot use endpoint"),
            (b'store = "memory"\nmax-memory = "1M"', "max-memory: the history alone needs "),
            (b'store = "memory"\ndurability = "a=sync"', "durability: a=sync needs a history on"),
            (b"max-topics = 3\n" + CAFE, "cafe: its topics cannot be created (limit-reached: "),
            (b'secret-file = "/no/such/file"', "/no/such/file"),
            (CAFE + CAFE.replace(b"cafe", b"nsd"), "nsd: cannot listen on tcp:7070:interface=127."),
            (_at("tcp:7070"), "cafe: tcp 0.0.0.0:7070 would admit anonymous clients of other"),
            (_at("tcp6:7070"), "cafe: tcp [::]:7070 would admit anonymous clients of other"),
            (_at("unix:/a") + _at("unix:/a"), "another listener of the file has this address"),
            *[
                (
                    b"allow-anonymous = true\n" + _at(one) + _at(other),
                    "another listener of the file",
                )
                for one, other in (
                    ("tcp:7070", "tcp:7070:interface=127.0.0.1"),
                    ("tcp6:7070:interface=\\\\:\\\\:1", "tcp6:7070"),
                    ("tcp:7070:interface=127.0.0.2", "tcp6:7070"),
                )
            ],
            (_at("unix:/a") + b"udp = true\n", "cafe: UDP requires a TCP endpoint"),
            (b'audit-log = "/no/such/dir/file"', "/no/such/dir/file: No such file or directory"),
            (b'audit-log = "/"', "audit-log: /: Is a directory"),
        ]
        for content, message in wrong:
            path = self.file("wrong", content)
            line = self.one_line("check-config", path)
            assert line.startswith(f"pubsub: {path}: ")
            assert message in line

    def test_addresses_that_the_start_accepts(self) -> None:
        files = [
            b"allow-anonymous = false\n" + _at("tcp:7070"),
            _at("haproxy:tcp:7070"),
            _at("tcp:7070:interface=localhost") + b"udp = true\n",
            _at("tcp:0:interface=127.0.0.1") * 2,
            _at("tcp:7070:interface=127.0.0.1") + _at("tcp:7070:interface=127.0.0.2"),
            b"allow-anonymous = false\n"
            + _at("tcp:7070")
            + _at("tcp6:7070:interface=\\\\:\\\\:1")
            + _at("tcp:7071"),
            _at("unix:/a") + _at("unix:/b"),
        ]
        for content in files:
            path = self.file("a", content)
            assert self.run_it("check-config", path) == (0, f"{path}: valid\n", "")

    def test_warnings_of_the_start(self) -> None:
        secret = self.file("secret", b"x" * 40)
        os.chmod(secret, 0o644)
        content = f'secret-file = "{secret}"\nmax-memory = "900000G"\n'.encode() + CAFE
        path = self.file("a", content)
        code, out, err = self.run_it("check-config", path)
        valid, readable, memory = out.splitlines()
        assert (code, valid, err) == (0, f"{path}: valid", "")
        start = f"warning: secret 'secret-file': {secret} can be read by others; "
        assert readable.startswith(start)
        assert memory.startswith("warning: max-memory: with 900000G the broker may exceed ")

    def test_certificates_that_have_ended(self) -> None:
        ended = trustme.CA().issue_cert("a.example", not_after=datetime(2001, 7, 1, tzinfo=UTC))
        pem = ended.private_key_and_cert_chain_pem.bytes()
        certificate = self.file("a.pem", pem)
        path = self.file("a", f'tls-cert = "{certificate}"\n'.encode() + CAFE)
        code, out, err = self.run_it("check-config", path)
        warning = "warning: cafe: the certificate of a.example has expired on 2001-07-01; "
        assert (code, err) == (0, "")
        assert out.splitlines()[1].startswith(warning)

    def test_files_of_the_backplane_that_others_can_read(self) -> None:
        credentials = self.file("creds", SEED.encode())
        os.chmod(credentials, 0o644)
        content = f'backplane = "tls://localhost"\nbackplane-creds = "{credentials}"\n'
        path = self.file("a", content.encode() + CAFE)
        warning = "warning: backplane-{}: {} can be read by others; chmod 600 it"
        _, out, _ = self.run_it("check-config", path)
        assert out.splitlines()[1:] == [warning.format("creds", credentials)]

    def test_nothing_is_written(self) -> None:
        audit, store = self.directory / "audit", self.directory / "history"
        path = self.file("a", f'audit-log = "{audit}"\nstore = "log:{store}"\n'.encode() + CAFE)
        assert self.run_it("check-config", path)[0] == 0
        assert not audit.exists()
        assert not store.exists()

    def test_sockets_of_the_service_manager(self) -> None:
        for endpoint in ("systemd:name=cafe", "haproxy:systemd:name=cafe"):
            path = self.file("a", _at(endpoint))
            assert self.run_it("check-config", path)[0] == 0

    def test_what_the_start_would_refuse(self) -> None:
        two = b'[[listen]]\nprotocol = "%s"\nendpoint = "systemd:name=a"\n'
        file = self.file("a file", b"")
        for text, reason in (
            (two % b"cafe" + two % b"nsd", "nsd: cannot listen on systemd:name=a: another listen"),
            (f'store = "log:{file}"\n'.encode() + CAFE, "is a file; give a directory"),
            (
                b'[[listen]]\nprotocol = "cafe"\nendpoint = "unix:/%s"' % (b"x" * 107),
                "AF_UNIX path too long; choose a shorter path",
            ),
        ):
            code, _, err = self.run_it("check-config", self.file("new", text))
            assert code == 1
            assert reason in err

    def test_against_another_file(self) -> None:
        old, new = self.file("old", CAFE), self.file("new", b"max-topics = 500\n" + CAFE)
        code, out, _ = self.run_it("check-config", new, "--against", old)
        assert (code, out.splitlines()[1:]) == (0, ["max-topics: 100000 becomes 500 (at once)"])
        code, out, _ = self.run_it("check-config", new, "--against", new)
        assert (code, out.splitlines()[1:]) == (0, ["a reload changes nothing"])
        restart = self.file("restart", b"tuning = false\n" + CAFE)
        code, out, _ = self.run_it("check-config", restart, "--against", old)
        assert (code, out.splitlines()[1:]) == (3, ["tuning: on becomes off (needs a restart)"])

    def test_credentials_that_are_not_shown(self) -> None:
        old = self.file("old", b'backplane = "nats://u:one@localhost"\n' + CAFE)
        new = self.file("new", b'backplane = "nats://u:two@localhost"\n' + CAFE)
        code, out, err = self.run_it("check-config", new, "--against", old)
        expected = ["backplane: the credentials change (needs a restart)"]
        assert (code, out.splitlines()[1:], err) == (3, expected, "")
        assert "two" not in out

    def test_against_a_running_broker(self) -> None:
        path = self.file("a", b"max-topics = 500\n" + CAFE)
        listen = [{"protocol": "cafe", "port": 7070}]
        running = describe(merge(installed_protocols(), CommandLine(), {"listen": listen}))
        with patch.object(api_client.Api, "get", lambda api, path: running):
            code, out, _ = self.run_it("check-config", path, "--url=http://127.0.0.1:7080")
        assert (code, out.splitlines()[1:]) == (0, ["max-topics: 100000 becomes 500 (at once)"])

    def test_one_comparison_at_a_time(self) -> None:
        path = self.file("a", CAFE)
        code, _, err = self.run_it(
            "check-config", path, "--against", path, "--url=http://127.0.0.1:7080"
        )
        assert code == 2
        assert "--against and --url exclude each other" in err


class DrainTests(CommandCase):
    """drain"""

    def drain(self, *arguments: str, stops: bool) -> tuple[dict[str, Any], str]:
        """Return the request and the output."""
        sent: list[Any] = []

        def post(api: api_client.Api, path: str, content: object) -> object:
            assert path == "/v1/drain"
            sent.append(content)
            drained = [{"protocol": "cafe", "endpoint": "tcp:7070"}]
            return {"drained": drained, "stops": stops, "stop_timeout": 10.0}

        with patch.object(api_client.Api, "post", post):
            code, out, err = self.run_it("drain", *arguments)
        assert (code, err) == (0, "")
        (body,) = sent
        return body, out

    def test_the_broker_stops(self) -> None:
        assert self.drain(stops=True) == (
            {"keep_running": False},
            "draining cafe tcp:7070\nthe broker stops within 10 s\n",
        )

    def test_one_listener(self) -> None:
        assert self.drain("--listener=cafe", stops=False) == (
            {"keep_running": False, "listener": "cafe"},
            "draining cafe tcp:7070\nclients leave within 10 s\n",
        )

    def test_it_keeps_running(self) -> None:
        body, _ = self.drain("--keep-running", stops=False)
        assert body == {"keep_running": True}
