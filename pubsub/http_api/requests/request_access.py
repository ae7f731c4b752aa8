"""The access of a request: the listener's rules, and the permissions of the request's token."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pubsub.broker.access_rules.access import RESERVED
from pubsub.broker.credentials.identity import ANONYMOUS, SOCKET, Identity, token_identity
from pubsub.errors import BadToken, RateLimited
from pubsub.http_api.requests.api_error import FORBIDDEN, ApiError
from pubsub.http_api.requests.client_share import bearer_token
from pubsub.http_api.requests.forwarded_requests import address_of, is_from_here, proved_identity
from pubsub.http_api.requests.parameters import invalid

if TYPE_CHECKING:
    from pubsub.broker.credentials.tokens import Token
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.http_api.requests.api_request import ApiRequest

ADMIN, METRICS = "admin", "metrics"
"""Actions that belong to no topic."""
# Topics that a step checks.
_NAMES = 8


class RequestAccess:
    """The access of a client with ``identity``, which presents ``token`` or none."""

    def __init__(
        self,
        listener: Listener,
        identity: Identity,
        token: Token | None = None,
        is_local: bool = False,
    ) -> None:
        self._listener = listener
        self._access = listener.access_for(identity)
        self.identity = identity
        self.token = token
        self._is_local = is_local
        # The rules and keys by which the topics of ``check_read`` may be read.
        self._read_version: object = None

    @property
    def owner(self) -> str | None:
        """The owner of the client's parts, batches and positions: the name that it has proved.

        None stands for no owner: anonymous clients are not distinguished, nor are the users of a
        UNIX socket.
        """
        identity = self.identity
        return None if identity.proof in (ANONYMOUS, SOCKET) else identity.name

    @property
    def is_admin(self) -> bool:
        """Return whether the client may administer the broker."""
        return self.may(ADMIN)

    def may(self, action: str) -> bool:
        """Return whether the client may carry out an action without a topic: ADMIN or METRICS.

        The rules have to allow it, and a token needs the permission as well. Without a token and
        without rules, clients of the same machine have METRICS, and ADMIN if there is no secret.
        """
        if not self._access.may(action):
            return False
        if self.token is not None:
            return self.token.permits(action)
        if self._listener.has_access_table:
            return True
        return self._is_local if action == METRICS else self._is_trusted

    @property
    def _is_trusted(self) -> bool:
        """True for clients of the same machine where there is no secret."""
        return self._is_local and not self._listener.tokens.ring.has_issuers

    def require(self, action: str) -> None:
        """Raise ApiError unless the client may do this (see ``may``)."""
        self._require(action, self.may(action))

    def require_publishing(self) -> None:
        """Raise ApiError if the client has a token that lets it publish to no topic."""
        self._require("publish", self._token_allows("publish"))

    @staticmethod
    def _require(action: str, allowed: bool) -> None:
        if not allowed:
            message = f"permission denied: this needs the permission {action!r}"
            raise ApiError(FORBIDDEN, "not-authorized", message)

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
        return self._token_allows("history") and self._access.may_read(name, permitted)

    def _token_allows(self, *permissions: str) -> bool:
        """Return whether the token, if there is one, has one of these permissions.

        Without rules, clients with a token may do all that others may do without one.
        """
        token = self.token
        if token is None or not self._listener.has_access_table:
            return True
        return any(map(token.permits, permissions))

    @property
    def may_read_some(self) -> bool:
        """Return whether the rules let the client read the history of some topic."""
        return self._token_allows("history") and self._access.may_read_some()

    def require_readers(self) -> None:
        """Raise ApiError unless the client may have readers: a position is one in the history of
        all topics, and is of use to a client that may read some of it."""
        if not self.may_read_some:
            message = "permission denied: readers need the right to read the history of a topic"
            raise ApiError(FORBIDDEN, "not-authorized", message)

    def check_read(self, names: Collection[str]) -> Work:
        """Raise ApiError unless all of these topics may be read; checks a few a step."""
        version, refused = self.version, []
        for number, name in enumerate(names, 1):
            if not self.may_read(name):
                refused.append(name)
            if not number % _NAMES:
                yield
        self._check(refused, "read")
        self._read_version = version

    def may_still_read(self, names: Collection[str]) -> bool:
        """Return whether all of these topics, which were checked, may be read still."""
        version = self.version
        if version != self._read_version:
            if not all(map(self.may_read, names)):
                return False
            self._read_version = version
        return True

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
        if not self._token_allows("publish"):
            return False
        if not self._access.may_write(name, self._has_key(name)):
            return False
        topic = self._listener.topics.get(name)
        exists = topic is not None and (topic.hosted or topic.upstream is not None)
        return exists or name.startswith(RESERVED) or self._access.may_create(name)

    def may_publish_all(self, names: tuple[str, ...], remember: bool) -> bool:
        """Return whether all of these topics, which exist, may be published to without a key.

        ``remember`` and the meaning of False are as in ``AccessRules.may_publish_all``.
        """
        return self._token_allows("publish") and self._access.may_publish_all(names, remember)

    def require_publish(self, name: str) -> None:
        """Raise ApiError unless this topic may be published to."""
        self._check([] if self.may_publish(name) else [name], "publish to")

    def may_follow(self, name: str) -> bool:
        """Return whether this topic may be subscribed to, for new messages.

        A topic with a queue key needs the permission ``history``, or ``subscribe`` and the key.
        """
        if not self._token_allows("subscribe", "history"):
            return False
        permitted = self.token is not None and self.token.permits("history")
        return self._access.may_follow(name, permitted or self._has_key(name, "subscribe"))

    def check_follow(self, names: Iterable[str]) -> None:
        """Raise ApiError unless all of these topics may be subscribed to."""
        self._check([name for name in names if not self.may_follow(name)], "subscribe to")

    @property
    def version(self) -> object:
        """Equal to its earlier value unless rules or queue keys have changed since."""
        return self._listener.access_version

    def check_delete(self, name: str) -> None:
        """Raise ApiError unless the topic or identity ``name`` may be deleted.

        A token needs the permission ``delete``, and also ``admin`` or the queue key for a topic
        that has one. Without secrets and rules, clients of the same machine may delete topics
        that they may publish to, and topics with a queue key, which they may set as well.
        """
        access, token = self._access, self.token
        is_admin = self.is_admin if token is None else token.permits(ADMIN)
        allowed = access.may_write(name, is_admin or self._has_key(name, "delete"), "delete")
        if token is None:
            allowed = allowed and (self._listener.has_access_table or self._is_trusted)
        else:
            allowed = allowed and (is_admin or token.permits("delete"))
        self._check([] if allowed else [name], "delete")

    def check_create(self, name: str, key: str | None) -> None:
        """Raise ApiError unless the topic ``name`` may be created with the queue key ``key``.

        A token needs the permission ``create``, and can only give the key that it has itself; or
        ``admin``, if the rules allow that as well. Without secrets and rules, clients of the same
        machine may create topics. Reserved topics are the broker's own.
        """
        token = self.token
        may_create = self._access.may_write(name, True, "create")
        allowed = may_create and not name.startswith(RESERVED)
        if token is not None and not self.is_admin:
            own = key is None or key.encode() == token.queue_key
            allowed = allowed and own and token.permits("create")
        elif not self._listener.has_access_table:
            allowed = allowed and self.is_admin
        self._check([] if allowed else [name], "create")

    def check_rotate(self, name: str) -> None:
        """Raise ApiError unless the queue key of the topic ``name`` may be replaced.

        A token needs the permission ``rotate`` and the present key, or ``admin``. Without secrets,
        clients of the same machine may replace it.
        """
        has_rules = self._listener.has_access_table
        allowed = self._access.may("rotate", name)
        allowed = allowed and (has_rules or self._access.may_write(name, proved=True))
        if not self.is_admin:
            allowed = allowed and self._has_key(name, "rotate")
        self._check([] if allowed else [name], "rotate the queue key of")

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

    Raises BadToken, RateLimited after too many wrong tokens of all clients, or ApiError.
    """
    header = request.requestHeaders.getRawHeaders(b"authorization")
    if header is None:
        identity = proved_identity(request)
        return RequestAccess(listener, identity, is_local=is_from_here(request))
    if len(header) > 1:
        # A proxy may have checked another one.
        raise invalid("Authorization: expected one value")
    raw = bearer_token(header[0])
    if raw is None:
        raise BadToken("expected Authorization: Bearer TOKEN")
    return token_access(raw, listener, address_of(request))


def token_access(raw: bytes, listener: Listener, host: str) -> RequestAccess:
    """Return the access of a client at ``host`` with this token; raises as ``request_access``."""
    cost = 0 if listener.tokens.known(raw) else 1
    if listener.verifications.available() < cost:
        raise RateLimited("too many wrong tokens; try again later")
    listener.verifications.take(cost)
    token = listener.tokens.check(raw, listener.wall.system())
    # Only wrong tokens count: clients may sign one for each request.
    listener.verifications.put_back(cost)
    return RequestAccess(listener, token_identity(token, host), token)
