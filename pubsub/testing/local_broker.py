"""A broker in the process of a test: every protocol and HTTP on free loopback ports, in memory."""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import jwt
from twisted.internet.defer import Deferred

from pubsub.embed import EmbeddedBroker, NotServed, read_config
from pubsub.plugin import installed_protocols
from pubsub.server.configuration import Config
from pubsub.testing.reactor_thread import call_in_reactor, global_reactor, runs_elsewhere

MAX_TOKEN = 255
"""Bytes of a token that fast accepts (seeds/fast.md)."""
CLOSE_SECONDS = 0.25
"""Seconds that connections have to close at the end of a test, before they are aborted."""
SECRET_ID = "test"
# Tables whose keys are names, in which an underscore stays.
_NAMED = ("keys", "groups")


def local_config(settings: Mapping[str, object], secret: bytes) -> Config:
    """Return the configuration of a broker for tests; raises ConfigurationError.

    ``settings`` are those of a configuration file, with ``_`` for ``-`` if that is more convenient.
    They win over the defaults here: a history in memory, and every installed protocol and the HTTP
    API on free ports of the loopback interface.
    """
    given = _settings(settings)
    if "listen" not in given:
        given["listen"] = [{"protocol": name, "port": 0} for name in installed_protocols()]
        implied = True
    else:
        implied = False
    config = read_config({"store": "memory", "admin-port": 0, **given}, {SECRET_ID: secret})
    # An installed protocol that lacks a setting is left out, as with a broker without listeners.
    listeners = [replace(one, implied=implied) for one in config.listeners]
    return replace(config, listeners=listeners)


def _settings(table: Mapping[str, object]) -> dict[str, object]:
    return {key.replace("_", "-"): _value(key, value) for key, value in table.items()}


def _value(key: str, value: object) -> object:
    if isinstance(value, Mapping):
        if key in _NAMED:
            return {name: _value("", one) for name, one in value.items()}
        return _settings(value)
    return [_value("", one) for one in value] if isinstance(value, list | tuple) else value


class LocalBroker:
    """A running broker; the methods may be called in any thread, except ``stop``.

    ``service`` is the EmbeddedBroker, whose methods are called in the thread of the reactor.
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        """Start it, in the thread of the reactor; raises ConfigurationError and StartError."""
        self._secret = secrets.token_bytes(32)
        self.service = EmbeddedBroker(local_config(settings, self._secret))
        self.service.startService()
        self._urls = self._find_urls()

    def __repr__(self) -> str:
        return f"<LocalBroker {' '.join(self._urls.values())}>"

    @property
    def urls(self) -> dict[str, str]:
        """URLs by protocol, such as ``cafe://127.0.0.1:40001``; that of the API is ``http``."""
        return dict(self._urls)

    def url(self, protocol: str) -> str:
        """Return the URL of ``protocol``; raises NotServed, a LookupError."""
        if protocol not in self._urls:
            served = ", ".join(self._urls) or "nothing"
            raise NotServed(f"{protocol} is not served; served: {served}")
        return self._urls[protocol]

    def address(self, protocol: str) -> tuple[str, int]:
        """Return host and port of ``protocol``, as sockets take them; raises NotServed."""
        parts = urlsplit(self.url(protocol))
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def token(
        self,
        *permissions: str,
        queue_key: str = "test",
        subject: str = "",
        expires: float | None = 3600,
        **claims: object,
    ) -> str:
        """Return a token that the broker accepts, for fast and for the HTTP API.

        Without ``permissions`` it permits everything. It ends ``expires`` seconds from now; a
        negative number makes a token that has expired. ``claims`` are added as they are.
        Raises ValueError for a token that is too long for fast.
        """
        granted = list(permissions or "*")
        body: dict[str, Any] = {"queue_key": queue_key, "permissions": granted}
        if len(granted) == 1:
            body["permissions"] = granted[0]
        if subject:
            body["sub"] = subject
        if expires is not None:
            body["exp"] = int(time.time() + expires)
        made = jwt.encode({**body, **claims}, self._secret, "HS256")
        if len(made) > MAX_TOKEN:
            raise ValueError(
                f"the token has {len(made)} bytes, but fast accepts at most {MAX_TOKEN}; give "
                "fewer permissions or shorter claims"
            )
        return made

    def stop(self) -> Deferred[int]:
        """Stop it, in the thread of the reactor; raises RuntimeError in another one.

        Fires with the number of connections that were aborted after ``CLOSE_SECONDS``.
        """
        if runs_elsewhere():
            raise RuntimeError(
                "stop() is called in the thread of the reactor; to stop a broker within a test, "
                "start it with running_broker and leave the block"
            )
        broker = self.service.broker
        left = 0

        def abort() -> None:
            nonlocal left
            left = len(broker.clients)
            broker.abort_clients()

        deadline = global_reactor().callLater(CLOSE_SECONDS, abort)

        def stopped(result: Any) -> Any:
            if deadline.active():
                deadline.cancel()
            return result

        return self.service.stopService().addBoth(stopped).addCallback(lambda _: left)

    def _find_urls(self) -> dict[str, str]:
        found = {}
        for listener in self.service.broker.listeners:
            protocol = listener.event_protocol
            try:
                found[protocol] = self.service.url(protocol)
            except NotServed:
                # It listens on a UNIX socket.
                continue
        return found


@contextmanager
def running_broker(**settings: object) -> Iterator[LocalBroker]:
    """Run a broker for a ``with`` block, in a thread unless the reactor runs in another one.

    Raises ConfigurationError and StartError.
    """
    broker: LocalBroker = call_in_reactor(lambda: LocalBroker(settings))
    try:
        yield broker
    finally:
        report_leaks(call_in_reactor(broker.stop), "a block with running_broker")


def report_leaks(connections: int, where: str) -> None:
    """Warn of connections that were open when the broker stopped."""
    if connections:
        warnings.warn(
            f"{where} left {connections} connections to the broker open",
            ResourceWarning,
            stacklevel=3,
        )
