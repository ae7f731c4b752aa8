"""What a request may read and write: the listener's rules, and what its token adds to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.admin.api_error import FORBIDDEN, ApiError
from pubsub.broker.access import RESERVED
from pubsub.errors import BadToken, RateLimited, TopicNotFound

if TYPE_CHECKING:
    from pubsub.admin.http_channel import ApiRequest
    from pubsub.broker.listener import Listener
    from pubsub.broker.tokens import Token

_SCHEME = "bearer "


class Rights:
    """Those of whoever holds ``token``, or of anybody."""

    def __init__(self, listener: Listener, token: Token | None) -> None:
        self._listener = listener
        self.token = token

    @property
    def hold(self) -> bool:
        """Is the token good still?"""
        broker = self._listener.broker
        return self.token is None or broker.tokens.valid(self.token, broker.seconds())

    def may_read(self, name: str) -> bool:
        """May the history of this topic be read? Of one with a key the token must permit it."""
        permitted = self.token is not None and self.token.permits("history")
        return self._listener.access.may_read(name, permitted)

    def check_read(self, names: frozenset[str]) -> None:
        """Raises ApiError unless all of these topics may be read."""
        self._check([name for name in names if not self.may_read(name)], "read")

    def check_write(self, names: frozenset[str]) -> None:
        """Raises ApiError unless all of these topics may be published to."""
        access = self._listener.access
        refused = [name for name in names if not access.may_write(name, self._proved(name))]
        self._check(refused, "publish to")

    def _proved(self, name: str) -> bool:
        """Does the token hold the topic's key, or, for the broker's own, permit everything?"""
        token, broker = self.token, self._listener.broker
        if token is None:
            return False
        if name.startswith(RESERVED):
            return token.permits("admin")
        try:
            topic = broker.topics.named(name)
        except TopicNotFound:
            return False
        return token.permits("publish") and broker.queue_keys.matches(topic, token.queue_key)

    def _check(self, refused: list[str], verb: str) -> None:
        if refused:
            name = min(refused)
            raise ApiError(FORBIDDEN, "not-authorized", f"not to {verb} {name!r}", topic=name)


def rights_of(request: ApiRequest, listener: Listener) -> Rights:
    """What the request's token allows; raises BadToken, or RateLimited for a flood of new ones."""
    header = request.getHeader("authorization")
    if header is None:
        return Rights(listener, None)
    if not header.lower().startswith(_SCHEME):
        raise BadToken("expected Authorization: Bearer TOKEN")
    raw = header[len(_SCHEME) :].strip().encode(errors="replace")
    broker = listener.broker
    if not broker.tokens.known(raw):
        if broker.verifications.available() < 1:
            raise RateLimited("too many tokens to verify")
        broker.verifications.take(1)
    return Rights(listener, broker.tokens.check(raw, broker.seconds()))
