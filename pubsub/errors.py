"""Every error of the broker's domain, in one tree.

A protocol maps these classes to its own error codes; nothing above the domain raises them with
a protocol's words in them. ``reason`` is the short name that counters and log lines use.
"""

from __future__ import annotations


class PubSubError(Exception):
    """Any error this package raises on purpose."""

    reason = "error"


class ConfigurationError(PubSubError):
    """A setting, a file or a command line that cannot be used; the message is one line."""

    reason = "configuration"


class NotConfigured(ConfigurationError):
    """A listener lacks what it cannot do without; the message says how to get it."""


class StartError(PubSubError):
    """The broker cannot start, for example because a port is taken; the message is one line."""

    reason = "start"


class Refused(PubSubError):
    """A request the broker understood and does not carry out; the connection may go on."""

    reason = "refused"


class InvalidTopicName(Refused):
    """A topic name that is empty, longer than 255 bytes of UTF-8, or not UTF-8."""

    reason = "invalid-topic-name"


class TopicNotFound(Refused):
    """No topic has this name or id, and the request does not create one."""

    reason = "topic-not-found"


class TopicUnreachable(Refused):
    """The topic is hosted by another broker, and that cannot be reached."""

    reason = "topic-unreachable"


class NotAuthorized(Refused):
    """The listener's rules do not let this client do this to this topic."""

    reason = "not-authorized"


class MessageTooLarge(Refused):
    """A payload over the limit of the listener or of the protocol."""

    reason = "too-large"


class RateLimited(Refused):
    """More messages or bytes a second than the connection or its listener may send."""

    reason = "rate-limited"


class LimitReached(Refused):
    """A quota is used up: connections, sessions, topics or subscriptions."""

    reason = "limit-reached"


class MemoryExhausted(Refused):
    """The process is at its memory bound and takes nothing new on."""

    reason = "memory"


class HistoryUnavailable(Refused):
    """The history cannot be written, for example because the disk is full; nothing was published.

    It goes on by itself when it can.
    """

    reason = "history-unavailable"


class SessionUnknown(Refused):
    """No session with this id can be resumed by this client."""

    reason = "session-unknown"


class InvalidRequest(Refused):
    """A request whose fields say something that means nothing."""

    reason = "invalid-request"


class BadToken(Refused):
    """A token that is forged, malformed, expired or not yet valid."""

    reason = "bad-token"


class WrongKey(Refused):
    """A token that does not hold the topic's queue key."""

    reason = "wrong-queue-key"


class MissingPermission(Refused):
    """A token that does not grant what the request needs."""

    reason = "missing-permission"


class TopicExists(Refused):
    """The topic is there already and is not this client's to create."""

    reason = "topic-exists"


class IdCollision(Refused):
    """Another topic's name has the same u32 id."""

    reason = "id-collision"
