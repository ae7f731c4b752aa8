"""The process: command line, configuration, start, reload and shutdown of the broker."""
