"""The base of tests of ``pubsub history``."""

from __future__ import annotations

from pathlib import Path

from pubsub.store.metadata.metadata import Metadata
from pubsub.store.reading.log_view import LogView
from pubsub.store.segments.segment_index import Grain
from pubsub.store.upkeep.rewrite import Rewrite
from tests.histories import START, History, history
from tests.unit.command_case import CommandCase
from tests.unit.shown_log import numbers, shown


class HistoryCase(CommandCase):
    """A log of three segments with ten messages each, and some metadata."""

    def setUp(self) -> None:
        super().setUp()
        self.path = self.directory / "history"
        for start in (0, 10, 20):
            with history(self.path) as log:
                log.put("a" if start else "ended", numbers(range(start, start + 10)))
                log.store("tokens", f"key {start}", b"value %d" % start)
                if not start:
                    log.end("ended")
        # Begins a fourth one.
        self.broker: History | None = None

    def start_broker(self) -> History:
        self.broker = History(self.path, START)
        self.addCleanup(self.stop_broker)
        return self.broker

    def stop_broker(self) -> None:
        if self.broker is not None:
            self.broker.close()
            self.broker = None

    def run_on(self, action: str, *arguments: str, path: Path | None = None) -> tuple[int, str]:
        """Return the exit code and the output."""
        store = f"log:{path or self.path}"
        code, out, err = self.run_it("history", action, *arguments, "--store", store)
        return code, out + err

    def lines(self, action: str, *arguments: str, path: Path | None = None) -> list[str]:
        return self.run_on(action, *arguments, path=path)[1].splitlines()

    def assert_fine(self, path: Path | None = None) -> None:
        code, out = self.run_on("check", path=path)
        assert (code, out.count("\n")) == (0, 1), out

    def segments(self) -> list[Path]:
        return sorted(self.path.glob("*.log"))

    def read(self, path: Path | None = None) -> tuple[list[bytes], list[tuple[int, int]]]:
        view = LogView(path or self.path)
        try:
            return shown(view.refresh())
        finally:
            view.close()

    def stored(self, path: Path | None = None) -> dict[str, bytes]:
        """Return the metadata of a table as the broker would read them."""
        metadata = Metadata((path or self.path) / "metadata.db")
        try:
            return {key: value for space, key, value in metadata.items() if space == "tokens"}
        finally:
            metadata.close()

    def rewrite(self, broker: History) -> None:
        """Rewrite all segments but the newest as one, as the broker does."""
        catalog, sources = broker.catalog, broker.catalog.segments[:-1]
        rewrite = Rewrite(
            broker.directory, catalog, sources, broker.writer.take_sequence(), Grain()
        )
        for _ in rewrite.steps():
            pass
        _, row = rewrite.finish()
        keys = [(one.base, one.head.sequence) for one in sources]
        broker.metadata.replace_segments(keys, [row], 0)
        for source in sources:
            (self.path / source.name).unlink()
