"""Writes Twisted's cache of plugins: ``python -m pubsub.plugin_cache``.

Twisted finds plugins by importing every file in ``twisted/plugins``, and keeps the result in a file
there, ``dropin.cache``. In an installation that cannot be written at run time it would do so at
each start, and log that it cannot keep it. This is to be run once after the installation, as the
user that has installed the package.
"""

from __future__ import annotations

import sys
from pathlib import Path

from twisted.plugin import getCache

from pubsub.errors import ConfigurationError
from twisted import plugins

CACHE = "dropin.cache"


def write_cache() -> list[Path]:
    """Write the caches of all directories with plugins of the broker, and return them.

    Raises ConfigurationError if one cannot be written.
    """
    getCache(plugins)
    directories = {Path(path).resolve() for path in plugins.__path__}
    ours = sorted(path for path in directories if (path / "pubsub_service.py").exists())
    for path in ours:
        cache, newest = path / CACHE, max(file.stat().st_mtime for file in path.glob("*.py"))
        if not cache.is_file() or cache.stat().st_mtime < newest:
            raise ConfigurationError(f"plugin cache: {cache} cannot be written")
    return [path / CACHE for path in ours]


def main() -> int:
    """Write the caches, print their paths, and return the exit code."""
    try:
        for path in write_cache():
            print(path)
    except ConfigurationError as error:
        print(f"pubsub: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
