"""Makes histories from options, and finds out whether brokers share one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pubsub.broker.access_rules.access import RESERVED
from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.histories.broker_list import BrokerList
from pubsub.pipeline.histories.history import History, Unreachable
from pubsub.pipeline.histories.http_history import SOURCE, HttpHistory
from pubsub.pipeline.options.connector_options import MESSAGES, Credentials, SourceOptions
from pubsub.pipeline.options.offset_options import EARLIEST, LATEST, Start, TopicOffsets


def open_histories(options: SourceOptions, running: bool = False) -> list[History]:
    """Return the history of each partition, in order. None is connected yet.

    ``running`` is as in ``HttpApi``.
    """
    if options.path is not None:
        # Workers that read over HTTP start faster without the store.
        from pubsub.pipeline.histories.file_history import FileHistory

        return [FileHistory(options.path)]
    brokers = [HttpHistory(url, options.credentials, SOURCE, running) for url in options.urls]
    if options.shared:
        return [BrokerList(brokers, options.shared, options.fail_on_data_loss)]
    return list(brokers)


def with_shared_history(options: SourceOptions) -> SourceOptions:
    """Return the options with the history that the brokers share, if there are several.

    Raises ConfigurationError if some of them share one and others do not, and the error of a broker
    if none of them answers.
    """
    if len(options.urls) < 2 or options.stream != MESSAGES or _are_reserved(options.topics):
        return options
    shared = history_of(options.urls, options.credentials, SOURCE)
    if not shared:
        return options
    options = replace(options, shared=shared)
    _check_shared(options)
    return options


def history_of(urls: Sequence[str], credentials: Credentials, side: str) -> str:
    """Return what identifies the history that these brokers share; empty if each has its own.

    ``side`` is that of ``HttpApi``. Raises as ``with_shared_history``.
    """
    found: dict[str, str] = {}
    failure: PubSubError | None = None
    for url in urls:
        try:
            found[url] = HttpHistory(url, credentials, side).identity()
        except Unreachable as error:
            failure = error
    if not found:
        assert failure is not None
        raise failure
    if len(set(found.values())) > 1:
        first, *others = found
        other = next(url for url in others if found[url] != found[first])
        raise ConfigurationError(
            f"option url: the brokers at {first} and {other} do not share one history: name "
            "brokers that all share one, or that all have histories of their own"
        )
    (shared,) = set(found.values())
    return shared


def _are_reserved(topics: frozenset[str] | None) -> bool:
    return bool(topics) and all(name.startswith(RESERVED) for name in topics or ())


def _check_shared(options: SourceOptions) -> None:
    """Raise ConfigurationError for options that name an offset or a partition of one broker."""
    if any(number > 0 for number in options.assigned or ()):
        raise ConfigurationError(
            "option assign: brokers that share a history are one partition, number 0"
        )
    chosen = set(options.topics or ()).union(*(options.assigned or {}).values())
    if any(name.startswith(RESERVED) for name in chosen):
        raise ConfigurationError(
            f"option subscribe: topics that begin with {RESERVED} belong to each broker; read "
            "them in a separate query"
        )
    for name, start in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        if any(place not in (EARLIEST, LATEST) for place in _places(start)):
            raise ConfigurationError(
                f"option {name}: an offset belongs to one broker, but those in option url share "
                "a history; use earliest, latest or a time"
            )


def _places(start: Start | None) -> list[int | str]:
    if isinstance(start, TopicOffsets):
        return [place for of in start.of.values() for place in of.values()]
    if isinstance(start, Mapping):
        return list(start.values())
    return []
