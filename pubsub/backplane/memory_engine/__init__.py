"""An engine in memory, by which brokers of one process share their state in tests."""
