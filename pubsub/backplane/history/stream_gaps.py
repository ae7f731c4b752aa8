"""``StreamGaps``: messages that have left the stream before this broker has read them."""

from __future__ import annotations

from twisted.logger import Logger

log = Logger()


class StreamGaps:
    """Counts and logs the times that messages of others may have been lost with a former stream.

    What the limits of a stream have removed, ``Progress`` counts.
    """

    def __init__(self) -> None:
        self.count = 0
        # Whether the stream was replaced, and nothing is known to be missing since.
        self._is_new = False

    def removed(self) -> None:
        """The stream has removed its oldest messages, which were not read."""
        self._is_new = False
        log.warn(
            "backplane: the stream has removed messages that this broker had not read; its "
            "history continues after them"
        )

    def another_stream(self) -> None:
        """The stream is another one than before, and is read from its beginning."""
        self._is_new = True
        log.warn("backplane: the stream of the shared history is another one than before")

    def missed(self) -> None:
        """The messages of a broker do not follow those that were read before.

        That broker may also have been started again, or have published what is not shared.
        """
        if self._is_new:
            self._is_new = False
            self.count += 1
            log.warn(
                "backplane: messages of others that only the former stream had may be missing "
                "here; compare the histories of the brokers"
            )
