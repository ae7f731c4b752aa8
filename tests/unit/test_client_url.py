"""URLs of brokers, and the files and tokens that are named beside them."""

from __future__ import annotations

import os
import ssl
from dataclasses import replace
from inspect import signature
from typing import Any
from unittest.mock import patch

import trustme
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from pubsub import client as asyncio_client
from pubsub.client import InvalidUrl, blocking
from pubsub.client import twisted as twisted_client
from pubsub.client.client_options import read_options
from pubsub.client.client_tls import TlsOptions
from pubsub.client.client_url import find_side, parse_url, parse_urls, wires_for
from pubsub.client.credentials import Secret, end_of_token, read_token
from pubsub.client.notices import Notice
from pubsub.wire.client_wire import Role, UserLogin
from tests.unit.fakes import Toy, scratch
from tests.unit.raising import raised
from tests.unit.tokens import token


def refusal(url: str, **options: object) -> str:
    """Return why ``url`` is refused."""
    return str(raised(InvalidUrl, parse_url, url, options))


class SeveralUrlsTests(SynchronousTestCase):
    """parse_urls"""

    def shown(self, urls: str | list[str]) -> list[str]:
        return [str(one) for one in parse_urls(urls)]

    def refusal(self, *urls: str) -> str:
        return str(raised(InvalidUrl, parse_urls, list(urls)))

    def test_a_list_or_a_text_with_commas(self) -> None:
        expected = ["cafe://a:7070", "cafe://b:1"]
        assert self.shown(["cafe://a", "cafe://b:1"]) == expected
        assert self.shown("cafe://a,cafe://b:1") == expected
        assert self.shown("cafe://a , cafe://b:1") == expected
        assert self.shown("cafe://a") == self.shown(["cafe://a"]) == ["cafe://a:7070"]

    def test_commas_of_parameters_stay(self) -> None:
        channels = "channels=0-15,40:orders"
        found = parse_urls(f"cafe://a?{channels},cafe://b?{channels}")
        assert list(map(str, found)) == ["cafe://a:7070", "cafe://b:7070"]
        assert found[0].values == parse_url(f"cafe://a?{channels}").values

    def test_each_is_there_once(self) -> None:
        assert self.shown(["cafe://b", "cafe://a", "cafe://b:7070"]) == [
            "cafe://b:7070", "cafe://a:7070",
        ]  # fmt: skip

    def test_none(self) -> None:
        assert "there is no URL" in self.refusal()
        assert "has no protocol" in self.refusal("")
        for given in (["cafe://a", ""], "cafe://a,", ",cafe://a"):
            assert "a URL is empty" in str(raised(InvalidUrl, parse_urls, given))

    def test_commas_and_spaces_in_the_host(self) -> None:
        lists = (
            "cafe://a,b",
            "cafe://a:1,b:2",
            "cafe://a,,cafe://b",
            "cafe://a cafe://b",
            "cafe://a ",
        )
        for given in (*lists, ["cafe://a,cafe://b"]):
            assert "each have their protocol" in str(raised(InvalidUrl, parse_urls, given)), given
        assert self.shown("cafe://bob:pass, word@a") == ["cafe://a:7070"]

    def test_they_differ_in_host_and_port_only(self) -> None:
        for other in ("nsd://b", "cafe+tls://b"):
            text = self.refusal("cafe://a", other)
            assert text.endswith("are of different protocols; name one protocol"), text
        assert self.refusal("spot://a", "spot://b?max-message=2K") == (
            "spot://a:7073 and spot://b:7073 have different parameters; give all the same"
        )
        text = self.refusal("cafe://bob:hunter2@a", "cafe://bob:hunter3@b")
        assert text.endswith("have different users or passwords; give one user")
        assert "hunter" not in text
        assert "different users" in self.refusal("cafe://bob:hunter2@a", "cafe://b")

    def test_options_are_for_all(self) -> None:
        options = read_options(["cafe://a", "cafe://b"], user="bob", password="hunter2")
        assert {one.login for one in options.targets} == {UserLogin("bob", "hunter2")}
        options = read_options("spot://a,spot://b", max_message="2K")
        assert {one.values["max-message"] for one in options.targets} == {2048}

    def test_the_api(self) -> None:
        options = read_options("cafe://a", api=["http://a", "http://b"])
        assert list(map(str, options.api_urls())) == ["http://a:7080", "http://b:7080"]
        with patch.dict(os.environ, {"PUBSUB_API": "http://c,http://d"}):
            options = read_options("cafe://a")
        assert list(map(str, options.api_urls())) == ["http://c:7080", "http://d:7080"]
        mixed = read_options("cafe://a", api="http://a,cafe://b")
        assert str(raised(InvalidUrl, mixed.api_urls)).startswith("api= or PUBSUB_API: ")

    def test_wrong_types(self) -> None:
        given: Any
        for given in (None, 5, {"cafe://a"}, ["cafe://a", b"cafe://b"]):
            text = str(raised(TypeError, read_options, given))
            assert text.startswith("the URL must be str, not ")
        given = [5]
        text = str(raised(TypeError, read_options, "cafe://a", api=given))
        assert text == "api must be str, not int, or a list of str"

    def test_a_client_shows_all(self) -> None:
        client = twisted_client.connect(["cafe://a", "cafe://b"], reactor=MemoryReactorClock())
        assert repr(client) == "<Client of cafe://a:7070, cafe://b:7070>"


