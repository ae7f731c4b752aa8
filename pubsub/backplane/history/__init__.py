"""The shared history: replicas of the messages of each broker at all others."""
