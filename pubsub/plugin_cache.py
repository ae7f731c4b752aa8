"""Writes Twisted's cache of plugins: ``python -P -m pubsub.plugin_cache``.

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


def write_cache() -> Path:
    """Write the cache of the directory with the plugins of the broker, and return it.

    Raises ConfigurationError if it cannot be written.
    """
    getCache(plugins)
    # Twisted takes a module of each name once, from the first place. Without -P Python also finds a
    # checkout that is the working directory, where nothing is left to cache.
    directories = (Path(path).resolve() for path in plugins.__path__)
    ours = next(path for path in directories if (path / "pubsub_service.py").exists())
    cache, newest = ours / CACHE, max(file.stat().st_mtime for file in ours.glob("*.py"))
    if not cache.is_file() or cache.stat().st_mtime < newest:
        raise ConfigurationError(f"plugin cache: {cache} cannot be written")
    return cache


def main() -> int:
    """Write the cache, print its path, and return the exit code."""
    try:
        print(write_cache())
    except ConfigurationError as error:
        print(f"pubsub: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
