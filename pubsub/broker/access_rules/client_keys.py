"""The keys by which access rules are found for a client: its name, its groups and its networks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from pubsub.broker.access_rules.key_index import KeyIndex
from pubsub.broker.credentials.identity import Identity
from pubsub.settings import is_pattern, matcher

Network = IPv4Network | IPv6Network
UNIX = "unix"
"""Stands for all UNIX sockets among networks, as the host of their clients."""
_NAME, _GROUP, _START, _END = "name", "group", "start", "end"
# The characters with a meaning in patterns.
_WILD = re.compile(r"[][*?]")


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
    keys = [_pattern_key(one) for one in identities]
    return None if None in keys else keys or None


def _pattern_key(pattern: str) -> tuple[str, str] | None:
    """Return the key of the names that a pattern can match; None if they have none in common."""
    if not is_pattern(pattern):
        return _NAME, pattern
    first, *_, last = _WILD.split(pattern)
    kind, text = (_START, first) if len(first) >= len(last) else (_END, last)
    return (kind, text) if text else None


def _network_key(network: Network) -> tuple[int, int, int]:
    return _prefix_key(network.network_address, network.prefixlen)


def _prefix_key(address: IPv4Address | IPv6Address, length: int) -> tuple[int, int, int]:
    return address.version, length, int(address) >> (address.max_prefixlen - length)


class NetworkSet:
    """Networks, in which an address is looked up, however many they are; names are ignored."""

    def __init__(self, networks: Iterable[Network | str]) -> None:
        self._keys = {_network_key(one) for one in networks if not isinstance(one, str)}
        self._lengths = sorted({(version, length) for version, length, _ in self._keys})

    def __contains__(self, address: IPv4Address | IPv6Address) -> bool:
        return any(
            _prefix_key(address, length) in self._keys
            for version, length in self._lengths
            if version == address.version
        )


class _NameKeys:
    """Finds the keys of names among ``known``: the name, and how it begins and ends."""

    def __init__(self, known: Iterable[Hashable]) -> None:
        pairs = [key for key in known if isinstance(key, tuple) and len(key) == 2]
        self._starts = sorted({len(text) for kind, text in pairs if kind == _START})
        self._ends = sorted({len(text) for kind, text in pairs if kind == _END})

    def of(self, name: str) -> Iterator[Hashable]:
        """Return the keys of ``name``."""
        yield _NAME, name
        for length in self._starts:
            yield _START, name[:length]
        for length in self._ends:
            yield _END, name[-length:]


class ClientKeys:
    """Finds the keys of clients among ``known``; ``groups`` have patterns of their members."""

    def __init__(
        self, groups: Mapping[str, Sequence[str]], known: Collection[Hashable] = ()
    ) -> None:
        self._matchers = {name: matcher(members) for name, members in groups.items()}
        self._index = KeyIndex(groups, lambda group: keys_of(groups[group], (), ()))
        self._names = _NameKeys(known)
        self._names_of_groups = _NameKeys(self._index.keys)
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
            yield from self._names.of(identity.name)
            for group in self._index.candidates(self._names_of_groups.of(identity.name)):
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
