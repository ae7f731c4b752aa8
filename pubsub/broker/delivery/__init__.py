"""From an outbox to its subscriber: live, behind, and slow."""
