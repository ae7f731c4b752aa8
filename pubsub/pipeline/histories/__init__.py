"""The histories that the source reads: over HTTP, from a directory, or at several brokers."""
