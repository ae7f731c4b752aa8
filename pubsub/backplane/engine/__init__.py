"""NATS with JetStream as the engine: its connection, its streams, its bucket."""
