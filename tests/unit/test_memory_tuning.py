"""The settings of the C library's allocator and of the garbage collector."""

from __future__ import annotations

import ctypes
import gc

from twisted.trial.unittest import SynchronousTestCase

from pubsub.server.memory_tuning import freeze_startup_objects, keep_freed_memory

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


class AllocatorTests(SynchronousTestCase):
    """mallopt(3)"""

    def library(self, library: object) -> None:
        """Have ``ctypes.CDLL`` return this, or raise it."""

        def load(name: str | None) -> object:
            assert name is None
            if isinstance(library, Exception):
                raise library
            return library

        self.patch(ctypes, "CDLL", load)  # type: ignore[no-untyped-call]

    def test_both_thresholds_are_set(self) -> None:
        calls: list[tuple[int, int]] = []

        class Library:
            @staticmethod
            def mallopt(option: int, value: int) -> int:
                calls.append((option, value))
                return 1

        self.library(Library)
        keep_freed_memory()
        assert calls == [(M_MMAP_THRESHOLD, 32 * 2**20), (M_TRIM_THRESHOLD, 64 * 2**20)]

    def test_another_c_library_is_not_changed(self) -> None:
        for library in (object(), OSError("no such library")):
            self.library(library)
            keep_freed_memory()


class CollectorTests(SynchronousTestCase):
    """gc"""

    def test_existing_objects_are_left_out_of_collections(self) -> None:
        self.addCleanup(gc.unfreeze)
        gc.unfreeze()
        freeze_startup_objects()
        assert gc.get_freeze_count() > 1000