class UrlTests(SynchronousTestCase):
    """parse_url"""

    def test_it_is_shown_with_port_and_scheme(self) -> None:
        for given, shown in (
            ("cafe://host", "cafe://host:7070"),
            ("nsd+tls://host:1/", "nsd+tls://host:1"),
            ("https://host", "https://host:7080"),
            ("http+tls://host", "https://host:7080"),
            ("http://[::1]:9", "http://[::1]:9"),
        ):
            assert str(parse_url(given)) == shown

    def test_parameters_stand_in_the_url_or_beside_it(self) -> None:
        assert parse_url("spot://h?max-message=2K").values == {"max-message": 2048}
        assert parse_url("spot://h?max-message=2K", {"max-message": 7}).values == {"max-message": 7}
        assert refusal("spot://h?max-message=few").startswith("spot:// max-message: ")
        assert refusal("spot://h", size=1).endswith("no parameter 'size'; it has max-message")
        assert refusal("nsd://h?a=b") == "nsd:// has no parameter 'a'"

    def test_a_mistyped_option(self) -> None:
        for url, given, near in (
            ("cafe://h", "tiemout", "timeout"),
            ("cafe://h", "channel", "channels"),
            ("nsd://h", "queue_byte", "queue_bytes"),
            ("nsd+tls://h", "tlsca", "tls_ca"),
            ("rheos://h", "on_events", "on_event"),
        ):
            text = str(raised(InvalidUrl, read_options, url, **{given: 5}))
            wire = url.partition("+")[0].partition(":")[0]
            assert text == f"{wire}:// has no parameter {given!r}; did you mean {near}?"
        assert refusal("spot://h?max_message=5").endswith("; did you mean max-message?")
        # An option of the library is no parameter of a URL.
        assert "did you mean" not in refusal("nsd://h?tiemout=5")

    def test_an_option_has_the_name_of_its_parameter(self) -> None:
        assert read_options("spot://h", max_message="2K").target.values == {"max-message": 2048}
        given: dict[str, Any] = {"max-message": 7}
        assert read_options("spot://h", **given).target.values == {"max-message": 7}

    def test_malformed_urls(self) -> None:
        for port in ("port", "0", "65536", "-1"):
            expected = "the port of the URL is not a number from 1 to 65535"
            assert refusal(f"cafe://h:{port}") == expected
        assert refusal("cafe://[h") == "the URL is malformed"
        assert refusal("cafe://:7070") == "the URL has no host; write cafe://HOST:PORT"
        assert "has no path" in refusal("cafe://h/topic")
        assert "has no path" in refusal("cafe://h#topic")

    def test_credentials_are_refused_and_not_shown(self) -> None:
        for url in ("http://bob:hunter2@h", "fast://hunter2@h", "rheos://:hunter2@h"):
            assert "no credentials" in refusal(url)
            assert "hunter2" not in refusal(url)
        for url in ("cafe://hunter2@h", "nsd://:hunter2@h", "spot://hunter2:@h"):
            assert "://USER:PASSWORD@HOST" in refusal(url)
            assert "hunter2" not in refusal(url)

    def test_a_password_is_read_and_not_shown(self) -> None:
        for wire in ("cafe", "nsd", "spot", "nsd+tls"):
            options = read_options(f"{wire}://b%40b:hunt%3Aer2@h")
            assert options.target.login == UserLogin("b@b", "hunt:er2")
            shown = f"{options} {options.target!r} {options.wire.options!r} {options.target}"
            assert "er2" not in shown
            for role in Role:
                connection = options.wire.connect(role)
                assert "er2" not in repr(connection)

    def test_a_user_and_a_password_beside_the_url(self) -> None:
        given: Any
        for url, given in (
            ("cafe://h", {"user": "b@b", "password": "hunt:er2"}),
            ("spot://b%40b@h", {"password": "hunt:er2"}),
        ):
            options = read_options(url, **given)
            assert options.target.login == UserLogin("b@b", "hunt:er2")
            assert options.token is None
            assert "er2" not in f"{options}"
        for url, given, reason in (
            ("cafe://h", {"password": "hunter2"}, "give user= and password="),
            ("cafe://h", {"user": "bob"}, "give user= and password="),
            ("cafe://bob@h", {"user": "bob", "password": "hunter2"}, "give it once"),
            ("cafe://bob:x@h", {"password": "hunter2"}, "give it once"),
            ("http://h", {"password": "hunter2"}, "http has no users: give token= or"),
            (
                "rheos://h",
                {"user": "bob", "password": "hunter2"},
                "rheos has no users: give a certificate",
            ),
        ):
            problem = str(raised(InvalidUrl, read_options, url, **given))
            assert reason in problem, problem
            assert "hunter2" not in problem

    def test_passwords_that_a_wire_cannot_express(self) -> None:
        long = "x" * 300
        for url, reason in (
            (f"cafe://bob:{long}@h", "up to 231 bytes"),
            ("cafe://b%3Ab:x@h", "it is the user, without a colon"),
            (f"spot://bob:{long}@h", "of up to 255 bytes"),
        ):
            problem = str(raised(InvalidUrl, read_options, url))
            assert reason in problem
            assert long not in problem
        problem = str(raised(InvalidUrl, read_options, "cafe://bob:x@h", client_id="ann"))
        assert "it is the user" in problem

    def test_protocols_that_are_not_installed(self) -> None:
        assert "no client for 'gopher'; choose from cafe://, " in refusal("gopher://h")
        for url in ("", "//h", "h", "localhost:7070", "127.0.0.1:7070"):
            assert "the URL has no protocol; write http://HOST:PORT" in refusal(url)
        with patch("pubsub.client.client_url.find_spec", lambda _: None):
            assert "no client for 'cafe'" in refusal("cafe://h")
            assert wires_for("t", "nsd") == []

    def test_an_installed_protocol_brings_its_client(self) -> None:
        toy, bare = Toy("toy", 99), Toy("bare", 98)
        toy.client = replace(find_side("nsd"), port=0)  # type: ignore[assignment]
        with patch("pubsub.plugin.installed_protocols", lambda: {"toy": toy, "bare": bare}):
            assert str(parse_url("toy://h")) == "toy://h:99"
            assert "no client for 'bare'" in refusal("bare://h")

    def test_wires_for_any_topic(self) -> None:
        assert wires_for("t", "rheos") == ["fast", "nsd", "spot", "http"]

    def test_credentials_that_a_wire_cannot_express(self) -> None:
        fast = parse_url("fast://h")
        assert "PUBSUB_TOKEN" in str(raised(InvalidUrl, fast.wire, b"bob", None))
        assert fast.wire(b"bob", "t").options.token == "t"
        cafe = parse_url("cafe://h")
        # cafe has no tokens: the wire does not get it.
        assert cafe.wire(b"bob", "t").options.token is None
        assert raised(InvalidUrl, cafe.wire, b"x" * 1000, None).args[0]


