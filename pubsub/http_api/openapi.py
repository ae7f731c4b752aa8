"""The OpenAPI 3.1 document of the HTTP API, made of the declarations of its endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pubsub.build_info import version
from pubsub.http_api.endpoints import ENDPOINTS, TEXT, Endpoint
from pubsub.http_api.requests.api_error import PROBLEM
from pubsub.http_api.requests.parameters import Parameters
from pubsub.http_api.requests.request_access import request_access
from pubsub.management.listing import to_json

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.requests.api_request import ApiRequest

VERSION = "3.1.0"
_PROBLEM_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "error"],
    "properties": {"status": {"type": "integer"}, "error": {"type": "string"}},
}


async def openapi(listener: Listener, request: ApiRequest) -> None:
    """GET /v1/openapi.json"""
    Parameters.of_url(request)
    # Anyone may ask, but a client learns early that its token is not valid.
    request_access(request, listener)
    request.answer(200, _encoded())


@cache
def _encoded() -> bytes:
    return to_json(document(ENDPOINTS)) + b"\n"


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the document that describes ``endpoints``."""
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    return {
        "openapi": VERSION,
        "info": {"title": "pubsub", "version": version()},
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM_SCHEMA},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(one: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{one.method.lower()} {one.path}",
        "summary": one.summary,
        "parameters": list(_parameters(one)),
        "responses": _responses(one),
    }
    if one.permission:
        operation["description"] = f"Permission: {one.permission}."
    if one.body is not None:
        content = {one.body_type: {"schema": one.body}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _parameters(one: Endpoint) -> Iterator[dict[str, Any]]:
    if "{name}" in one.path:
        yield {"name": "name", "in": "path", "required": True, "schema": TEXT}
    for name, schema in one.query.items():
        required = name in one.required
        yield {"name": name, "in": "query", "required": required, "schema": schema}


def _responses(one: Endpoint) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): {
            "description": "done" if status < 300 else "not now",
            "content": {kind: {"schema": schema} for kind, schema in answer.items()},
        }
        for status, answer in one.answers.items()
    }
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    responses["default"] = {"description": "an error", "content": {PROBLEM: problem}}
    return responses
