"""From stored messages to their readers: the newest in memory, segments, Arrow."""
