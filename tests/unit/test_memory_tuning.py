"""The settings of the C library's allocator and of the garbage collector."""

from __future__ import annotations

import ctypes
import gc
import os
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from pubsub.server.memory_tuning import (
    freeze_startup_objects,
    keep_freed_memory,
    tune_memory,
    use_no_blas_threads,
)
from pubsub.tuning import FROZEN_START, KEPT_MEMORY
from tests.unit.tunings import restore_collector, without

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


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

    def test_both_thresholds_are_set_for_one_heap(self) -> None:
        calls: list[tuple[int, int]] = []

        class Library:
            @staticmethod
            def mallopt(option: int, value: int) -> int:
                calls.append((option, value))
                return 1

        self.library(Library)
        tune_memory(without(KEPT_MEMORY, FROZEN_START))
        assert calls == []
        tune_memory(without(FROZEN_START))
        assert calls == [
            (M_MMAP_THRESHOLD, 32 * 2**20),
            (M_TRIM_THRESHOLD, 64 * 2**20),
            (M_ARENA_MAX, 1),
        ]

    def test_another_c_library_is_not_changed(self) -> None:
        for library in (object(), OSError("no such library")):
            self.library(library)
            keep_freed_memory()


class CollectorTests(SynchronousTestCase):
    """gc"""

    def test_existing_objects_are_left_out_of_collections(self) -> None:
        restore_collector(self)
        objects: list[list[object]] = [[] for _ in range(1000)]
        before = gc.get_freeze_count()
        tune_memory(without(KEPT_MEMORY, FROZEN_START))
        assert gc.get_freeze_count() <= before
        freeze_startup_objects()
        assert gc.get_freeze_count() - before > len(objects)


class BlasTests(SynchronousTestCase):
    """The threads of numpy's library"""

    def test_it_has_none_unless_the_operator_wants_them(self) -> None:
        for before, after in (({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")):
            with mock.patch.dict(os.environ, before, clear=True):
                use_no_blas_threads()
                assert os.environ == {"OPENBLAS_NUM_THREADS": after}
