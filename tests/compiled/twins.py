"""Both forms of the compiled modules, side by side in one process."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pubsub

NAMES = (
    "pubsub.broker.message_run",
    "pubsub.wire.frame_runs",
    "pubsub.protocols.cafe.scan",
    "pubsub.protocols.fast.scan",
    "pubsub.protocols.rheos.scan",
    "pubsub.protocols.spot.scan",
)


def compiled() -> dict[str, ModuleType]:
    """Return the modules as the broker loads them."""
    return {name: import_module(name) for name in NAMES}


def interpreted() -> dict[str, ModuleType]:
    """Return the modules from their source in the wheel, including their imports of each other."""
    root = Path(pubsub.__file__).parent.parent
    kept = {name: sys.modules.get(name) for name in NAMES}
    twins: dict[str, ModuleType] = {}
    try:
        for name in NAMES:
            path = root.joinpath(*name.split(".")).with_suffix(".py")
            spec = spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            twins[name] = sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(twins[name])
    finally:
        for name, module in kept.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
    return twins
