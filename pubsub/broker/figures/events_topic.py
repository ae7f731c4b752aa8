"""The topic ``$SYS/events``, on which a broker publishes its events while they are on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from pubsub.broker.figures.events import PROTOCOL, TOPIC, Events
from pubsub.errors import Refused, StartError
from pubsub.kernel import Columns

if TYPE_CHECKING:
    from pubsub.broker.routing.dispatcher import Dispatcher
    from pubsub.broker.topic_space.topic_registry import TopicRegistry

log = Logger()


class EventsTopic:
    """Creates the topic and publishes on it; ``Events`` collects the events.

    ``watch`` is called with the events when they are turned on, and with None when they are turned
    off. ``seconds``, ``at_tick_end`` and ``redacted`` are those of ``Events``.
    """

    def __init__(
        self,
        seconds: Callable[[], float],
        at_tick_end: Callable[[Callable[[], None]], object],
        redacted: Sequence[bytes],
        topics: TopicRegistry,
        dispatcher: Dispatcher,
        watch: Callable[[Events | None], None],
    ) -> None:
        self._topics = topics
        self._dispatcher = dispatcher
        self._watch = watch
        self._events = Events(seconds, at_tick_end, self._publish, redacted)
        self._is_on = self._started = False

    def turn(self, on: bool) -> None:
        """Publish events from now on, or stop doing so."""
        self._is_on = self._events.enabled = on
        self._watch(self._events if on else None)

    def start(self) -> None:
        """Create the topic before a client can, if events are on; raises StartError."""
        if self._is_on:
            self._create()
        self._started = True

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Turn events on or off as the setting ``events`` has it."""
        on = settings["events"]
        if on is self._is_on:
            return
        if on and self._started:
            try:
                self._create()
            except StartError as error:
                log.error("{reason}", reason=error)
                return
        self._events.flush()
        self.turn(on)

    def close(self) -> None:
        """Publish the last events; there are none after them."""
        if self._is_on:
            self._events.close()

    def _create(self) -> None:
        try:
            self._topics.create(TOPIC).configured = True
        except Refused as refused:
            raise StartError(f"events: cannot create topic {TOPIC}: {refused}") from None

    def _publish(self, payloads: list[bytes]) -> None:
        columns = Columns.of(payloads)
        self._dispatcher.relay(self._topics.named(TOPIC), columns, b"", PROTOCOL)
