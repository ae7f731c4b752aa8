"""Fetches the public keys of issuers over HTTP, with Twisted's Agent.

The cost of a fetch is bounded: one request without redirects, ``MAX_BYTES`` of content, and
``SECONDS`` for everything. Its certificate and its name are always verified. The content is parsed
in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import URI, Agent, ResponseDone
from twisted.web.http import OK, PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from pubsub.broker.credentials.master_secrets import MasterSecret
from pubsub.broker.credentials.secret_files import parse_key_set
from pubsub.errors import ConfigurationError, PubSubError
from pubsub.server.secret_settings import JWKS
from pubsub.wire.connect_errors import NOT_TLS
from pubsub.wire.outgoing_tls import (
    NOT_VERIFIED,
    OTHER_NAME,
    ClientFiles,
    TlsEndpoint,
    tls_trouble,
)
from pubsub.wire.peer_address import place_text

if TYPE_CHECKING:
    from twisted.internet.interfaces import IProtocol
    from twisted.web.iweb import IResponse

    from pubsub.broker.credentials.master_secrets import KeySource

MAX_BYTES = 1024 * 1024
SECONDS = 10.0
_HEADERS = Headers(
    {b"Accept": [b"application/jwk-set+json, application/json"], b"User-Agent": [b"pubsub"]}
)
FetchInThread = Callable[[Callable[[], list[MasterSecret]]], "Deferred[list[MasterSecret]]"]


class FetchFailed(PubSubError):
    """An issuer's keys could not be fetched; the message is one line."""

    reason = "fetch-failed"


class IssuerKeyFetcher:
    """Fetches the keys of sources; ``run`` runs a call in a thread."""

    def __init__(self, reactor: Any, run: FetchInThread) -> None:
        self._reactor = reactor
        self._run = run

    def fetch(self, source: KeySource) -> Deferred[list[MasterSecret]]:
        """Return the keys of ``source``; fails with FetchFailed. Cancelling it is allowed."""
        connections = _Connections(self._reactor, ClientFiles(JWKS, source.ca))
        agent = Agent.usingEndpointFactory(self._reactor, connections)
        fetching: Deferred[Any] = agent.request(b"GET", source.url.encode("ascii"), _HEADERS)
        fetching.addCallback(_content)
        fetching.addErrback(connections.explain)
        fetching.addBoth(connections.close)
        fetching.addCallback(lambda content: self._parse(source.id, content))
        fetching.addTimeout(SECONDS, self._reactor, _overdue)
        fetching.addErrback(_explain)
        return fetching

    def _parse(self, id: str, content: bytes) -> Deferred[list[MasterSecret]]:
        return self._run(lambda: parse_key_set(id, content))


@implementer(IAgentEndpointFactory)
class _Connections:
    """Makes the endpoint of one request, and closes its connection without waiting for the other
    end.
    """

    def __init__(self, reactor: Any, files: ClientFiles) -> None:
        self._reactor = reactor
        self._files = files
        self._endpoint: Any = None
        self._protocol: Any = None
        self._transport: Any = None
        self._place = ""

    def endpointForURI(self, uri: URI) -> Any:
        """See IAgentEndpointFactory."""
        host = uri.host.decode("ascii")
        self._place = place_text(host, uri.port)
        self._endpoint = HostnameEndpoint(self._reactor, host, uri.port, timeout=SECONDS)
        if uri.scheme == b"https":
            self._endpoint = TlsEndpoint(self._endpoint, host, "http/1.1", self._files)
        return self

    def connect(self, factory: Any) -> Deferred[IProtocol]:
        """See IStreamClientEndpoint."""
        connecting: Deferred[IProtocol] = self._endpoint.connect(factory)
        return connecting.addCallback(self._connected)

    def _connected(self, protocol: IProtocol) -> IProtocol:
        self._protocol = protocol
        # It knows what is wrong with a certificate, when the protocol has it no more.
        self._transport = getattr(protocol, "transport", None)
        return protocol

    def explain(self, failure: Failure) -> Failure:
        """Return a FetchFailed that names the server, for a failure of the connection."""
        if failure.check(FetchFailed, CancelledError, ConfigurationError):
            return failure
        # Agent wraps the reasons for which a connection has ended.
        reasons = getattr(failure.value, "reasons", None) or [failure]
        for reason in reasons:
            trouble = tls_trouble(reason, self._transport)
            if trouble:
                return Failure(FetchFailed(f"{self._place}: {trouble}; {_remedy_of(trouble)}"))
        return Failure(FetchFailed(f"{self._place}: {_text_of(reasons[0].value)}"))

    def close(self, result: Any) -> Any:
        """End the connection, if there is one; returns ``result``."""
        transport = getattr(self._protocol, "transport", None)
        if transport is not None:
            transport.abortConnection()
        return result


class _KeyBody(Protocol):
    """Collects a body of at most MAX_BYTES."""

    def __init__(self, done: Deferred[bytes]) -> None:
        self._done: Deferred[bytes] | None = done
        self._content = bytearray()

    def dataReceived(self, data: bytes) -> None:
        """See Protocol."""
        self._content += data
        if len(self._content) > MAX_BYTES:
            self._content.clear()
            self._end(Failure(FetchFailed(f"the body has more than {MAX_BYTES} bytes")))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """See Protocol."""
        # Without a length the end of the connection is that of the body; JSON has its own end.
        complete = reason.check(ResponseDone, PotentialDataLoss)
        self._end(bytes(self._content) if complete else reason)

    def _end(self, result: bytes | Failure) -> None:
        done, self._done = self._done, None
        if done is not None:
            done.callback(result)


def _content(response: IResponse) -> Deferred[bytes]:
    if response.code != OK:
        raise FetchFailed(f"the server replied with status {response.code}, expected {OK}")
    done: Deferred[bytes] = Deferred()
    response.deliverBody(_KeyBody(done))
    return done


def _overdue(result: Any, seconds: float) -> Any:
    raise FetchFailed(f"not finished within {seconds:g} seconds")


def _explain(failure: Failure) -> Failure:
    """Return ``failure`` as a FetchFailed whose message is the reason."""
    return failure if failure.check(FetchFailed) else Failure(FetchFailed(_text_of(failure.value)))


def _remedy_of(trouble: str) -> str:
    """Return what to do about a failure of TLS."""
    if trouble == NOT_TLS:
        return "correct the port in jwks-url"
    if trouble == OTHER_NAME:
        return "write a name of the certificate in jwks-url"
    if NOT_VERIFIED in trouble:
        return (
            "set jwks-ca to a file with the certificate of the server's authority, or let the "
            "server send a valid chain"
        )
    return "check the TLS of the server"


def _text_of(error: BaseException | None) -> str:
    return str(error) or type(error).__name__
