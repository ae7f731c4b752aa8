"""Compiles the kernel when the package is built or installed in place.

The extension uses Python's stable ABI, so one wheel serves CPython 3.11 and later. Without a
compiler or Python's headers the package holds the interpreted kernel alone, and works.
PUBSUB_COMPILE=0 leaves the kernel uncompiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

KERNEL = Path("pubsub", "kernel")
SOURCES = ("compiled.pyx", "groups.pxi", "head_shapes.pxi", "head_table.pxi", "rows.pxi")
LIBRARY = "compiled.abi3.so"
# Seconds; a build usually takes ten.
TIMEOUT = 300
SETUP = """\
from Cython.Build import cythonize
from setuptools import Extension, setup
kernel = Extension(
    "pubsub.kernel.compiled",
    ["pubsub/kernel/compiled.pyx"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    extra_compile_args=["-O3", "-g0"],
    extra_link_args=["-s"],
    py_limited_api=True,
)
setup(name="pubsub-kernel", packages=[], ext_modules=cythonize([kernel], quiet=True))
"""


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled kernel to the wheel, or puts it beside its source for development."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        if os.environ.get("PUBSUB_COMPILE") == "0" or sys.implementation.name != "cpython":
            return
        self._directory = TemporaryDirectory(prefix="pubsub-kernel-")
        root = Path(self.root)
        try:
            library = compile_kernel(root, Path(self._directory.name))
        except (OSError, subprocess.SubprocessError) as error:
            output = (getattr(error, "stderr", None) or b"").decode(errors="replace")
            reason = (output.strip().splitlines() or [str(error)])[-1]
            self.app.display_warning(f"pubsub is built without the compiled kernel: {reason}")
            return
        if version == "editable":
            put_in_place(library, root)
            return
        build_data["force_include"][str(library)] = str(KERNEL / LIBRARY)
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{next(sys_tags()).platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """See hatchling."""
        if hasattr(self, "_directory"):
            self._directory.cleanup()


def compile_kernel(root: Path, directory: Path) -> Path:
    """Return the path of the library, built in ``directory``; raises as ``subprocess.run``."""
    (directory / KERNEL).mkdir(parents=True)
    for name in SOURCES:
        shutil.copy(root / KERNEL / name, directory / KERNEL)
    (directory / "setup.py").write_text(SETUP)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=directory,
        check=True,
        capture_output=True,
        timeout=TIMEOUT,
    )
    (library,) = (directory / KERNEL).glob("*.so")
    return library


def put_in_place(library: Path, root: Path) -> None:
    """Copy the library beside its source. It is replaced: a process may have the old one loaded."""
    staged = root / KERNEL / f".{LIBRARY}.new"
    shutil.copyfile(library, staged)
    staged.replace(root / KERNEL / LIBRARY)