async def asynchronous(notice: Notice) -> None:
    """Handle nothing."""


class OptionsTests(SynchronousTestCase):
    """read_options"""

    def test_values_of_another_type(self) -> None:
        for given, text in (
            ({"timeout": "5"}, "must be numbers, not '5'"),
            ({"queue_bytes": "8M"}, "must be numbers, not '8M'"),
            ({"client_id": b"bob"}, "client_id must be str, not bytes"),
            ({"token": 5}, "token must be str, not int"),
            ({"user": b"x"}, "user must be str, not bytes"),
            ({"password": b"x"}, "password must be str, not bytes"),
            ({"api": 5}, "api must be str, not int"),
            ({"on_event": 5}, "on_event must be a function, not int"),
            ({"on_event": asynchronous}, "on_event must be a function without async"),
        ):
            assert text in str(raised(TypeError, read_options, "nsd://h", **given))
        assert "the URL must be str, not NoneType" in str(raised(TypeError, read_options, None))

    def test_each_shell_shows_the_options_and_passes_them_on(self) -> None:
        own = list(signature(read_options).parameters)
        for connect, more in (
            (asyncio_client.connect, []),
            (blocking.connect, []),
            (twisted_client.connect, ["reactor"]),
        ):
            assert list(signature(connect).parameters) == [*own[:-1], *more, own[-1]]
        client = twisted_client.connect("cafe://h", reactor=MemoryReactorClock(), channels="7")
        assert repr(client) == "<Client of cafe://h:7070>"
        text = str(raised(InvalidUrl, twisted_client.connect, "cafe://h", reacter=5))
        assert "cafe:// has no parameter 'reacter'" in text

    def test_files_may_be_paths(self) -> None:
        path = scratch(self) / "ca.pem"
        path.write_text("")
        assert read_options("cafe+tls://h", tls_ca=path).tls.ca == str(path)

    def test_limits_are_positive(self) -> None:
        nan = float("nan")
        for given in ({"timeout": 0}, {"queue_bytes": 0}, {"feed_bytes": -1}, {"timeout": nan}):
            assert "greater than 0" in str(raised(InvalidUrl, read_options, "nsd://h", **given))

    def test_the_token_is_not_shown(self) -> None:
        with patch.dict("os.environ", {"PUBSUB_API": "http://h:1"}):
            options = read_options("fast://h", client_id="bob", token="hunter2")
        assert "hunter2" not in repr(options)
        assert options.api == "http://h:1"

    def test_an_api_of_none_is_not_that_of_the_environment(self) -> None:
        with patch.dict("os.environ", {"PUBSUB_API": "http://h:1"}):
            assert read_options("cafe://h", api="").api is None


