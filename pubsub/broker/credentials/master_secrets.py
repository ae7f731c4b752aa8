"""The master secrets: a ring of several valid secrets, each with an id and an end.

A secret verifies the tokens that were signed with it. A token with a key id (``kid``) is checked
against that secret only, any other token against every secret of its algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Protocol

HMACS = ("HS256", "HS384", "HS512")
ALGORITHMS = (*HMACS, "EdDSA")
"""Those of the tokens that this project makes."""
PUBLIC_ALGORITHMS = ("EdDSA", "ES256", "RS256")
REFRESH_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class MasterSecret:
    """One master secret. ``key`` is the secret's bytes, or a public key.

    ``ends`` is in seconds since the Unix epoch; infinite by default. A token of this secret must
    have ``issuer`` as its ``iss``, and one of ``audience`` as its ``aud``, unless these are empty.
    ``kid`` is the key id in tokens, by default the ``id``. ``table`` is the id of the table of
    ``[keys]`` that the secret is from, by default the same. Its tokens permit no other than these
    ``actions``, with any claims; None stands for all.
    """

    id: str
    algorithm: str
    key: Any = field(repr=False)
    ends: float = inf
    issuer: str = ""
    audience: frozenset[str] = frozenset()
    kid: str = ""
    table: str = ""
    actions: frozenset[str] | None = None

    @property
    def source(self) -> str:
        """The id of the table of ``[keys]``, which access rules name as the issuer."""
        return self.table or self.id

    def grants_less(self, other: MasterSecret) -> bool:
        """Return whether tokens of ``other`` permit something that those of this one do not."""
        if self.actions is None:
            return False
        return other.actions is None or not other.actions <= self.actions


@dataclass(frozen=True, slots=True)
class KeySource:
    """A JSON Web Key Set (RFC 7517) at ``url``: the table ``[keys.ID]`` with ``jwks-url``.

    ``ca`` is the file with the authorities to trust in place of the system's. The set is fetched
    every ``seconds``. ``ends``, ``issuer``, ``audience`` and ``actions`` are those of each
    ``MasterSecret``.
    """

    id: str
    url: str = field(repr=False)
    ca: str = ""
    seconds: float = REFRESH_SECONDS
    ends: float = inf
    issuer: str = ""
    audience: frozenset[str] = frozenset()
    actions: frozenset[str] | None = None

    def secrets(self, keys: Iterable[MasterSecret]) -> list[MasterSecret]:
        """Return ``keys``, which were fetched, with the demands on tokens of this source."""
        return [
            replace(
                key,
                ends=self.ends,
                issuer=self.issuer,
                audience=self.audience,
                table=self.id,
                actions=self.actions,
            )
            for key in keys
        ]

    def is_at(self, other: KeySource) -> bool:
        """Return whether the keys come from the same place as those of ``other``."""
        return (self.id, self.url, self.ca) == (other.id, other.url, other.ca)


@dataclass(frozen=True, slots=True)
class DenyList:
    """Tokens that are not accepted any more: by their id (``jti``) or their subject."""

    ids: frozenset[str] = frozenset()
    subjects: frozenset[str] = frozenset()


class TokenClaims(Protocol):
    """The claims that decide whether a token with a valid signature is accepted."""

    @property
    def subject(self) -> str: ...

    @property
    def id(self) -> str: ...

    @property
    def issuer(self) -> str: ...

    @property
    def audience(self) -> frozenset[str]: ...

    @property
    def secret(self) -> MasterSecret: ...


class SecretRing:
    """The configured secrets, and the tokens that are ``denied`` nevertheless.

    ``sources`` are the sets of public keys that are fetched, and ``fetched`` has the keys of those
    that have some, by the id of the source.
    """

    def __init__(
        self,
        secrets: Iterable[MasterSecret] = (),
        denied: DenyList = DenyList(),
        sources: Iterable[KeySource] = (),
        fetched: Mapping[str, tuple[MasterSecret, ...]] | None = None,
    ) -> None:
        self._configured = tuple(secrets)
        self.denied = denied
        self.sources = tuple(sources)
        self.fetched = fetched or {}
        keys = [key for one in self.sources for key in one.secrets(self.fetched.get(one.id, ()))]
        # In this order, so that no key that is fetched takes the id of a configured secret.
        self._secrets = {secret.id: secret for secret in (*keys, *self._configured)}

    @property
    def has_issuers(self) -> bool:
        """Whether a source of tokens is configured, also one without valid keys."""
        return bool(self._secrets or self.sources)

    def with_keys(self, id: str, keys: tuple[MasterSecret, ...]) -> SecretRing:
        """Return this ring with other keys of the source ``id``."""
        fetched = {**self.fetched, id: keys}
        return SecretRing(self._configured, self.denied, self.sources, fetched)

    def carrying(self, before: SecretRing) -> SecretRing:
        """Return this ring with the keys that ``before`` has of the same sources."""
        known = {source.id: source for source in before.sources}
        fetched = {
            source.id: before.fetched[source.id]
            for source in self.sources
            if source.id in before.fetched and source.is_at(known[source.id])
        }
        return SecretRing(self._configured, self.denied, self.sources, fetched)

    def __iter__(self) -> Iterator[MasterSecret]:
        return iter(self._secrets.values())

    def __contains__(self, secret: MasterSecret) -> bool:
        return self._secrets.get(secret.id) == secret

    def end(self, secret: MasterSecret) -> float:
        """Return when ``secret`` ends by the current configuration.

        That is minus infinity if it was removed, or permits less than it did.
        """
        current = self._secrets.get(secret.id)
        if current is None or (current.algorithm, current.key) != (secret.algorithm, secret.key):
            return -inf
        if current.grants_less(secret):
            return -inf
        return current.ends

    def problem(self, token: TokenClaims) -> str:
        """Return why ``token`` is not accepted, or an empty text; its signature is good."""
        if token.id in self.denied.ids:
            return "the token is denied"
        if token.subject in self.denied.subjects:
            return "the subject is denied"
        secret = self._secrets.get(token.secret.id, token.secret)
        if secret.issuer and token.issuer != secret.issuer:
            return "iss: another issuer"
        if secret.audience and secret.audience.isdisjoint(token.audience):
            return "aud: for another audience"
        return ""

    def candidates(self, kid: str | None, algorithm: object, now: float) -> list[MasterSecret]:
        """Return the secrets that can have signed a token with this header."""
        return [
            secret
            for secret in self._secrets.values()
            if secret.algorithm == algorithm
            and now < secret.ends
            and (kid is None or kid == (secret.kid or secret.id))
        ]
