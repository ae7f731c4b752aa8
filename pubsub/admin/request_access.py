"""The access of a request: the listener's rules, and the permissions of the request's token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pubsub.admin.api_error import FORBIDDEN, ApiError
from pubsub.admin.client_share import bearer_token
from pubsub.broker.access import RESERVED
from pubsub.errors import BadToken, RateLimited
from pubsub.wire.peer_address import is_local

if TYPE_CHECKING:
    from pubsub.admin.api_request import ApiRequest
    from pubsub.broker.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.broker.tokens import Token


class RequestAccess:
    """The access of a client that presents ``token``, or None."""

    def __init__(self, listener: Listener, token: Token | None, is_local: bool = False) -> None:
        self._listener = listener
        self.token = token
        self._is_local = is_local

    @property
    def owner(self) -> str | None:
        """The owner of what the client stages, commits and reports: the token's subject.

        None stands for nobody: clients without a token are not told apart.
        """
        return None if self.token is None else self.token.subject

    @property
    def is_admin(self) -> bool:
        """Return whether the token has the permission ``admin``."""
        return self.token is not None and self.token.permits("admin")

    @property
    def token_is_valid(self) -> bool:
        """False once the token has expired; True without a token."""
        listener = self._listener
        return self.token is None or listener.tokens.valid(self.token, listener.wall.system())

    def may_read(self, name: str) -> bool:
        """Return whether the history of this topic may be read.

        A topic with a queue key needs a token with the permission ``history``.
        """
        permitted = self.token is not None and self.token.permits("history")
        return self._listener.access.may_read(name, permitted)

    def check_read(self, names: frozenset[str]) -> None:
        """Raise ApiError unless all of these topics may be read."""
        self._check([name for name in names if not self.may_read(name)], "read")

    def check_publish(self, names: frozenset[str]) -> Work:
        """Raise ApiError unless all of these topics may be published to; checks one a step."""
        refused = []
        for name in names:
            if not self.may_publish(name):
                refused.append(name)
            yield
        self._check(refused, "publish to")

    def may_publish(self, name: str) -> bool:
        """Return whether this topic may be published to."""
        return self._listener.access.may_write(name, self._has_key(name))

    def require_publish(self, name: str) -> None:
        """Raise ApiError unless this topic may be published to."""
        self._check([] if self.may_publish(name) else [name], "publish to")

    def may_follow(self, name: str) -> bool:
        """Return whether this topic may be subscribed to, for what comes.

        A topic with a queue key needs the permission ``history``, or ``subscribe`` and the key.
        """
        if self.may_read(name):
            return True
        return self._listener.access.may_read(name, self._has_key(name, "subscribe"))

    def check_follow(self, names: Iterable[str]) -> None:
        """Raise ApiError unless all of these topics may be subscribed to."""
        self._check([name for name in names if not self.may_follow(name)], "subscribe to")

    @property
    def version(self) -> object:
        """Equal to what it was before unless rules or queue keys have changed since."""
        return self._listener.access, self._listener.queue_keys.version

    def check_delete(self, name: str) -> None:
        """Raise ApiError unless the topic or identity ``name`` may be deleted.

        A token needs the permission ``delete``, and also ``admin`` or the queue key for a topic
        that has one. Without secrets, clients of the same machine may delete what they may publish
        to.
        """
        listener, token = self._listener, self.token
        allowed = listener.access.may_write(name, self._has_key(name, "delete"))
        if token is None:
            allowed = allowed and self._is_local and not any(listener.tokens.ring)
        elif not token.permits("admin"):
            allowed = allowed and token.permits("delete")
        else:
            allowed = listener.access.may_write(name, proved=True)
        self._check([] if allowed else [name], "delete")

    def _has_key(self, name: str, permission: str = "publish") -> bool:
        """Return whether the token has the topic's key and ``permission``; for reserved topics,
        ``admin``."""
        token = self.token
        if token is None:
            return False
        if name.startswith(RESERVED):
            return token.permits("admin")
        topic = self._listener.topics.get(name)
        keys = self._listener.queue_keys
        return (
            topic is not None and token.permits(permission) and keys.matches(topic, token.queue_key)
        )

    def _check(self, refused: list[str], verb: str) -> None:
        if refused:
            name = min(refused)
            message = f"permission denied: {verb} topic {name!r}"
            raise ApiError(FORBIDDEN, "not-authorized", message, topic=name)


def request_access(request: ApiRequest, listener: Listener) -> RequestAccess:
    """Return the access of ``request``.

    Raises BadToken, or RateLimited if too many unknown tokens have to be verified.
    """
    header = request.requestHeaders.getRawHeaders(b"authorization")
    if header is None:
        return RequestAccess(listener, None, is_local(request.client))
    raw = bearer_token(header[-1])
    if raw is None:
        raise BadToken("expected Authorization: Bearer TOKEN")
    return token_access(raw, listener)


def token_access(raw: bytes, listener: Listener) -> RequestAccess:
    """Return the access of a client with this token; raises as ``request_access``."""
    if not listener.tokens.known(raw):
        if listener.verifications.available() < 1:
            raise RateLimited("too many unknown tokens; try again later")
        listener.verifications.take(1)
    return RequestAccess(listener, listener.tokens.check(raw, listener.wall.system()))
