"""Compiles the scanning and encoding of messages with mypyc when a wheel is built.

Without a compiler, without headers, or if the compiler rejects the code, the wheel has the same
modules as Python only. PUBSUB_COMPILE=0 disables compilation. Editable installations are never
compiled.
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

# Seconds that the compiler may take; eight are usual.
TIMEOUT = 300
SETUP = """\
from mypyc.build import mypycify
from setuptools import setup
flags = ["--config-file=mypy.ini"]
modules = mypycify([*flags, *{modules!r}], opt_level="3", debug_level="0")
setup(name="pubsub-compiled", packages=[], ext_modules=modules)
"""
# Modules that are not compiled are not checked, so their dependencies need not be installed.
MYPY = """\
[mypy]
follow_imports = silent
ignore_missing_imports = True
namespace_packages = True
explicit_package_bases = True
"""


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to the wheel: those that pyproject.toml lists as ``modules``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        if version == "editable" or os.environ.get("PUBSUB_COMPILE") == "0":
            return
        self._directory = TemporaryDirectory(prefix="pubsub-compile-")
        try:
            built = compile_modules(
                Path(self.root), Path(self._directory.name), self.config["modules"]
            )
        except (OSError, subprocess.SubprocessError) as error:
            output = (getattr(error, "stderr", None) or b"").decode(errors="replace")
            reason = (output.strip().splitlines() or [str(error)])[-1]
            self.app.display_warning(f"pubsub is built without compiled modules: {reason}")
            return
        build_data["force_include"].update(built)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """See hatchling."""
        if hasattr(self, "_directory"):
            self._directory.cleanup()


def compile_modules(root: Path, directory: Path, modules: list[str]) -> dict[str, str]:
    """Return the path of each built library and its path in the wheel.

    Raises the errors of ``subprocess.run``.
    """
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(root / "pubsub", directory / "pubsub", ignore=ignored)
    (directory / "setup.py").write_text(SETUP.format(modules=modules))
    (directory / "mypy.ini").write_text(MYPY)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=directory,
        check=True,
        capture_output=True,
        timeout=TIMEOUT,
    )
    libraries = [*directory.glob("*.so"), *(directory / "pubsub").rglob("*.so")]
    return {str(path): str(path.relative_to(directory)) for path in libraries}
