"""Modules that a running broker imports late, from code that was read when it started.

An upgrade replaces the files below the broker. A module that was read only then would be of another
version than the modules which import it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType


class _KeptModule(Loader):
    """Runs ``code``, once its module is imported."""

    def __init__(self, code: CodeType) -> None:
        self._code = code

    def create_module(self, spec: ModuleSpec) -> None:
        """See Loader: an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """See Loader."""
        exec(self._code, module.__dict__)


class _KeptModules(MetaPathFinder):
    """Finds the modules in ``specs``."""

    def __init__(self) -> None:
        self.specs: dict[str, ModuleSpec] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See MetaPathFinder."""
        return self.specs.get(fullname)


_kept = _KeptModules()


def keep_modules(names: Iterable[str]) -> None:
    """Read the code of the modules ``names``. An import runs it, whatever their files are then."""
    for name in names:
        if name in sys.modules or name in _kept.specs:
            continue
        found = find_spec(name)
        loader = None if found is None else found.loader
        code = loader.get_code(name) if isinstance(loader, InspectLoader) else None
        if found is None or code is None:
            continue
        spec = ModuleSpec(name, _KeptModule(code), origin=found.origin)
        spec.has_location, spec.cached = found.has_location, found.cached
        _kept.specs[name] = spec
    if _kept not in sys.meta_path:
        sys.meta_path.insert(0, _kept)
