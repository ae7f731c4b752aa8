"""From messages to be stored to records on disk: groups, writes, syncs, acknowledgments."""
