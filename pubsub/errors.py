"""All errors of the broker's domain, in one tree.

A protocol maps these classes to its own error codes. ``reason`` is the short name that counters,
events and log lines use.
"""

from __future__ import annotations


class PubSubError(Exception):
    """Any error this package raises on purpose."""

    reason = "error"


class ConfigurationError(PubSubError):
    """An invalid setting, file or command line; the message is one line."""

    reason = "configuration"


class NotConfigured(ConfigurationError):
    """A required setting of a listener is missing; the message says how to provide it."""


class StartError(PubSubError):
    """The broker cannot start, for example because a port is taken; the message is one line."""

    reason = "start"


class NewerVersion(StartError):
    """A later version has written the history, which is not changed."""


class Refused(PubSubError):
    """A request that the broker refuses; the connection may continue."""

    reason = "refused"


class InvalidTopicName(Refused):
    """A topic name that is empty, longer than 255 bytes of UTF-8, or not UTF-8."""

    reason = "invalid-topic-name"


class TopicNotFound(Refused):
    """No topic has this name or id, and the request does not create one."""

    reason = "topic-not-found"


class TopicUnreachable(Refused):
    """The topic is hosted by another broker, which cannot be reached."""

    reason = "topic-unreachable"


class BackplaneAway(Refused):
    """A change that all brokers must agree upon, while the backplane is unavailable."""

    reason = "backplane-away"


class NotAuthorized(Refused):
    """The listener's access rules do not permit the request."""

    reason = "not-authorized"


class WrongPassword(Refused):
    """A user that does not exist, or not with this password."""

    reason = "wrong-password"


class PasswordsBusy(Refused):
    """Too many passwords wait for their verification."""

    reason = "passwords-busy"


class MessageTooLarge(Refused):
    """A payload that exceeds the limit of the listener or of the protocol."""

    reason = "too-large"


class SenderTooLong(Refused):
    """A sender of more than 255 bytes."""

    reason = "sender-too-long"


class RateLimited(Refused):
    """The rate limit of the connection or of its listener is exceeded."""

    reason = "rate-limited"


class LimitReached(Refused):
    """A quota is exhausted: connections, sessions, topics or subscriptions."""

    reason = "limit-reached"


class MemoryExhausted(Refused):
    """The process has reached its memory bound."""

    reason = "memory"


class HistoryUnavailable(Refused):
    """The history cannot be written, for example because the disk is full; nothing was published.

    The history continues by itself when it can be written again.
    """

    reason = "history-unavailable"


class FrameTimeout(Refused):
    """A frame that did not arrive in full in time; the connection cannot continue."""

    reason = "frame-timeout"


class HandshakeTimeout(Refused):
    """A handshake that was not finished in time; the connection cannot continue."""

    reason = "handshake-timeout"


class UnexpectedProxyHeader(Refused):
    """The header of a proxy at a listener that does not take it; the connection cannot continue."""

    reason = "unexpected-proxy-header"


class SessionUnknown(Refused):
    """No session with this id can be resumed by this client."""

    reason = "session-unknown"


class InvalidRequest(Refused):
    """A request whose fields are inconsistent or have no meaning."""

    reason = "invalid-request"


class BadToken(Refused):
    """A token that is forged, malformed, expired or not yet valid."""

    reason = "bad-token"


class AuthenticationRequired(Refused):
    """The listener serves no anonymous clients, and this one has proved no identity."""

    reason = "authentication-required"


class WrongKey(Refused):
    """The token does not contain the topic's queue key."""

    reason = "wrong-queue-key"


class MissingPermission(Refused):
    """The token does not grant the permission that the request needs."""

    reason = "missing-permission"


class TopicExists(Refused):
    """The topic exists, and this client may not create it."""

    reason = "topic-exists"


class IdCollision(Refused):
    """Another topic's name has the same u32 id."""

    reason = "id-collision"


PASSING = frozenset(
    refused.reason
    for refused in (
        BackplaneAway,
        HistoryUnavailable,
        LimitReached,
        MemoryExhausted,
        PasswordsBusy,
        RateLimited,
        TopicUnreachable,
    )
)
"""The reasons of refusals that may pass: the same request can succeed later."""
