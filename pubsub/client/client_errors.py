"""The errors of the client library, in one tree under ``ClientError``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pubsub.errors import InvalidTopicName, PubSubError


class ClientError(PubSubError):
    """Any error that the client library raises on purpose. It can be copied and pickled."""

    reason = "client"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are made again from their texts alone, which some of these are not.
        return _made_again, (type(self), self.args), self.__dict__


def _made_again(kind: type[ClientError], texts: tuple[object, ...]) -> ClientError:
    return kind.__new__(kind, *texts)


class InvalidUrl(ClientError):
    """A URL, a parameter of it, or an option of ``connect`` that cannot be used."""

    reason = "url"


class ConnectFailed(ClientError):
    """The broker cannot be reached, does not speak the protocol, or does not admit the client.

    ``refused`` if it was the broker that did not admit the client: another attempt with the same
    token, user and password would fail too. Of several brokers, this is so for all of them.
    """

    reason = "connect"

    def __init__(self, text: str, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class ClientClosed(ClientError):
    """The client, or the subscription, was closed."""

    reason = "closed"


class TopicNotAddressable(ClientError):
    """The wire has no address for ``topic``; the protocols ``wires`` can address it."""

    reason = "topic"

    def __init__(self, text: str, topic: str, wires: Sequence[str]) -> None:
        super().__init__(text)
        self.topic = topic
        self.wires = tuple(wires)


class InvalidTopic(ClientError, InvalidTopicName):
    """No protocol can address the topic: its name is empty, too long, or not UTF-8."""

    reason = "invalid-topic-name"


class NotExpressible(ClientError):
    """The wire cannot carry the payload, the sender, the headers or the request."""

    reason = "not-expressible"


class HistoryNeeded(ClientError):
    """The request needs a history, and neither the wire nor an HTTP API of the client has one."""

    reason = "history-needed"


class RequestRefused(ClientError):
    """The HTTP API refused a request. ``code`` is for programs, ``details`` the whole reply."""

    reason = "request-refused"

    def __init__(self, text: str, status: int, details: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.status = status
        self.code = str(details.get("error", ""))
        self.details = details


class ReaderHeld(ClientError):
    """Another program holds the name of the reader, for ``seconds`` unless it renews that."""

    reason = "reader-in-use"

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds


class Unconfirmable(ClientError):
    """The wire cannot confirm the level that was requested. Nothing was published."""

    reason = "unconfirmable"


class NotPublished(ClientError):
    """The broker refused ``refused`` of ``published`` messages; the others are published."""

    reason = "not-published"

    def __init__(self, text: str, refused: int, published: int) -> None:
        super().__init__(text)
        self.refused = refused
        self.published = published


class NotSent(ClientError):
    """The messages were not sent, and are not published."""

    reason = "not-sent"


class OutcomeUnknown(ClientError):
    """The messages were sent and not confirmed: they may or may not have been published."""

    reason = "outcome-unknown"


class SubscriptionRefused(ClientError):
    """The broker refused a subscription, or has ended it."""

    reason = "subscription"
