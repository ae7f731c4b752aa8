"""The positions of readers, known to all brokers."""
