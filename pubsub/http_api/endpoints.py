"""The endpoints of the HTTP API as data: the parts of requests, and the responses.

``/v1/openapi.json``, the list at ``/v1`` and a table of the documentation are made of these
declarations. A test compares them with the routes, and with
the parameters that each endpoint accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pubsub.management.connections import STATES
from pubsub.management.listing import DEFAULT_ROWS, MAX_KEY, MAX_PATTERN, MAX_ROWS

Schema = Mapping[str, Any]
TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": 255}
NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
SIGNED: Schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
FLAG: Schema = {"type": "string", "enum": ["0", "1", "false", "true"]}
PATTERN: Schema = {**TEXT, "maxLength": MAX_PATTERN}
TEXTS: Schema = {"type": "array", "items": TEXT, "minItems": 1}
ANY: Schema = {}
MAX_QUIET_TOPICS = 64
"""Characters of the text that stands for the topics of a reader."""
MAX_LAST = 1000
"""The most messages that a request for the last ones returns."""
JSON, LINES, PLAIN = "application/json", "application/x-ndjson", "text/plain"
EVENTS, ARROW = "text/event-stream", "application/vnd.apache.arrow.stream"
OCTETS = "application/octet-stream"


def words(*values: str) -> Schema:
    """Return the schema of one of these words."""
    return {"type": "string", "enum": list(values)}


def members(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Return the schema of an object with these members and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def shown(*names: str) -> Schema:
    """Return the schema of an object that has these members, and perhaps others."""
    return {"type": "object", "required": list(names)}


def page(*names: str) -> Schema:
    """Return the schema of a page of a list, of objects that have these members."""
    return {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": shown(*names)},
            "next": {"type": ["string", "null"]},
        },
        "required": ["items", "next"],
    }


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint. ``path`` may have ``{name}``, which stands for one encoded segment.

    ``query`` and ``body`` have schemas, ``answers`` the content types of a response and their
    schemas by status; ``permission`` describes the permission that a token needs.
    """

    method: str
    path: str
    summary: str
    permission: str = ""
    query: Mapping[str, Schema] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    body: Schema | None = None
    body_type: str = JSON
    answers: Mapping[int, Mapping[str, Schema]] = field(default_factory=dict)

    @property
    def shown_path(self) -> str:
        """The path with NAME for the part that differs."""
        return self.path.replace("{name}", "NAME")


_PAGE: Mapping[str, Schema] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_ROWS, "default": DEFAULT_ROWS},
    "after": {"type": "string", "minLength": 1, "maxLength": MAX_KEY},
    "match": PATTERN,
}
_MARK: Schema = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
_POSITION: Schema = {"type": "string", "minLength": 1}
_RANGE: Mapping[str, Schema] = {
    "from": _POSITION, "to": _POSITION,
    "start": NUMBER, "stop": NUMBER,
    "last": {"type": "integer", "minimum": 1, "maximum": MAX_LAST},
    "format": words("arrow", "jsonl"), "headers": FLAG,
    "skip_expired": FLAG, "epoch": TEXT, "compression": words("none", "zstd", "lz4"),
}  # fmt: skip
_RANGE_BODY: Mapping[str, Schema] = {
    **_RANGE, "headers": {"type": "boolean"}, "skip_expired": {"type": "boolean"},
    "topics": {"type": "array", "items": TEXT},
}  # fmt: skip
_STREAM: Mapping[int, Mapping[str, Schema]] = {200: {ARROW: ANY, LINES: ANY}}
_NOTHING: Mapping[int, Mapping[str, Schema]] = {204: {}}
_TOPIC = ("name", "durability", "subscribers", "messages", "bytes", "last_timestamp", "keyed",
          "exclusive", "remote", "used")  # fmt: skip
_SESSION = ("mark", "protocol", "client", "identity", "address", "connected", "subscriptions",
            "messages_in", "bytes_in", "messages_out", "bytes_out", "queued_bytes", "state",
            "behind")  # fmt: skip
_LISTENER = ("protocol", "endpoint", "address", "connections", "tls", "anonymous",
             "max_connections")  # fmt: skip