class TokenTests(SynchronousTestCase):
    """read_token"""

    def test_the_argument_the_file_and_the_environment(self) -> None:
        path = scratch(self) / "token"
        path.write_text("from-file \nmore\n")
        variable = {"PUBSUB_TOKEN": "from-environment"}
        for given, file, text in (
            ("a", None, "a"),
            (None, path, "from-file"),
            (None, None, "from-environment"),
        ):
            found = read_token(given, file, variable)
            assert found is not None
            assert found.reveal() == text
            assert repr(found) == "Secret(...)"
        assert read_token(None, None, {"PUBSUB_TOKEN": ""}) is None
        assert isinstance(read_token("", None, variable), Secret)

    def test_the_end_of_a_token(self) -> None:
        for claims, end in (
            ({"exp": 1796070000}, 1796070000.0), ({"sub": "ada"}, 0.0), ({"exp": "soon"}, 0.0),
        ):  # fmt: skip
            assert end_of_token(token(claims).decode()) == end
        for other in ("", "abc", "a.b.c", "..", "x.e30.y", "x.W10.y", "x.\u2603.y"):
            assert end_of_token(other) == 0

    def test_mistakes(self) -> None:
        directory = scratch(self)
        (directory / "empty").write_text("\nt\n")
        (directory / "binary").write_bytes(b"\xff\xfe\n")

        def refused(name: str) -> str:
            return str(raised(InvalidUrl, read_token, None, directory / name, {}))

        assert "give one of" in str(raised(InvalidUrl, read_token, "a", "b"))
        assert refused("none").endswith("none: No such file or directory")
        assert refused("binary").endswith("binary: not UTF-8")
        assert refused("empty").endswith("empty begins with an empty line")


class TlsTests(SynchronousTestCase):
    """TlsOptions"""

    def test_files_that_are_missing_or_do_not_fit(self) -> None:
        directory = scratch(self)
        (directory / "file").write_text("nothing")
        file, none = str(directory / "file"), str(directory / "none")
        assert str(raised(InvalidUrl, TlsOptions(key=file).check)) == "tls_key needs tls_cert"
        for options, text in (
            (TlsOptions(ca=none), "tls_ca"),
            (TlsOptions(certificate=none), "tls_cert"),
            (TlsOptions(certificate=file, key=none), "tls_key"),
        ):
            missing = f"{text} {none}: No such file or directory; give a file in PEM"
            assert str(raised(InvalidUrl, options.check)) == missing
        (directory / "behind").symlink_to(file + "/none")
        os.mkfifo(directory / "fifo")
        for name, reason in (
            ("", "not a regular file"),
            ("fifo", "not a regular file"),
            ("behind", "Not a directory"),
        ):
            path = str(directory / name)
            error = str(raised(InvalidUrl, TlsOptions(ca=path).check))
            assert error == f"tls_ca {path}: {reason}; give a file in PEM"
        for options, text in (
            (TlsOptions(ca=file), "tls_ca"),
            (TlsOptions(certificate=file), "tls_cert"),
        ):
            options.check()
            assert str(raised(InvalidUrl, options.context)).startswith(f"{text} {file}: ")

    def test_the_context_verifies(self) -> None:
        directory = scratch(self)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        own = authority.issue_cert("bob")
        own.private_key_and_cert_chain_pem.write_to_path(str(directory / "own.pem"))
        options = TlsOptions(str(directory / "ca.pem"), str(directory / "own.pem"))
        options.check()
        context = options.context()
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert len(context.get_ca_certs()) == 1
