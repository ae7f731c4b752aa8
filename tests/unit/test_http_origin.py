"""HTTP: the names that a request may use for the broker, the web pages that may send one."""

from __future__ import annotations

from socket import gethostname

from twisted.trial.unittest import SynchronousTestCase

from tests.unit.streams import logged
from tests.unit.web import Answer, WebHouse

BOUNDS = b"GET /v1/bounds HTTP/1.1\r\n"


class HostTests(SynchronousTestCase):
    """Host"""

    def setUp(self) -> None:
        self.house = WebHouse(http_hosts="broker,*.Example.org")

    def status(self, host: str) -> tuple[int, str]:
        """Return the status and error of a request with this Host."""
        answer = self.house.get("/v1/bounds", Host=host)
        return answer.status, "" if answer.status == 200 else answer.json["error"]

    def test_names_of_the_broker(self) -> None:
        for host in (
            "localhost", "LOCALHOST:7080", "a.localhost", "127.0.0.1", "127.0.0.1:7080",
            "192.0.2.1", "[::1]:7080", "[2001:db8::1]", gethostname(), "broker", "broker.:7080",
            "A.example.org:1",
        ):  # fmt: skip
            assert self.status(host) == (200, ""), host

    def test_other_names_are_refused(self) -> None:
        for host in (
            "evil.example", "evil.example:7080", "localhost.evil.example", "example.org", "",
            ":7080", "127.0.0.1.evil.example", "broker@evil", "[evil]", "127.1",
            "localhost:7080:1", "a b",
        ):  # fmt: skip
            assert self.status(host) == (403, "host"), host

    def test_health_checks_may_have_any_name(self) -> None:
        for path in ("/healthz", "/readyz"):
            assert self.house.get(path, Host="cluster_pubsub").status == 200
            origin = self.house.get(path, Host="a.example", Origin="https://evil.example")
            assert origin.error == (403, "origin")

    def test_the_error_names_the_setting(self) -> None:
        answer = self.house.get("/v1/bounds", Host="evil.example")
        assert answer.json["message"] == (
            "Host evil.example is not a name of this broker; add it to the setting http-hosts"
        )
        assert self.house.broker.counters.refusals["http", "host"] == 1
        answer = self.house.get("/v1/bounds", Origin="http://app.example")
        assert answer.json["message"] == (
            "cross-origin request from http://app.example refused; add it to the setting "
            "http-origins"
        )

    def test_the_first_of_each_kind_is_logged(self) -> None:
        lines = logged(self)
        for host in ("evil.example", "worse.example"):
            self.house.get("/v1/bounds", Host=host)
        for origin in ("http://app.example", "http://other.example"):
            self.house.get("/v1/bounds", Origin=origin)
        assert [line for line in lines if "only counted" in line] == [
            "http: 'Host evil.example is not a name of this broker; add it to the setting "
            "http-hosts'; others are only counted",
            "http: 'cross-origin request from http://app.example refused; add it to the setting "
            "http-origins'; others are only counted",
        ]

    def test_a_page_whose_name_is_bound_to_the_broker_is_refused(self) -> None:
        answer = self.house.get("/v1/bounds", Host="evil.example", Origin="http://evil.example")
        assert answer.error == (403, "host")

    def test_two_hosts(self) -> None:
        client = self.house.connect()
        client.send(BOUNDS + b"Host: localhost\r\nHost: evil.example\r\n\r\n")
        assert client.answer().error == (400, "invalid-request")

    def test_a_target_in_absolute_form_names_the_host(self) -> None:
        def answer(target: bytes, host: bytes = b"evil.example") -> Answer:
            client = self.house.connect()
            client.send(b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            return client.answer()

        assert answer(b"http://localhost:7080/v1/bounds").status == 200
        assert answer(b"HTTPS://localhost/v1/topics?limit=1").status == 200
        assert b"pubsub" in answer(b"http://localhost").body
        assert answer(b"http://evil.example/v1/bounds", b"localhost").error == (403, "host")
        assert answer(b"http:///v1/bounds", b"localhost").error == (403, "host")

    def test_none(self) -> None:
        client = self.house.connect()
        client.send(BOUNDS + b"\r\n")
        assert client.answer().status == 200

    def test_a_star_stands_for_all(self) -> None:
        assert WebHouse(http_hosts="*").get("/v1/bounds", Host="evil.example").status == 200

    def test_a_reload_changes_it(self) -> None:
        listener = self.house.listener
        listener.reconfigure({**listener.settings, "http-hosts": ("other",)})
        assert self.status("broker") == (403, "host")
        assert self.status("other") == (200, "")


class OriginTests(SynchronousTestCase):
    """Origin"""

    def setUp(self) -> None:
        self.house = WebHouse(http_origins="https://good.example")

    def test_pages_of_other_sites_are_refused(self) -> None:
        for origin in (
            "http://evil.example",
            "null",
            "http://x.localhost",
            "http://localhost:1",
            "",
        ):
            assert self.house.get("/v1/bounds", Origin=origin).error == (403, "origin")

    def test_so_are_their_requests_without_an_origin(self) -> None:
        """An image or a script of a page has no Origin."""
        for site, mode, status in (
            ("cross-site", "no-cors", 403),
            ("same-site", "no-cors", 403),
            ("cross-site", "navigate", 200),
            ("same-origin", "no-cors", 200),
            ("none", "navigate", 200),
        ):
            given = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
            answer = self.house.get("/v1/bounds", **given)
            assert answer.status == status, site
            if status == 403:
                assert answer.error == (403, "origin")
            assert self.house.get("/healthz", **given).status == 200

    def test_responses_are_for_the_brokers_pages(self) -> None:
        for path in ("/v1/bounds", "/v1/history?start=0&format=jsonl", "/nothing", "/metrics", "/"):
            headers = self.house.get(path).headers
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert headers["Cache-Control"] == "no-store"

    def test_without_a_host_no_page_is_the_brokers(self) -> None:
        client = self.house.connect()
        client.send(BOUNDS + b"Origin: null\r\n\r\n")
        assert client.answer().error == (403, "origin")

    def test_the_brokers_own_pages(self) -> None:
        answer = self.house.get("/v1/bounds", Host="localhost:80", Origin="http://localhost:80")
        assert answer.status == 200
        assert "Access-Control-Allow-Origin" not in answer.headers

    def test_a_page_of_an_allowed_site_may_read_the_response(self) -> None:
        answer = self.house.get("/v1/bounds", Origin="https://good.example")
        assert answer.status == 200
        assert answer.headers["Access-Control-Allow-Origin"] == "https://good.example"
        assert answer.headers["Vary"] == "Origin"
        assert "Retry-After" in answer.headers["Access-Control-Expose-Headers"].split(", ")

    def test_errors_too(self) -> None:
        answer = self.house.get("/v1/nothing", Origin="https://good.example")
        assert answer.error == (404, "not-found")
        assert answer.headers["Access-Control-Allow-Origin"] == "https://good.example"

    def test_the_browser_asks_first(self) -> None:
        client = self.house.connect()
        client.ask("OPTIONS", "/v1/commit", Origin="https://good.example")
        answer = client.answer("OPTIONS")
        assert answer.status == 204
        assert answer.headers["Access-Control-Allow-Methods"] == "GET, POST, PUT, DELETE"
        allowed = answer.headers["Access-Control-Allow-Headers"].split(", ")
        assert allowed == ["authorization", "content-type", "last-event-id", "pubsub-sender"]

    def test_others_ask_in_vain(self) -> None:
        client = self.house.connect()
        client.ask("OPTIONS", "/v1/commit", Origin="https://evil.example")
        assert client.answer("OPTIONS").error == (403, "origin")

    def test_without_an_origin_the_methods_are_listed(self) -> None:
        client = self.house.connect()
        client.ask("OPTIONS", "/v1/history")
        answer = client.answer("OPTIONS")
        assert (answer.status, answer.headers["Allow"]) == (204, "GET, HEAD, POST, OPTIONS")

    def test_headers_of_messages_may_be_sent(self) -> None:
        client = self.house.connect()
        client.ask(
            "OPTIONS",
            "/v1/topics/a/messages",
            Origin="https://good.example",
            Access_Control_Request_Headers="Pubsub-Header-Kind, x-other",
        )
        allowed = client.answer("OPTIONS").headers["Access-Control-Allow-Headers"].split(", ")
        assert "pubsub-header-kind" in allowed
        assert "x-other" not in allowed


class EncodingTests(SynchronousTestCase):
    """Header values that are not UTF-8"""

    def test_they_are_the_clients_error(self) -> None:
        house = WebHouse()
        for header in (b"Authorization: Bearer \xff", b"Origin: \xff", b"X: \xe9", b"Host: \xff"):
            client = house.connect()
            client.send(BOUNDS + header + b"\r\n\r\n")
            answer = client.answer()
            assert answer.error == (400, "invalid-request"), header
            assert answer.json["message"].endswith(" is not UTF-8")
        assert house.get("/v1/bounds", X="\u00e9").status == 200
