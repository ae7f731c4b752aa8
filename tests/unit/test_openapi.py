"""The OpenAPI document has the routes and the parameters that there are."""

from __future__ import annotations

import re
from typing import Any

from openapi_spec_validator import validate
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.http_api.dashboard_files import PREFIX as DASHBOARD
from pubsub.http_api.endpoints import ENDPOINTS, JSON, Endpoint
from pubsub.http_api.routes import route_of
from tests.unit.web import WebHouse

_UNKNOWN = re.compile(r"unknown parameter 'nonsense'; expected (.*)")
# Endpoints that look at no parameter of the URL.
_BLIND = {
    "GET /", "GET /healthz", "GET /readyz", "GET /metrics", "GET /v1/ws",
}  # fmt: skip


def name_of(endpoint: Endpoint) -> str:
    """Return the method and the path."""
    return f"{endpoint.method} {endpoint.path}"


class DocumentTests(SynchronousTestCase):
    """/v1/openapi.json"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.house.broker.tokens.replace(SecretRing([]))

    def test_it_is_valid(self) -> None:
        document = self.house.get("/v1/openapi.json").json
        validate(document)
        assert len(document["paths"]) == len({one.path for one in ENDPOINTS})

    def test_the_list_for_people_has_the_same(self) -> None:
        lines = self.house.get("/v1").body.decode().splitlines()[1:]
        assert [line.split()[:2] for line in lines] == [
            [one.method, one.path.replace("{name}", "NAME")] for one in ENDPOINTS
        ]

    def test_it_has_the_routes_that_there_are(self) -> None:
        routes = {
            (path, method.decode())
            for path, methods in self.house.factory._routes.table.items()
            for method in methods
            if path != DASHBOARD
        }
        declared = [
            (route_of(one.path.replace("{name}", "x").encode()), one.method) for one in ENDPOINTS
        ]
        assert set(declared) == routes
        assert len(declared) == len(routes)

    def test_it_has_the_parameters_of_the_url(self) -> None:
        for one in ENDPOINTS:
            if name_of(one) in _BLIND or (one.body is not None and one.body_type == JSON):
                continue
            message = self.ask(one, "?nonsense=1", b"" if one.body is not None else None)
            found = _UNKNOWN.match(message)
            assert found, (name_of(one), message)
            expected = sorted(found[1].split(", ")) if found[1] != "none" else []
            assert expected == sorted(one.query), name_of(one)

    def test_it_has_the_members_of_the_body(self) -> None:
        for one in ENDPOINTS:
            if one.body is None or one.body_type != JSON:
                continue
            found = _UNKNOWN.match(self.ask(one, "", {"nonsense": 1}))
            assert found, name_of(one)
            message = self.ask(one, "?nonsense=1", {})
            assert message == "parameter 'nonsense' in the URL; give it in the JSON of the body"
            assert sorted(found[1].split(", ")) == sorted(one.body["properties"]), name_of(one)

    def test_it_has_the_status_of_a_drain_and_the_limits_of_a_position(self) -> None:
        paths = self.house.get("/v1/openapi.json").json["paths"]
        client = self.house.connect("127.0.0.1")
        status = client.post("/v1/drain", {"listener": "http"}).status
        assert str(status) in paths["/v1/drain"]["post"]["responses"]
        put = paths["/v1/readers/{name}"]["put"]
        members = put["requestBody"]["content"][JSON]["schema"]["properties"]
        most = members["quiet_topics"]["maxLength"]
        given = {"offset": 0, "quiet_from": 0}
        for length, status in ((most, 204), (most + 1, 400)):
            client = self.house.connect("127.0.0.1")
            client.ask("PUT", "/v1/readers/x", {**given, "quiet_topics": "x" * length})
            assert client.answer("PUT").status == status

    def ask(self, one: Endpoint, query: str, body: Any) -> str:
        """Return the detail of the refusal."""
        client = self.house.connect("127.0.0.1")
        client.ask(one.method, one.path.replace("{name}", "x") + query, body)
        answer = client.answer(one.method)
        assert answer.status == 400, (name_of(one), answer.status, answer.body[:300])
        return str(answer.json["detail"])