_BATCH: Mapping[str, Schema] = {"query": TEXT, "batch": NUMBER}


def _json(schema: Schema, status: int = 200) -> Mapping[int, Mapping[str, Schema]]:
    return {status: {JSON: schema}}


def _list(path: str, summary: str, permission: str, *names: str, **query: Schema) -> Endpoint:
    given = {**_PAGE, **query}
    return Endpoint("GET", path, summary, permission, given, answers=_json(page(*names)))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/", "The dashboard, for browsers; else the list of endpoints",
             answers={200: {PLAIN: ANY, "text/html": ANY}}),
    Endpoint("GET", "/v1", "The list of endpoints", answers={200: {PLAIN: ANY}}),
    Endpoint("GET", "/v1/openapi.json", "The OpenAPI document",
             answers=_json(shown("openapi", "paths"))),
    Endpoint("GET", "/healthz", "The process answers", answers={200: {PLAIN: ANY}}),
    Endpoint("GET", "/readyz", "The broker serves",
             answers={200: {PLAIN: ANY}, 503: {PLAIN: ANY}}),
    Endpoint("GET", "/metrics", "The figures for Prometheus", "metrics",
             answers={200: {PLAIN: ANY, "application/openmetrics-text": ANY}}),
    Endpoint("GET", "/v1/status", "The state of the broker; with follow=1 once a second", "metrics",
             {"follow": FLAG, "format": words("events", "jsonl")},
             answers={200: {JSON: shown("version", "kernel", "name", "started", "ready",
                                        "attention", "stats"), EVENTS: ANY, LINES: ANY}}),
    Endpoint("GET", "/v1/store", "The history", "metrics",
             answers=_json(shown("durable", "first_offset", "next_offset", "committed", "epoch"))),
    _list("/v1/listeners", "The listeners, an item for each address", "metrics", *_LISTENER),
    _list("/v1/peers", "Brokers with which topics are shared, their state, and what they host",
          "metrics", "name", "state", "topics"),
    _list("/v1/refusals", "Refusals by protocol and reason, the last, and, with admin, its client",
          "metrics", "protocol", "reason", "count", "last_timestamp", "last_client"),
    _list("/v1/audit", "The newest 1,000 records of the audit log, the newest first", "admin",
          "number", "timestamp", "event"),
    _list("/v1/slow", "Sessions that are paused or catching_up", "admin", *_SESSION),
    _list("/v1/subscriptions", "Topics by session", "admin", "topic", "mark", "client", "protocol",
          "state", "behind", topic=TEXT, mark=_MARK),
    _list("/v1/sessions", "The connections of clients, in the order in which they began", "admin",
          *_SESSION, protocol=TEXT, client=PATTERN, state=words(*STATES)),
    Endpoint("GET", "/v1/sessions/{name}", "One session, by its mark", "admin",
             answers=_json(shown(*_SESSION))),
    Endpoint("DELETE", "/v1/sessions/{name}", "Disconnect a client", "admin", {"reason": TEXT},
             answers=_NOTHING),
    Endpoint("GET", "/v1/topics", "Topics; with start or stop, which exclude the "
             "other parameters, those in a range of the history",
             "what may be read", {**_PAGE, "unused": FLAG, "start": NUMBER, "stop": NUMBER},
             answers=_json({"anyOf": [page(*_TOPIC), shown("topics")]})),
    Endpoint("GET", "/v1/topics/{name}", "One topic", "what may be read",
             answers=_json(shown(*_TOPIC))),
    Endpoint("PUT", "/v1/topics/{name}", "Create or change a topic", "create",
             body=members(queue_key=TEXT, sync={"type": "boolean"}),
             answers={200: {JSON: shown(*_TOPIC)}, 201: {JSON: shown(*_TOPIC)}}),
    Endpoint("DELETE", "/v1/topics/{name}", "End a topic, delete its messages", "delete",
             answers=_NOTHING),
    Endpoint("POST", "/v1/topics/{name}/key", "Replace the queue key", "rotate",
             body=members(("queue_key",), queue_key=TEXT), answers=_json(shown("kept", "ended"))),
    Endpoint("GET", "/v1/topics/{name}/messages", "The messages of a topic; with follow=1 also "
             "those that come", "history or subscribe",
             {"follow": FLAG, "start": TEXT, "timestamp": SIGNED, "epoch": TEXT, "topic": TEXTS,
              "prefix": TEXTS, "headers": FLAG, "format": words("jsonl", "events")},
             answers={200: {LINES: ANY, EVENTS: ANY}}),
    Endpoint("POST", "/v1/topics/{name}/messages", "Publish the body, or lines of JSON", "publish",
             body=ANY, body_type=OCTETS, answers=_json(shown("offset", "messages", "level"))),
    Endpoint("DELETE", "/v1/identities/{name}", "End an identity of nsd", "delete",
             answers=_NOTHING),
    Endpoint("GET", "/v1/ws", "A WebSocket, for upgrades", answers={101: {}}),
    Endpoint("GET", "/v1/bounds", "The first and the next offset", "",
             {"timestamp": SIGNED, "at": NUMBER, "from": _POSITION, "skip_expired": FLAG},
             answers=_json(shown("first", "next", "epoch"))),
    Endpoint("GET", "/v1/history", "A range of the history", "history",
             {**_RANGE, "topic": TEXTS}, answers=_STREAM),
    Endpoint("POST", "/v1/history", "A range of the history", "history",
             body=members((), **_RANGE_BODY), answers=_STREAM),
    _list("/v1/readers", "The positions of readers", "their owner's, or admin", "name", "owner",
          "offset", "epoch", "updated", "lag"),
    Endpoint("GET", "/v1/readers/{name}", "The position of a reader", "history",
             answers=_json(shown("name", "owner", "offset", "epoch"))),
    Endpoint("PUT", "/v1/readers/{name}", "Report a position", "history",
             body=members(("offset",), offset=NUMBER, epoch=TEXT, quiet_from=NUMBER,
                          quiet_topics={**TEXT, "maxLength": MAX_QUIET_TOPICS}),
             answers=_NOTHING),
    Endpoint("DELETE", "/v1/readers/{name}", "Forget a reader", "its owner's, or admin",
             {"owner": TEXT}, answers=_NOTHING),
    Endpoint("PUT", "/v1/leases/{name}", "Hold the name of a reader for some seconds", "history",
             body=members(("holder",), holder=TEXT), answers=_json(shown("seconds"))),
    Endpoint("DELETE", "/v1/leases/{name}", "Release the name of a reader", "its holder's",
             {"holder": TEXT}, ("holder",), answers=_NOTHING),
    Endpoint("GET", "/v1/limits", "The limits of staging", answers=_json({"type": "object"})),
    Endpoint("POST", "/v1/stage", "Stage a part of a batch, an Arrow stream", "publish",
             {"query": TEXT, "batch": NUMBER, "run": TEXT}, ("query", "batch"), body=ANY,
             body_type=OCTETS, answers=_json(shown("part", "messages"), 201)),
    Endpoint("POST", "/v1/commit", "Publish the parts of a batch, once", "publish",
             body=members(("query", "batch", "parts"), **_BATCH, shared={"type": "boolean"},
                          parts={"type": "array", "items": TEXT}),
             answers=_json(shown("duplicate"))),
    Endpoint("POST", "/v1/abort", "Drop the parts of a batch", "publish",
             body=members(("query", "batch"), **_BATCH), answers=_NOTHING),
    Endpoint("GET", "/v1/configuration", "The configuration in use", "admin",
             answers=_json({"type": "object"})),
    Endpoint("POST", "/v1/drain", "Drain the broker or a listener", "admin",
             body=members(listener=TEXT, keep_running={"type": "boolean"}),
             answers=_json(shown("drained", "stops", "stop_timeout"), 202)),
)  # fmt: skip
"""All endpoints but the files of the dashboard."""


def listing() -> bytes:
    """Return the list of all endpoints, for people."""
    lines = [f"{one.method:<6} {one.shown_path:<27} {one.summary}\n" for one in ENDPOINTS]
    return "".join(["pubsub: the HTTP API of a broker\n", *lines]).encode()
