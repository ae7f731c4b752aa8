"""Live messages between brokers: records, their envelopes, and the subjects of topics."""
