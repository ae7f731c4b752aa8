"""The keys by which access rules are found for a client: its name, its groups and its networks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from pubsub.broker.identity import Identity
from pubsub.broker.key_index import KeyIndex
from pubsub.settings import is_pattern, matcher

Network = IPv4Network | IPv6Network
UNIX = "unix"
"""Stands for all UNIX sockets among networks, as the host of their clients."""
_NAME, _GROUP = "name", "group"


@lru_cache(1024)
def address_of(host: str) -> IPv4Address | IPv6Address:
    """Return the address of a client's host."""
    address = ip_address(host.partition("%")[0])
    # As IPv4 clients appear on a socket that serves both.
    return getattr(address, "ipv4_mapped", None) or address


def keys_of(
    identities: Sequence[str], groups: Sequence[str], networks: Sequence[Network | str]
) -> Collection[Hashable] | None:
    """Return the keys of a rule with these conditions; None if they do not limit it to any."""
    if identities and not any(map(is_pattern, identities)):
        return [(_NAME, name) for name in identities]
    if groups:
        return [(_GROUP, group) for group in groups]
    if networks:
        return [one if isinstance(one, str) else _network_key(one) for one in networks]
    return None


def _network_key(network: Network) -> tuple[int, int, int]:
    return _prefix_key(network.network_address, network.prefixlen)


def _prefix_key(address: IPv4Address | IPv6Address, length: int) -> tuple[int, int, int]:
    return address.version, length, int(address) >> (address.max_prefixlen - length)


class ClientKeys:
    """Finds the keys of clients among ``known``; ``groups`` have patterns of their members."""

    def __init__(self, groups: Mapping[str, Sequence[str]], known: Iterable[Hashable] = ()) -> None:
        self._matchers = {name: matcher(members) for name, members in groups.items()}
        self._index = KeyIndex(groups, lambda group: keys_of(groups[group], (), ()))
        networks = (key for key in known if isinstance(key, tuple) and len(key) == 3)
        self._lengths = sorted({(version, length) for version, length, _ in networks})

    @property
    def matchers(self) -> Mapping[str, Callable[[str], bool]]:
        """Predicates of names, by group."""
        return self._matchers

    def of(self, identity: Identity) -> Iterator[Hashable]:
        """Return the keys of a client with this identity."""
        for group in identity.groups:
            yield _GROUP, group
        if not identity.is_anonymous:
            own = _NAME, identity.name
            yield own
            for group in self._index.candidates([own]):
                if self._matchers[group](identity.name):
                    yield _GROUP, group
        yield from self._networks(identity.host)

    def _networks(self, host: str) -> Iterator[Hashable]:
        yield host
        if not self._lengths or host in ("", UNIX):
            return
        address = address_of(host)
        for version, length in self._lengths:
            if version == address.version:
                yield _prefix_key(address, length)
