"""The command ``pubsub``."""
