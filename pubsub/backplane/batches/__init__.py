"""Exactly-once batches, known to all brokers."""
