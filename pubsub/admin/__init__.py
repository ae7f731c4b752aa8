"""The HTTP API: the history read in ranges, positions of readers, and writing exactly once."""
